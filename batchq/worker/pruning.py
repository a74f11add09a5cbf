"""The local files of pods' output, bounded: by age, and all together by size."""

from __future__ import annotations

import re
from collections.abc import Collection
from os import stat_result
from pathlib import Path

import structlog

from batchq.api.times import DAY, SECOND

log = structlog.get_logger(__name__)

#: As long as the store keeps its copy.
KEPT_S = 7 * DAY // SECOND
KEPT_BYTES = 4 << 30

#: `<group uid>-<admission>-<ordinal>-<attempt>.log`; the daemons' own logs may lie beside them.
_POD_LOG = re.compile(r"([a-z0-9]+(?:-[0-9]+){3})\.log(?:\.1)?")


def prune_logs(
    log_dir: Path, *, running: Collection[str], now_s: float, most_bytes: int = KEPT_BYTES
) -> None:
    """Remove what is too old, and then the oldest until the rest is small enough.

    `running`: ids of attempts whose files are still written to; they stay, and count.
    """
    files = sorted(_pod_logs(log_dir), key=lambda one: (-one[2].st_mtime, one[1]))
    size = sum(found.st_size for attempt, _, found in files if attempt in running)
    for attempt, path, found in files:
        if attempt in running:
            continue
        if found.st_mtime < now_s - KEPT_S or size + found.st_size > most_bytes:
            _remove(path)
        else:
            size += found.st_size


def _pod_logs(log_dir: Path) -> list[tuple[str, Path, stat_result]]:
    found = []
    for path in log_dir.glob("*.log*"):
        try:
            if (match := _POD_LOG.fullmatch(path.name)) is not None:
                found.append((match[1], path, path.lstat()))
        except OSError as trouble:
            log.warning("log file not looked at", path=str(path), trouble=str(trouble))
    return found


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as trouble:
        log.warning("log file not removed", path=str(path), trouble=str(trouble))
