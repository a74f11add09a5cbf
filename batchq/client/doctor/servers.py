"""Checks of the server: whether it can be relied on to keep what it has acknowledged."""

from __future__ import annotations

from batchq.api.resources import describe_quantity
from batchq.api.times import MINUTE, SECOND, describe_age
from batchq.client.doctor.system_state import Finding, Level, State, ok, or_ok, unseen

OLDEST = (6, 2)
#: From then on an ACL file can tell reading a key from writing it, as conf/acl does.
ACL_FILES = (7, 0)
SKEW_MS = 1 * SECOND
SLOW_US, HANGING_US = 20_000, 500_000
RESTARTED_MS = 10 * MINUTE
NEARLY_FULL, NEARLY_ALL = 0.8, 0.8

_INFO = "INFO (`+info`)"


def version(state: State) -> tuple[Finding, ...]:
    """Redis 6.2 or later, or Valkey, by itself."""
    server, check = state.server, "version"
    if not server.informed:
        return unseen(check, "the server's version", _INFO)
    if server.cluster:
        found = f"{server.version}, part of a cluster"
        remedy = "connect to a server by itself: RQ does not work on a cluster"
        return _one(check, Level.ERROR, found, "a server by itself", remedy)
    if server.numbers < OLDEST:
        remedy = "upgrade Redis, or use Valkey, or the server that comes with batchq"
        return _one(check, Level.ERROR, server.version, "Redis 6.2 or later, or Valkey", remedy)
    if server.numbers < ACL_FILES:
        remedy = "upgrade before you give schedulers, workers and people users of their own"
        expected = "7.0 or later, for the ACL files of conf/acl"
        return _one(check, Level.NOTE, server.version, expected, remedy)
    return ok(check, server.version)


def role(state: State) -> tuple[Finding, ...]:
    """The primary, which can be written to."""
    check, found = "role", state.server.role
    if not found:
        return unseen(check, "whether the server is a primary", _INFO)
    if found == "primary":
        return ok(check, found)
    remedy = "connect to the primary; with sentinels, by a redis+sentinel:// URL"
    return _one(check, Level.ERROR, found, "primary", remedy)


def eviction(state: State) -> tuple[Finding, ...]:
    """A full server must refuse writes, not forget what it keeps."""
    check, found = "eviction", state.server.maxmemory_policy
    if found is None:
        return unseen(check, "maxmemory-policy", _INFO)
    if found == "noeviction":
        return ok(check, "maxmemory-policy noeviction")
    remedy = "CONFIG SET maxmemory-policy noeviction, and write it into the server's file"
    return _one(
        check, Level.ERROR, f"maxmemory-policy {found}: groups may vanish", "noeviction", remedy
    )


def evicted(state: State) -> tuple[Finding, ...]:
    """No key has been thrown away."""
    check, count = "evicted", state.server.evicted_keys
    if count is None:
        return unseen(check, "evicted_keys", _INFO)
    if count == 0:
        return ok(check, "no key was evicted")
    remedy = "set maxmemory-policy noeviction; then see `ledger` below for what is missing"
    return _one(check, Level.ERROR, f"{count} keys were evicted since the start", "0", remedy)


def persistence(state: State) -> tuple[Finding, ...]:
    """What was acknowledged is in a file."""
    check, server = "persistence", state.server
    if server.aof is None:
        return unseen(check, "whether there is an append-only file", _INFO)
    if not server.aof:
        remedy = "CONFIG SET appendonly yes, and write it into the server's file"
        found = "appendonly no: a restart loses all since the last RDB file"
        return _one(check, Level.WARNING, found, "appendonly yes", remedy)
    match server.appendfsync:
        case "always":
            return ok(check, "appendonly yes, appendfsync always")
        case "everysec":
            found = "appendfsync everysec: a power cut loses up to two seconds"
            remedy = "nothing, or CONFIG SET appendfsync always, which makes each write wait"
            return _one(check, Level.NOTE, found, "always, where nothing may be lost", remedy)
        case "no":
            found = "appendfsync no: a power cut loses what the kernel has not written, ~30 s"
            remedy = "CONFIG SET appendfsync everysec (or always), and write it into its file"
            return _one(check, Level.WARNING, found, "everysec or always", remedy)
        case _:
            return unseen(check, "appendfsync", "CONFIG GET (`+config|get`)")


def writing(state: State) -> tuple[Finding, ...]:
    """Its last attempts to write its files went well."""
    check, server = "writing", state.server
    if server.aof_write_ok is None and server.rdb_save_ok is None:
        return unseen(check, "how the server's last writes to its disk went", _INFO)
    remedy = "see the server's log; free its disk, or mend its permissions"
    findings: tuple[Finding, ...] = ()
    if server.aof_write_ok is False:
        found = "the last write failed: writes are refused until one succeeds"
        findings += _one(check, Level.ERROR, found, "ok", remedy, "append-only file")
    if server.rdb_save_ok is False:
        level = Level.WARNING if server.aof else Level.ERROR
        findings += _one(check, level, "the last save failed", "ok", remedy, "RDB file")
    return or_ok(findings, check, "the last writes to its files went well")


