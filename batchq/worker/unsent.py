"""Output that a work-horse could not send, kept beside its run file for the agent to send later.

The local log holds it, too, but not which part of it has been sent, nor from which stream it came.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import structlog

log = structlog.get_logger(__name__)

#: What was written to which stream, in the order in which it is to be sent.
Chunks = Sequence[tuple[str, bytes]]


def keep(path: Path, chunks: Chunks) -> None:
    """Replace what is kept; nothing to keep is no file. A full disk is told in the log."""
    try:
        if not chunks:
            path.unlink(missing_ok=True)
            return
        draft = path.with_suffix(".unsent-draft")
        draft.write_bytes(msgspec.msgpack.encode(chunks))
        draft.replace(path)
    except OSError as trouble:
        log.warning("unsent output not kept", path=str(path), trouble=str(trouble))


def kept(path: Path) -> Chunks:
    """What is kept; nothing where there is no file, or none that can be read."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=tuple[tuple[str, bytes], ...])
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.MsgspecError) as trouble:
        log.warning("unsent output not readable", path=str(path), trouble=str(trouble))
        return ()


def send_kept(path: Path, send: Callable[[str, bytes], None]) -> None:
    """Send what is kept, and keep no more of it than could not be sent.

    Raises whatever `send` raises.
    """
    left = list(kept(path))
    try:
        while left:
            send(*left[0])
            del left[0]
    finally:
        keep(path, left)
