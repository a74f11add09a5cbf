"""What `batchq run` asks the server while its groups run, and when they have ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from batchq.api.lifecycle import TERMINAL
from batchq.api.objects import Pod, PodGroup, key_of
from batchq.api.times import describe_age
from batchq.cli.runview import PodOutput, display, has_ended, short
from batchq.cli.trouble import Interrupted
from batchq.client import Client
from batchq.client.overview import GroupView
from batchq.errors import InvalidInput, NotFound, WaitTimedOut
from batchq.paths import Home

#: Between two looks.
_LOOK_S = 0.2
_LAST_LINES = 3


def taken_keys(client: Client) -> frozenset[str]:
    """The keys of all groups there are."""
    return frozenset(key_of(group) for group in client.list("PodGroup"))


def follow(
    client: Client, keys: Sequence[str], *, timeout_s: float | None, color: bool
) -> list[GroupView]:
    """Show the groups until all have ended, their processes too; as they are then.

    Raises Interrupted at Ctrl-C and WaitTimedOut, which say what goes on; NotFound if a group is
    deleted meanwhile.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    views: list[GroupView] = []
    try:
        with client.patiently(timeout_s), display(sys.stderr, color=color) as shown:
            while True:
                views = _look(client, keys)
                shown.show(views)
                if all(has_ended(view) for view in views):
                    return views
                if deadline is not None and time.monotonic() >= deadline:
                    break
                time.sleep(_LOOK_S)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; {_going_on(views)}", hint=_how_to_end(views)) from None
    after = describe_age(round((timeout_s or 0) * 1000))
    raise WaitTimedOut(f"not at an end after {after}; {_going_on(views)}", hint=_how_to_end(views))


def pods_of(client: Client, keys: Sequence[str]) -> list[Pod]:
    """The pods of all groups, of each its last admission's."""
    found: list[Pod] = []
    for key in keys:
        group = client.get("PodGroup", key)
        assert isinstance(group, PodGroup)
        latest = {pod.metadata.name: pod for pod in client.pods(group)}
        found += latest.values()
    return found


def output_folder(home: Home, name: str) -> Path:
    """A new folder for what the pods of a run have written.

    Raises InvalidInput where it cannot be made.
    """
    now = datetime.now(UTC)
    folder = home.root / "runs" / f"{now:%Y%m%d-%H%M%S}-{now.microsecond // 1000:03}-{name}"
    try:
        folder.mkdir(parents=True, mode=0o700)
    except OSError as error:
        raise InvalidInput(f"{folder} cannot be made: {error.strerror}") from None
    return folder


def collect_output(client: Client, keys: Sequence[str], folder: Path) -> list[PodOutput]:
    """Write each pod's kept output to a file of its own in `folder`; the last lines of each.

    Raises OSError where that cannot be written.
    """
    outputs = []
    for key in keys:
        texts: dict[str, list[str]] = {}
        for line in client.logs(key):
            texts.setdefault(line.pod, []).append(line.text)
        for pod, lines in texts.items():
            prefix = "" if key.startswith("default/") else f"{key.partition('/')[0]}."
            folder.joinpath(f"{prefix}{pod}.log").write_text("\n".join(lines) + "\n")
            last = tuple(lines[-_LAST_LINES:])
            outputs.append(PodOutput(pod=pod, count=len(lines), last=last))
    return outputs


def _look(client: Client, keys: Sequence[str]) -> list[GroupView]:
    namespaces = {key.partition("/")[0] for key in keys}
    overview = client.overview()
    found = {
        view.key: view
        for namespace in sorted(namespaces)
        for view in overview.groups(namespace=namespace)
    }
    gone = [key for key in keys if key not in found]
    if gone:
        raise NotFound(f"PodGroup {gone[0]} was deleted while it was followed")
    return [found[key] for key in keys]


def _going_on(views: Sequence[GroupView]) -> str:
    """What does."""
    active = [f"{short(view.key)} ({view.shown})" for view in views if not has_ended(view)]
    return f"what goes on: {', '.join(active)}" if active else "all groups have ended"


def _how_to_end(views: Sequence[GroupView]) -> str:
    names = " ".join(short(view.key) for view in views if view.phase not in TERMINAL)
    if not names:
        return ""
    return f"`batchq progress {names}` follows, `batchq cancel {names}` ends what is left"