def memory(state: State) -> tuple[Finding, ...]:
    """There is room left."""
    check, server = "memory", state.server
    if server.used_bytes is None or server.maxmemory_bytes is None:
        return unseen(check, "how much memory the server uses", _INFO)
    used = describe_quantity("memory", server.used_bytes)
    if not server.maxmemory_bytes:
        return ok(check, f"{used} used, no limit")
    found = f"{used} used of {describe_quantity('memory', server.maxmemory_bytes)}"
    if server.used_bytes < NEARLY_FULL * server.maxmemory_bytes:
        return ok(check, found)
    remedy = "raise maxmemory, or delete finished groups (`batchq delete`, a shorter ttl)"
    return _one(check, Level.WARNING, found, f"below {NEARLY_FULL:.0%}", remedy)


def connections(state: State) -> tuple[Finding, ...]:
    """There are connections left, and nobody was turned away."""
    check, server = "connections", state.server
    if server.clients is None:
        return unseen(check, "how many clients the server has", _INFO)
    most = server.maxclients
    found = f"{server.clients} clients" + (f" of {most}" if most else "")
    remedy = "raise maxclients (and the server's limit of open files)"
    if most and server.clients >= NEARLY_ALL * most:
        return _one(check, Level.WARNING, found, f"below {NEARLY_ALL:.0%}", remedy)
    if server.rejected_connections:
        found = f"{server.rejected_connections} connections were turned away since the start"
        return _one(check, Level.WARNING, found, "0", remedy)
    return ok(check, found)


def latency(state: State) -> tuple[Finding, ...]:
    """It answers soon."""
    check = "latency"
    pings = sorted(state.server.pings_us)
    median = pings[len(pings) // 2]
    found = f"PING takes {median / 1000:.1f} ms, at most {pings[-1] / 1000:.1f} ms"
    remedy = "see SLOWLOG GET and LATENCY DOCTOR on the server, its swap, and the network to it"
    if median >= HANGING_US:
        return _one(check, Level.WARNING, found, "below 500 ms", remedy)
    if median >= SLOW_US:
        return _one(check, Level.NOTE, found, "below 20 ms", remedy)
    return ok(check, found)


def uptime(state: State) -> tuple[Finding, ...]:
    """It has been up for a while."""
    check, seconds = "uptime", state.server.uptime_s
    if seconds is None:
        return unseen(check, "since when the server is up", _INFO)
    found = f"up for {describe_age(seconds * SECOND)}"
    if seconds * SECOND >= RESTARTED_MS:
        return ok(check, found)
    remedy = "nothing if you started it; else see its log, and the kernel's for a killed process"
    return _one(check, Level.NOTE, f"{found}: it was started lately", "10 minutes or more", remedy)


def clock(state: State) -> tuple[Finding, ...]:
    """This machine's wall clock and the server's agree."""
    check, skew = "clock", state.server.skew_ms
    if abs(skew) <= SKEW_MS:
        return ok(check, f"this machine's clock is within {SKEW_MS} ms of the server's ({skew} ms)")
    side = "ahead of" if skew > 0 else "behind"
    found = f"this machine's clock is {describe_age(abs(skew))} {side} the server's"
    remedy = "synchronise both (NTP). Leases do not depend on it; times in logs would mislead"
    return _one(check, Level.WARNING, found, "at most 1 s apart", remedy)


def _one(
    check: str, level: Level, found: str, expected: str, remedy: str, subject: str = ""
) -> tuple[Finding, ...]:
    return (
        Finding(
            check=check,
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
    """There is room for the embedded server's data, and nobody else can read it."""
    check, facts = "home", state.home
    if facts is None:
        return ok(check, "the server is not this machine's embedded one")
    free = describe_quantity("memory", facts.free_bytes)
    findings = []
    if facts.free_bytes < LITTLE_BYTES:
        findings.append(
            Finding(
                check=check,
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
            check=check,
            level=Level.WARNING,
            subject=path,
            found=f"its mode is {mode:o}: others may look into it",
            expected="700",
            remedy=f"chmod 700 {path}",
        )
        for path, mode in facts.open_to.items()
    ]
    return or_ok(findings, check, f"{facts.path}: {free} free, closed to others")


def libraries(state: State) -> tuple[Finding, ...]:
    """RQ and redis-py are of versions that batchq works with."""
    check = "libraries"
    findings = [
        Finding(
            check=check,
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
    return or_ok(findings, check, installed)


def batchq(state: State) -> tuple[Finding, ...]:
    """The schedulers are of this batchq's version."""
    check = "batchq"
    others = sorted(
        {one.version for one in (state.schedulers.there if state.schedulers else ())}
        - {state.version}
    )
    if not others:
        return ok(check, f"batchq {state.version}")
    return (
        Finding(
            check=check,
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
