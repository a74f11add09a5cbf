"""How long a group has been in which state, and for which reasons: its events as a time series.

Only so many events are kept of all groups together; of a group whose first ones are gone the series
begins later than the group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, structs

from batchq.api.lifecycle import PodGroupPhase
from batchq.api.reasons import Leaving, Waiting
from batchq.api.transaction import Event

#: Event -> the phase that it begins.
_PHASES = {
    "Submitted": PodGroupPhase.PENDING,
    "Created": PodGroupPhase.PENDING,
    "Waiting": PodGroupPhase.PENDING,
    "QuotaReserved": PodGroupPhase.PENDING,
    "Admitted": PodGroupPhase.IN_QUEUE,
    **{str(phase): phase for phase in PodGroupPhase},
    **{str(reason): PodGroupPhase.PENDING for reason in Leaving},
}
_LEFT = frozenset(map(str, Leaving))
_BEGINS = frozenset({"Submitted", "Created"})
#: Changes no state, and is told: who let it go on, and when.
_OPENED = "GateOpened"


class Spell(Struct, frozen=True, kw_only=True, rename="camel"):
    """A stretch of time in one state, in milliseconds; `until` None: it lasts.

    `reasons`: what the group waited for, the most fundamental first. `note`: what began it, where
    the state does not say it: who took its place, how it ended, which gate was opened by whom.
    """

    at: int
    until: int | None
    phase: PodGroupPhase
    reasons: tuple[str, ...] = ()
    note: str = ""

    def lasted(self, now_ms: int) -> int:
        """How long, up to now."""
        return (now_ms if self.until is None else self.until) - self.at

    @property
    def came_back(self) -> bool:
        """Whether it begins with the group being sent back."""
        return self.note.partition(":")[0] in _LEFT


def spells_of(events: Iterable[Event], since: int) -> list[Spell]:
    """The states of a group that was created at `since`, from its events, oldest first."""
    found: list[Spell] = []
    for event in _of_this_one(list(events), since):
        before = found[-1] if found else None
        phase = _PHASES.get(event.reason)
        if event.reason == _OPENED:
            phase = PodGroupPhase.PENDING if before is None else before.phase
        if phase is None:
            continue
        spell = _spell(event, phase, before)
        if found and found[-1].at == event.at:
            # What begins and ends at one instant was no state.
            spell = structs.replace(spell, note=found[-1].note or spell.note)
            found.pop()
        found.append(spell)
    return _joined(found)


def _of_this_one(events: list[Event], since: int) -> Iterator[Event]:
    """Without those of a former group of that name, whose successor was submitted after them.

    Who submits and who schedules may have clocks that differ by some milliseconds: what is said to
    come before the beginning comes with it.
    """
    begins = [place for place, event in enumerate(events) if event.reason in _BEGINS]
    if not begins:
        yield from (event for event in events if event.at >= since)
        return
    for event in events[begins[-1] :]:
        at = max(event.at, since)
        yield event if event.at == at else structs.replace(event, at=at)


def _spell(event: Event, phase: PodGroupPhase, before: Spell | None) -> Spell:
    if event.reason in _BEGINS:
        reasons: tuple[str, ...] = (str(Waiting.PENDING_EVALUATION),)
        return Spell(at=event.at, until=None, phase=phase, reasons=reasons)
    if event.reason == "Waiting":
        # An admitted group that no node takes waits, too.
        there = PodGroupPhase.PENDING if before is None else before.phase
        reasons = tuple(part for part in event.message.split(", ") if part)
        return Spell(at=event.at, until=None, phase=there, reasons=reasons)
    if event.reason == _OPENED:
        there_is = () if before is None else before.reasons
        note = f"{_OPENED}: {event.message}"
        return Spell(at=event.at, until=None, phase=phase, reasons=there_is, note=note)
    if event.reason in _LEFT:
        note = f"{event.reason}: {event.message}" if event.message else event.reason
        return Spell(at=event.at, until=None, phase=phase, note=note)
    reasons = (str(Waiting.WAITING_FOR_CHECKS),) if event.reason == "QuotaReserved" else ()
    note = event.message if event.reason not in ("Running", "Unknown") else ""
    return Spell(at=event.at, until=None, phase=phase, reasons=reasons, note=note)


def _joined(spells: Sequence[Spell]) -> list[Spell]:
    """Each until the next begins; neighbours that say the same are one, unless a gate was opened
    between them.
    """
    found: list[Spell] = []
    for spell in spells:
        same = bool(found) and (found[-1].phase, found[-1].reasons) == (spell.phase, spell.reasons)
        if same and not spell.note.startswith(_OPENED):
            continue
        if found:
            found[-1] = structs.replace(found[-1], until=spell.at)
        found.append(spell)
    return found


def waited_for(spells: Iterable[Spell], now_ms: int) -> dict[str, int]:
    """The first reason of each stretch in which the group waited -> for how long in all, the
    longest first, in milliseconds.
    """
    sums: dict[str, int] = {}
    for spell in spells:
        if spell.reasons:
            sums[spell.reasons[0]] = sums.get(spell.reasons[0], 0) + spell.lasted(now_ms)
    return {name: sums[name] for name in sorted(sums, key=lambda name: (-sums[name], name))}
