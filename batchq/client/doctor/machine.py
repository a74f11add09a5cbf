"""Checks of this machine: the embedded server's folder, and the libraries that are installed."""

from __future__ import annotations

from batchq.api.quantity import describe_quantity
from batchq.client.doctor.finding import Finding, Level, ok, or_ok
from batchq.client.doctor.state import State

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
