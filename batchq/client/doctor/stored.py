"""Checks of the ledger: what it says against what the objects say, counted anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from batchq.api.objects import PodGroup, Unreadable, full_name, key_of
from batchq.api.resources import describe_quantity
from batchq.api.transaction import Event, Ledger
from batchq.client.doctor.system_state import Finding, Level, State, or_ok, unseen
from batchq.core.quota.ledger import title_of
from batchq.store.books import charges_of, limits_of, of_every_namespace, sums_of
from batchq.store.rules import Held

_READS = "reading (`+@read +multi +exec`) of batchq's keys"
_REMEDY = (
    "keep what `batchq doctor -o json` prints and report it: this is a mistake of batchq's, or"
    " somebody else writes its keys. Too much is given back when what holds it has ended"
)


def ledger(state: State) -> tuple[Finding, ...]:
    """The sums are those of the charges, and the charges those of the objects."""
    check, books = "ledger", state.books
    if books is None:
        return _not_compared(state, check)
    counted = sums_of(books.charges)
    findings = list(_differing_sums(books.ledger, counted))
    findings += _differing_charges(charges_of(books.objects), books.charges, _titles(state))
    return or_ok(findings, check, f"{len(books.charges)} charges counted anew, all agree")


def limits(state: State) -> tuple[Finding, ...]:
    """What admissions are held against is what queues, quotas and nodes state."""
    check, books = "limits", state.books
    if books is None:
        return _not_compared(state, check)
    stated = limits_of(books.objects) | of_every_namespace(books.limits)
    findings = [
        _difference(
            check,
            f"{scope} {name}",
            _told(name, books.limits.get(scope, {}).get(name)),
            _told(name, stated.get(scope, {}).get(name)),
            "apply the object again (`batchq apply`); if it stays, keep `batchq doctor -o json`"
            " and report it",
        )
        for scope in sorted({*stated, *books.limits})
        for name in sorted({*stated.get(scope, {}), *books.limits.get(scope, {})})
        if stated.get(scope, {}).get(name) != books.limits.get(scope, {}).get(name)
    ]
    return or_ok(findings, check, f"{len(books.limits)} limits, all as their objects state them")


def _differing_sums(kept: Ledger, counted: Ledger) -> Iterator[Finding]:
    for scope in sorted({*kept, *counted}):
        ours, theirs = kept.get(scope, {}), counted.get(scope, {})
        for name in sorted({*ours, *theirs}):
            if ours.get(name, 0) != theirs.get(name, 0):
                yield _difference(
                    "ledger",
                    f"{scope} {name}",
                    f"the sum is {describe_quantity(name, ours.get(name, 0))}",
                    f"{describe_quantity(name, theirs.get(name, 0))}, as its charges add up",
                    _REMEDY,
                )


def _differing_charges(
    expected: Mapping[str, Held], found: Mapping[str, Held], titles: Mapping[str, str]
) -> Iterator[Finding]:
    nothing: Held = ((), {})
    for holder in sorted({*expected, *found}):
        (scopes, should), (in_scopes, does) = (
            expected.get(holder, nothing),
            found.get(holder, nothing),
        )
        subject = _title(holder, titles)
        for name in sorted({*should, *does}):
            if should.get(name, 0) != does.get(name, 0):
                yield _difference(
                    "ledger",
                    f"{subject} {name}",
                    f"is charged {describe_quantity(name, does.get(name, 0))}",
                    f"{describe_quantity(name, should.get(name, 0))}, as its object says",
                    _REMEDY,
                )
        if should and does and set(scopes) != set(in_scopes):
            yield _difference(
                "ledger",
                subject,
                f"is charged in {', '.join(in_scopes)}",
                ", ".join(scopes),
                _REMEDY,
            )


def _titles(state: State) -> dict[str, str]:
    """What people call each holder."""
    titles = {f"node:{node.metadata.name}": f"Node {node.metadata.name}" for node in state.nodes()}
    for group in state.groups():
        title = f"PodGroup {full_name(group)}"
        titles[f"group:{group.metadata.uid}"] = title
        titles[f"object:{group.metadata.uid}"] = f"{title} (as an object)"
    for pod in state.pods():
        titles[f"pod:{pod.metadata.uid}"] = f"Pod {full_name(pod)}"
    return titles


def _title(holder: str, titles: Mapping[str, str]) -> str:
    """Also of `group:<uid>:<scope>`: so a group is charged where those that it waits for to end
    are charged beside it.
    """
    kind, _, rest = holder.partition(":")
    uid, _, scope = rest.partition(":")
    group = titles.get(f"{kind}:{uid}")
    if holder in titles or group is None:
        return titles.get(holder, holder)
    return f"{group} (in {title_of(scope)})"


def _told(name: str, units: int | None) -> str:
    return "no limit" if units is None else describe_quantity(name, units)


def _difference(check: str, subject: str, found: str, expected: str, remedy: str) -> Finding:
    return Finding(
        check=check,
        level=Level.ERROR,
        subject=subject,
        found=found,
        expected=expected,
        remedy=remedy,
    )


def _not_compared(state: State, check: str) -> tuple[Finding, ...]:
    if not state.moving:
        return unseen(check, f"the {check}", _READS)
    return (
        Finding(
            check=check,
            level=Level.NOTE,
            found="not compared: the server is written to faster than it can be read",
            expected="a moment of rest",
            remedy="try again when less is going on",
        ),
    )


_READS_RECORDS = "reading (`+@read`) of batchq's keys"


def records(state: State) -> tuple[Finding, ...]:
    """Everything that is stored can be read."""
    check = "records"
    if state.unreadable is None:
        return unseen(check, "the records", _READS_RECORDS)
    findings = [_finding(check, one) for one in state.unreadable]
    findings += [_mended(check, one) for one in state.mended]
    findings += _of_one_uid(check, state)
    return or_ok(findings, check, "all can be read")


def _of_one_uid(check: str, state: State) -> list[Finding]:
    """Groups with the uid of another one: the scheduler goes by the first of them by name."""
    first: dict[str, PodGroup] = {}
    findings = []
    for group in state.groups():
        other = first.setdefault(group.metadata.uid, group)
        if other is not group:
            name, namespace = group.metadata.name, group.metadata.namespace
            findings.append(
                Finding(
                    check=check,
                    level=Level.ERROR,
                    subject=f"PodGroup {key_of(group)}",
                    found=f"has the uid of PodGroup {key_of(other)}, and never starts",
                    expected="a uid of its own",
                    remedy="delete it, and submit it again:"
                    f" `batchq delete podgroup {name} -n {namespace}`",
                )
            )
    return findings


def _mended(check: str, one: Event) -> Finding:
    return Finding(
        check=check,
        level=Level.NOTE,
        subject=f"{one.kind} {one.key}",
        found=f"could not be read, and was mended by the leader: {one.message}",
        expected="what batchq writes",
        remedy="nothing, it is right again; find out who writes past batchq (`ACL LOG`, `MONITOR`)",
    )


def _finding(check: str, one: Unreadable) -> Finding:
    return Finding(
        check=check,
        # An event is there for people alone.
        level=Level.NOTE if one.kind == "Event" else Level.ERROR,
        subject=f"{one.kind} {one.key}".strip(),
        found=f"is unreadable, and left out of everything: {one.why}",
        expected="what batchq writes",
        remedy=_remedy(one),
    )


def _remedy(one: Unreadable) -> str:
    if one.is_object:
        return f"delete it, and submit or apply it again: `{one.deletion}`"
    return one.remedy
