"""Checks of the server, of its stored data (ledger, limits, records), and of the installation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import structs

from batchq.api.notation import MINUTE, SECOND, describe_age
from batchq.api.objects import PodGroup, Unreadable, full_name, key_of
from batchq.api.resources import describe_quantity
from batchq.api.transaction import Event, Ledger
from batchq.client.doctor.system_state import Finding, Level, State, ok, or_ok, unseen
from batchq.core.quota.ledger import title_of
from batchq.store.books import charges_of, limits_of, of_every_namespace, sums_of
from batchq.store.inspection import ENTRY
from batchq.store.rules import Held

OLDEST = (6, 2)
#: The first version whose ACL rules distinguish reading a key from writing it, as conf/acl does.
ACL_FILES = (7, 0)
SKEW_MS = 1 * SECOND
SLOW_US, HANGING_US = 20_000, 500_000
RESTARTED_MS = 10 * MINUTE
NEARLY_FULL, NEARLY_ALL = 0.8, 0.8

_INFO = "INFO (`+info`)"


def version(state: State) -> tuple[Finding, ...]:
    """Redis 6.2 or later, or Valkey, not part of a cluster."""
    server = state.server
    if not server.informed:
        return unseen("the server's version", _INFO)
    if server.cluster:
        found = f"{server.version}, part of a cluster"
        remedy = "connect to a single server: RQ does not work on a cluster"
        return _one(Level.ERROR, found, "a single server", remedy)
    if server.numbers < OLDEST:
        remedy = "upgrade Redis, or use Valkey, or the server that comes with batchq"
        return _one(Level.ERROR, server.version, "Redis 6.2 or later, or Valkey", remedy)
    if server.numbers < ACL_FILES:
        remedy = "upgrade before you create separate users for schedulers, workers and people"
        expected = "7.0 or later, for the ACL files of conf/acl"
        return _one(Level.NOTE, server.version, expected, remedy)
    return ok(server.version)


def role(state: State) -> tuple[Finding, ...]:
    """The server is a primary, which accepts writes."""
    found = state.server.role
    if not found:
        return unseen("whether the server is a primary", _INFO)
    if found == "primary":
        return ok(found)
    remedy = "connect to the primary; with sentinels, by a redis+sentinel:// URL"
    return _one(Level.ERROR, found, "primary", remedy)


def eviction(state: State) -> tuple[Finding, ...]:
    """A full server refuses writes instead of evicting keys."""
    found = state.server.maxmemory_policy
    if found is None:
        return unseen("maxmemory-policy", _INFO)
    if found == "noeviction":
        return ok("maxmemory-policy noeviction")
    remedy = "CONFIG SET maxmemory-policy noeviction, and write it into the server's file"
    return _one(Level.ERROR, f"maxmemory-policy {found}: groups may vanish", "noeviction", remedy)


def evicted(state: State) -> tuple[Finding, ...]:
    """No key was evicted."""
    count = state.server.evicted_keys
    if count is None:
        return unseen("evicted_keys", _INFO)
    if count == 0:
        return ok("no key was evicted")
    remedy = "set maxmemory-policy noeviction; then see `ledger` below for what is missing"
    return _one(Level.ERROR, f"{count} keys were evicted since the start", "0", remedy)


def persistence(state: State) -> tuple[Finding, ...]:
    """Acknowledged writes are in a file."""
    server = state.server
    if server.aof is None:
        return unseen("whether there is an append-only file", _INFO)
    if not server.aof:
        remedy = "CONFIG SET appendonly yes, and write it into the server's file"
        found = "appendonly no: a restart loses all since the last RDB file"
        return _one(Level.WARNING, found, "appendonly yes", remedy)
    match server.appendfsync:
        case "always":
            return ok("appendonly yes, appendfsync always")
        case "everysec":
            found = "appendfsync everysec: a power cut loses up to two seconds"
            remedy = "nothing, or CONFIG SET appendfsync always, which makes each write wait"
            return _one(Level.NOTE, found, "always, where nothing may be lost", remedy)
        case "no":
            found = "appendfsync no: a power cut loses what the kernel has not written, ~30 s"
            remedy = "CONFIG SET appendfsync everysec (or always), and write it into its file"
            return _one(Level.WARNING, found, "everysec or always", remedy)
        case _:
            return unseen("appendfsync", "CONFIG GET (`+config|get`)")


def writing(state: State) -> tuple[Finding, ...]:
    """The server's last writes to its files succeeded."""
    server = state.server
    if server.aof_write_ok is None and server.rdb_save_ok is None:
        return unseen("whether the server's last writes to disk succeeded", _INFO)
    disk = f"the disk of {server.folder}" if server.folder else "its disk"
    remedy = f"free {disk}, or correct its permissions; see the server's log"
    findings: tuple[Finding, ...] = ()
    if server.aof_write_ok is False:
        found = "the last write failed: writes are refused until one succeeds"
        findings += _one(Level.ERROR, found, "ok", remedy, "append-only file")
    if server.rdb_save_ok is False:
        level = Level.WARNING if server.aof else Level.ERROR
        findings += _one(level, "the last save failed", "ok", remedy, "RDB file")
    return or_ok(findings, "the last writes to its files succeeded")


