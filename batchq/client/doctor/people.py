"""Checks of who is there: who asks, who leads, who stands by."""

from __future__ import annotations

from batchq.api.times import describe_age
from batchq.client.doctor.finding import Finding, Level, ok, or_ok, unseen
from batchq.client.doctor.state import State
from batchq.client.leading import SchedulerSeen, process_of

_READS = "reading (`+@read`) of batchq's keys"
#: A follower this many writes behind does not follow.
FAR_BEHIND = 10_000

#: The roles of conf/acl, by how the names of their users begin.
_ROLES = ("scheduler", "worker", "submitter", "operator", "readonly", "read-only", "reader")


def permissions(state: State) -> tuple[Finding, ...]:
    """Who asks, and whether that user may read what the doctor reads."""
    check, server = "permissions", state.server
    who = f"user {server.user}" if server.user else "this user (ACL WHOAMI is refused)"
    looks = _looks_like(server.user)
    hidden = [
        what
        for what, seen in (
            ("INFO", server.informed),
            ("CONFIG GET", server.appendfsync is not None),
            ("objects and ledger", state.books is not None or state.moving),
            ("the leader", state.schedulers is not None),
            ("the outbox", state.outbox is not None),
            ("inboxes", state.waiting_facts is not None),
        )
        if not seen
    ]
    if not hidden:
        return ok(check, f"{who}{looks} may read everything that is looked at")
    return (
        Finding(
            check=check,
            level=Level.NOTE,
            subject=server.user or "",
            found=f"{who}{looks} may not read: {', '.join(hidden)}",
            expected="a user who may read all that is looked at",
            remedy="ask again with an operator's credentials: the checks below see less",
        ),
    )


def leader(state: State) -> tuple[Finding, ...]:
    """A scheduler leads."""
    check, found = "leader", state.schedulers
    if found is None:
        return unseen(check, "who leads", _READS)
    now = found.leader
    if now is not None and now.left_ms > 0:
        return ok(
            check,
            f"{now.identity} leads, epoch {now.epoch}; its lease ends in"
            f" {now.left_ms / 1000:.1f} s unless renewed",
        )
    last = "no scheduler leads"
    if now is not None:
        ago = describe_age(-now.left_ms)
        last += f"; {now.identity} did until {ago} ago (epoch {now.epoch})"
    waiting = "; one stands by and should take over at once" if found.followers else ""
    remedy = "start one: `batchq scheduler` (several may run), or `batchq up` on this machine"
    if found.followers:
        remedy = "see the logs of those that stand by, then restart one"
    return (
        Finding(
            check=check,
            level=Level.ERROR,
            found=last + waiting,
            expected="one leads",
            remedy=remedy,
        ),
    )


def schedulers(state: State) -> tuple[Finding, ...]:
    """Those that stand by are of the leader's version, and could begin at once."""
    check, found = "schedulers", state.schedulers
    if found is None:
        return unseen(check, "which schedulers there are", _READS)
    leads = next((one for one in found.there if one.leads), None)
    findings = [
        finding
        for one in found.followers
        for finding in (_of_version(check, one, leads), _of_mirror(check, one))
        if finding is not None
    ]
    findings += [_silent(check, one) for one in found.there if one.role == "silent"]
    count = len(found.followers)
    return or_ok(findings, check, f"{count} stand by" if count != 1 else "1 stands by")


def _silent(check: str, one: SchedulerSeen) -> Finding:
    return Finding(
        check=check,
        level=Level.NOTE,
        subject=process_of(one.identity),
        found=f"has not said for {describe_age(one.seen_ms_ago)} that it is there",
        expected="every few seconds",
        remedy="it was killed, hangs, or has lost the server: see its log, and start it again",
    )


def _of_version(check: str, one: SchedulerSeen, leads: SchedulerSeen | None) -> Finding | None:
    if leads is None or one.version == leads.version:
        return None
    return Finding(
        check=check,
        level=Level.WARNING,
        subject=process_of(one.identity),
        found=f"batchq {one.version} stands by, the leader is {leads.version}",
        expected=f"all of {leads.version}",
        remedy="finish the rolling restart: upgrade and restart the older ones, one at a time",
    )


def _of_mirror(check: str, one: SchedulerSeen) -> Finding | None:
    if one.behind is not None and one.behind < FAR_BEHIND:
        return None
    cold = "has no mirror yet" if one.behind is None else f"is {one.behind} writes behind"
    return Finding(
        check=check,
        level=Level.NOTE if one.behind is None else Level.WARNING,
        subject=process_of(one.identity),
        found=f"stands by and {cold}: it would list everything before its first session",
        expected="a warm mirror",
        remedy="wait a moment; if it stays so, see its log",
    )


def _looks_like(user: str | None) -> str:
    if not user:
        return ""
    if user == "default":
        return " (the server's own, of no role)"
    role = next((role for role in _ROLES if user.startswith(role)), "")
    if not role:
        return ""
    article = "an" if role[0] in "aeiou" else "a"
    return f" (by its name {article} {role})"
