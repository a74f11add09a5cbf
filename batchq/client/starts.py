"""When those who wait are expected to start: `batchq jobs --start`.

    starts = client.starts(queue="research")
    starts.items[0].key, starts.items[0].expected.at

The scheduler's next session is decided here, on how things stand, and everybody who waits then is
planned (batchq.framework.expected); nothing is written. Instants are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from batchq.api.lifecycle import PodGroupPhase
from batchq.client.deciding import Deciding
from batchq.client.others import Others, others
from batchq.client.outcomes import line_of
from batchq.framework.expected import Expected, expected_starts
from batchq.framework.state import GroupState


class ExpectedStart(Struct, frozen=True, kw_only=True, rename="camel"):
    """When a group is expected to start, those before it counted; None where nobody can say.

    `ends`: who has to end for it just then; `behind`: who has to start before it; `why`: what
    keeps it besides, or why nobody can say.
    """

    at: int | None
    ends: Others = Others()
    behind: Others = Others()
    why: str = ""


class StartView(Struct, frozen=True, kw_only=True, rename="camel"):
    """A group that waits. `position`: from 1 in the line of its queue, None if it is not in it, or
    the next session admits it.
    """

    key: str
    queue: str
    position: int | None
    expected: ExpectedStart


class Starts(Struct, frozen=True, kw_only=True, rename="camel"):
    """Those who wait, the first to start first, as of `at`; those of whom nobody knows come last,
    by queue and place. `not_planned`: how many in line were too many to be planned.
    """

    at: int
    items: tuple[StartView, ...]
    not_planned: int


def starts_of(
    deciding: Deciding, *, namespace: str = "", queue: str = "", most: int | None = None
) -> Starts:
    """Of every group that waits; of one namespace, of one queue and those below it."""
    session = deciding.decide()
    chosen = {
        uid: group
        for uid, group in session.groups.items()
        if namespace in ("", group.namespace) and queue in ("", *group.chain)
    }
    pending = [uid for uid, one in chosen.items() if one.phase == PodGroupPhase.PENDING]
    told = expected_starts(session, wanted=pending, most=most)
    queues = {group.queue for uid, group in chosen.items() if uid in told}
    places = {
        key: place
        for name in sorted(queues)
        for place, key in enumerate(line_of(session, name), start=1)
    }
    items = [_view(group, told[uid], places) for uid, group in chosen.items() if uid in told]
    return Starts(
        at=deciding.now_ms,
        items=tuple(sorted(items, key=_first_to_start)),
        not_planned=sum(not told[uid].is_planned for uid in chosen if uid in told),
    )


def _view(group: GroupState, told: Expected, places: Mapping[str, int]) -> StartView:
    return StartView(
        key=group.key,
        queue=group.queue,
        position=places.get(group.key),
        expected=expected_of(told, group.namespace),
    )


def _first_to_start(view: StartView) -> tuple[bool, int, str, bool, int, str]:
    at, place = view.expected.at, view.position
    return (at is None, at or 0, view.queue, place is None, place or 0, view.key)


def expected_of(told: Expected, namespace: str) -> ExpectedStart:
    """What was found out, as somebody of that namespace is told it."""
    return ExpectedStart(
        at=told.at,
        ends=others(told.ended, namespace),
        behind=others([told.behind] if told.behind else [], namespace),
        why=told.why,
    )