def memory(state: State) -> tuple[Finding, ...]:
    """The server has free memory."""
    server = state.server
    if server.used_bytes is None or server.maxmemory_bytes is None:
        return unseen("how much memory the server uses", _INFO)
    used = describe_quantity("memory", server.used_bytes)
    if not server.maxmemory_bytes:
        return ok(f"{used} used, no limit")
    found = f"{used} used of {describe_quantity('memory', server.maxmemory_bytes)}"
    if server.used_bytes < NEARLY_FULL * server.maxmemory_bytes:
        return ok(found)
    remedy = "raise maxmemory, or delete finished groups (`batchq delete`, a shorter ttl)"
    return _one(Level.WARNING, found, f"below {NEARLY_FULL:.0%}", remedy)


def connections(state: State) -> tuple[Finding, ...]:
    """The server has free connections and has rejected none."""
    server = state.server
    if server.clients is None:
        return unseen("how many clients the server has", _INFO)
    most = server.maxclients
    found = f"{server.clients} clients" + (f" of {most}" if most else "")
    remedy = "raise maxclients (and the server's limit of open files)"
    if most and server.clients >= NEARLY_ALL * most:
        return _one(Level.WARNING, found, f"below {NEARLY_ALL:.0%}", remedy)
    if server.rejected_connections:
        found = f"{server.rejected_connections} connections were rejected since the start"
        return _one(Level.WARNING, found, "0", remedy)
    return ok(found)


def latency(state: State) -> tuple[Finding, ...]:
    """The server answers quickly."""
    answers = sorted(state.server.answers_us)
    median = answers[len(answers) // 2]
    found = f"an answer takes {median / 1000:.1f} ms, at most {answers[-1] / 1000:.1f} ms"
    remedy = "see SLOWLOG GET and LATENCY DOCTOR on the server, its swap, and the network to it"
    if median >= HANGING_US:
        return _one(Level.WARNING, found, "below 500 ms", remedy)
    if median >= SLOW_US:
        return _one(Level.NOTE, found, "below 20 ms", remedy)
    return ok(found)


def uptime(state: State) -> tuple[Finding, ...]:
    """The server was not restarted recently."""
    seconds = state.server.uptime_s
    if seconds is None:
        return unseen("the server's uptime", _INFO)
    found = f"up for {describe_age(seconds * SECOND)}"
    if seconds * SECOND >= RESTARTED_MS:
        return ok(found)
    remedy = "nothing if you started it; else see its log, and the kernel's for a killed process"
    return _one(Level.NOTE, f"{found}: it was restarted recently", "10 minutes or more", remedy)


def clock(state: State) -> tuple[Finding, ...]:
    """The clocks of this machine and the server agree."""
    skew = state.server.skew_ms
    if abs(skew) <= SKEW_MS:
        return ok(f"this machine's clock is within {SKEW_MS} ms of the server's ({skew} ms)")
    side = "ahead of" if skew > 0 else "behind"
    found = f"this machine's clock is {describe_age(abs(skew))} {side} the server's"
    remedy = "synchronise both (NTP). Leases do not depend on it; times in logs would mislead"
    return _one(Level.WARNING, found, "at most 1 s apart", remedy)


def _one(
    level: Level, found: str, expected: str, remedy: str, subject: str = ""
) -> tuple[Finding, ...]:
    return (
        Finding(
            level=level,
            subject=subject,
            found=found,
            expected=expected,
            remedy=remedy,
        ),
    )


LITTLE_BYTES = 1024**3
NOTHING_BYTES = 100 * 1024**2


def home(state: State) -> tuple[Finding, ...]:
    """The embedded server's data has free disk space and is private."""
    facts = state.home
    if facts is None:
        return ok("the server is not this machine's embedded one")
    free = describe_quantity("memory", facts.free_bytes)
    findings = []
    if facts.free_bytes < LITTLE_BYTES:
        findings.append(
            Finding(
                level=Level.ERROR if facts.free_bytes < NOTHING_BYTES else Level.WARNING,
                subject=facts.path,
                found=f"{free} are free on its disk",
                expected=describe_quantity("memory", LITTLE_BYTES),
                remedy="free the disk, or move the home: stop everything (`batchq down`), copy the"
                " folder, and set BATCHQ_HOME to the copy",
            )
        )
    findings += [
        Finding(
            level=Level.WARNING,
            subject=path,
            found=f"its mode is {mode:o}: other users may read it",
            expected="700",
            remedy=f"chmod 700 {path}",
        )
        for path, mode in facts.open_to.items()
    ]
    return or_ok(findings, f"{facts.path}: {free} free, closed to others")


def libraries(state: State) -> tuple[Finding, ...]:
    """The versions of RQ and redis-py are supported."""
    findings = [
        Finding(
            level=Level.ERROR,
            subject=one.name,
            found=f"{one.version} is installed",
            expected=f"{_dotted(one.least)} or later, below {_dotted(one.below)}",
            remedy=f"pip install '{one.name}>={_dotted(one.least)},<{_dotted(one.below)}'",
        )
        for one in state.libraries
        if not one.least <= _numbers(one.version) < one.below
    ]
    installed = ", ".join(f"{one.name} {one.version}" for one in state.libraries)
    return or_ok(findings, installed)


def batchq(state: State) -> tuple[Finding, ...]:
    """The schedulers have this batchq's version."""
    others = sorted(
        {one.version for one in (state.schedulers.there if state.schedulers else ())}
        - {state.version}
    )
    if not others:
        return ok(f"batchq {state.version}")
    return (
        Finding(
            level=Level.NOTE,
            found=f"this is batchq {state.version}, schedulers are {', '.join(others)}",
            expected="one version",
            remedy="upgrade the older of the two: schedulers first, then agents, then clients",
        ),
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


_READS = "reading (`+@read +multi +exec`) of batchq's keys"
_REMEDY = (
    "save the output of `batchq doctor -o json` and report it: either batchq has a bug, or another"
    " program writes its keys. An excess charge is returned when its holder has ended"
)


def ledger(state: State) -> tuple[Finding, ...]:
    """The ledger's sums match its charges, and the charges match the objects."""
    books = state.books
    if books is None or not books.is_consistent:
        return _not_compared(state)
    counted = sums_of(books.charges)
    findings = list(_differing_sums(books.ledger, counted))
    findings += _differing_charges(charges_of(books.objects), books.charges, _titles(state))
    return or_ok(findings, f"{len(books.charges)} charges recounted, all agree")


def limits(state: State) -> tuple[Finding, ...]:
    """The limits of admissions match queues, quotas and nodes."""
    books = state.books
    if books is None or not books.is_consistent:
        return _not_compared(state)
    stated = limits_of(books.objects) | of_every_namespace(books.limits)
    findings = [
        _difference(
            f"{scope} {name}",
            _limit_text(name, books.limits.get(scope, {}).get(name)),
            _limit_text(name, stated.get(scope, {}).get(name)),
            "apply the object again (`batchq apply`); if the difference stays, save the output of"
            " `batchq doctor -o json` and report it",
        )
        for scope in sorted({*stated, *books.limits})
        for name in sorted({*stated.get(scope, {}), *books.limits.get(scope, {})})
        if stated.get(scope, {}).get(name) != books.limits.get(scope, {}).get(name)
    ]
    return or_ok(findings, f"{len(books.limits)} limits, all as their objects state them")


def _differing_sums(kept: Ledger, counted: Ledger) -> Iterator[Finding]:
    for scope in sorted({*kept, *counted}):
        ours, theirs = kept.get(scope, {}), counted.get(scope, {})
        for name in sorted({*ours, *theirs}):
            if ours.get(name, 0) != theirs.get(name, 0):
                yield _difference(
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
                    f"{subject} {name}",
                    f"is charged {describe_quantity(name, does.get(name, 0))}",
                    f"{describe_quantity(name, should.get(name, 0))}, recounted from the objects",
                    _REMEDY,
                )
        if should and does and set(scopes) != set(in_scopes):
            yield _difference(
                subject,
                f"is charged in {', '.join(in_scopes)}",
                ", ".join(scopes),
                _REMEDY,
            )


def _titles(state: State) -> dict[str, str]:
    """Return a readable name for each holder."""
    titles = {f"node:{node.metadata.name}": f"Node {node.metadata.name}" for node in state.nodes()}
    for group in state.groups():
        title = f"PodGroup {full_name(group)}"
        titles[f"group:{group.metadata.uid}"] = title
        titles[f"object:{group.metadata.uid}"] = f"{title} (as an object)"
    for pod in state.pods():
        titles[f"pod:{pod.metadata.uid}"] = f"Pod {full_name(pod)}"
    return titles


def _title(holder: str, titles: Mapping[str, str]) -> str:
    """Return the name of a holder; `group:<uid>:<scope>` is a group's extra charge, in the scope of
    groups whose end it waits for.
    """
    kind, _, rest = holder.partition(":")
    uid, _, scope = rest.partition(":")
    group = titles.get(f"{kind}:{uid}")
    if holder in titles or group is None:
        return titles.get(holder, holder)
    return f"{group} (in {title_of(scope)})"


def _limit_text(name: str, units: int | None) -> str:
    return "no limit" if units is None else describe_quantity(name, units)


def _difference(subject: str, found: str, expected: str, remedy: str) -> Finding:
    return Finding(
        level=Level.ERROR,
        subject=subject,
        found=found,
        expected=expected,
        remedy=remedy,
    )


def _not_compared(state: State) -> tuple[Finding, ...]:
    if state.books is not None:
        found = "not compared: keys are damaged"
        expected, remedy = "no damaged key", "repair them first: see the check `records`"
    elif state.moving:
        found = "not compared: the server is written to faster than it can be read"
        expected, remedy = "fewer writes", "try again when the server is less busy"
    else:
        return unseen("the objects and what they are charged", _READS)
    return (Finding(level=Level.NOTE, found=found, expected=expected, remedy=remedy),)


#: Unreadable records of one kind that are listed.
MOST_LISTED = 1_000
_READS_RECORDS = "reading (`+@read`) of batchq's keys"


def records(state: State) -> tuple[Finding, ...]:
    """Every stored record can be read."""
    if state.unreadable is None:
        return unseen("the records", _READS_RECORDS)
    findings = _unreadable(state.unreadable)
    findings += [_mended(one) for one in state.mended]
    findings += _shared_uids(state)
    return or_ok(findings, "all can be read")


def _unreadable(found: Sequence[Unreadable]) -> list[Finding]:
    """Return a finding for each unreadable record, and one for each kind with more of them."""
    of_kind: dict[str, list[Unreadable]] = {}
    for one in found:
        of_kind.setdefault(one.kind, []).append(one)
    findings = []
    for kind, all_ in of_kind.items():
        findings += [_finding(one) for one in all_[:MOST_LISTED]]
        if (more := len(all_) - MOST_LISTED) > 0:
            findings.append(_not_listed(kind, all_[MOST_LISTED], more))
    return findings


def _not_listed(kind: str, first: Unreadable, more: int) -> Finding:
    one = _finding(first)
    return structs.replace(
        one,
        subject=kind,
        found=f"{more:,} more are unreadable and ignored, the first {first.key}: {first.why}",
        remedy="delete those that are listed, and run the doctor again"
        if first.is_object
        else one.remedy,
    )


def _shared_uids(state: State) -> list[Finding]:
    """Return findings for groups that share a uid; the scheduler uses the first of them by name."""
    first: dict[str, PodGroup] = {}
    findings = []
    for group in state.groups():
        other = first.setdefault(group.metadata.uid, group)
        if other is not group:
            name, namespace = group.metadata.name, group.metadata.namespace
            findings.append(
                Finding(
                    level=Level.ERROR,
                    subject=f"PodGroup {key_of(group)}",
                    found=f"has the uid of PodGroup {key_of(other)}, and never starts",
                    expected="a uid of its own",
                    remedy="delete it, and submit it again:"
                    f" `batchq delete podgroup {name} -n {namespace}`",
                )
            )
    return findings


def _mended(one: Event) -> Finding:
    by = "the node's agent, or the leader" if one.kind == "Node" else "the leader"
    return Finding(
        level=Level.NOTE,
        subject=f"{one.kind} {one.key}",
        found=f"could not be read, and was repaired by {by}: {one.message}",
        expected="what batchq writes",
        remedy="nothing, it is repaired; find out which program wrote it (`ACL LOG`, `MONITOR`)",
    )


def _finding(one: Unreadable) -> Finding:
    return Finding(
        # Readers of a stream skip it.
        level=Level.NOTE if one.kind == ENTRY else Level.ERROR,
        subject=f"{one.kind} {one.key}".strip(),
        # In parentheses, since a reason may say itself what was expected.
        found=f"is unreadable and ignored ({one.why})",
        expected="a record as batchq writes it",
        remedy=_remedy(one),
    )


def _remedy(one: Unreadable) -> str:
    if one.is_object:
        return f"delete it, and submit or apply it again: `{one.deletion}`"
    return one.remedy
