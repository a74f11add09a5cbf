"""What a consumer promises, each as a function that raises Broken with what it saw instead."""

from __future__ import annotations

from collections.abc import Callable

from batchq.api.lifecycle import PodGroupPhase
from batchq.consumercheck.stage import GRACE_S, OTHERS, Broken, Stage

_COMPLETED, _FAILED, _RUNNING, _PENDING = (
    PodGroupPhase.COMPLETED,
    PodGroupPhase.FAILED,
    PodGroupPhase.RUNNING,
    PodGroupPhase.PENDING,
)
_ALONE_S = 2.0
#: What two consumers share.
_SHARED = tuple(f"shared-{number}" for number in range(6))


def completes(stage: Stage) -> None:
    """A group is claimed, its work run once, and its success reported."""
    stage.submit("plain")
    stage.hire(1)
    stage.await_phase("plain", _COMPLETED)
    if stage.starts("plain") != 1:
        raise Broken(f"the work of plain was started {stage.starts('plain')} times, not once")


def reports_running(stage: Stage) -> None:
    """While the work runs, the group is Running."""
    stage.submit("runs", gated=True)
    stage.hire(1)
    stage.await_work("runs")
    stage.await_phase("runs", _RUNNING)
    stage.open_gate("runs")
    stage.await_phase("runs", _COMPLETED)


def reports_failure(stage: Stage) -> None:
    """Work that fails is reported as failed, and only then."""
    stage.submit("fails", exit_code=3)
    stage.hire(1)
    stage.await_(lambda: stage.group("fails").status.finished_at is not None, "fails has not ended")
    phase = stage.group("fails").status.phase
    if phase != _FAILED:
        raise Broken(f"work that ended with exit code 3 has left the group {phase}, not Failed")


def renews(stage: Stage) -> None:
    """Work that takes longer than the time to live keeps its claim."""
    stage.submit("long", gated=True)
    stage.hire(1)
    stage.await_work("long")
    first = stage.group("long").status.claim.token
    longer_s = stage.ttl_s("long") + GRACE_S + 2
    # The gate opens when the first claim, its grace too, would have been over.
    stage.pause(longer_s)
    stage.open_gate("long")
    stage.await_phase("long", _COMPLETED)
    group = stage.group("long")
    if group.status.claim.token != first or group.status.admission != 1:
        raise Broken(f"its claim lapsed while the work ran for {longer_s:.0f} s")


def stops(stage: Stage) -> None:
    """Told to stop, it stops the work and reports it as evicted; then the group can run again."""
    stage.submit("held", gated=True)
    stage.hire(1)
    stage.await_work("held")
    stage.await_phase("held", _RUNNING)
    stage.client.suspend("held")
    stage.await_(
        lambda: not stage.group("held").status.claim.is_open,
        "suspended, its claim goes on",
        after_s=stage.ttl_s("held") + GRACE_S,
    )
    if stage.works("held"):
        raise Broken("suspended, its work still ran when the claim was over")
    claim = stage.group("held").status.claim
    if claim.phase != "Released":
        raise Broken(f"suspended, its claim ended as {claim.phase}: expected a report of evicted")
    stage.client.resume("held")
    stage.open_gate("held")
    stage.await_phase("held", _COMPLETED)


def shares(stage: Stage) -> None:
    """Two of them never run one group at once, and all groups are run."""
    for name in _SHARED:
        stage.submit(name, gated=True)
    stage.hire(2)
    stage.await_(lambda: any(map(stage.works, _SHARED)), "nobody has started any of six groups")
    # Whoever believes that it is alone has time to start what another has.
    stage.pause(_ALONE_S)
    for name in _SHARED:
        stage.open_gate(name)
    for name in _SHARED:
        stage.await_phase(name, _COMPLETED)
        stage.refuse_twice(name)
        if stage.starts(name) != 1:
            raise Broken(f"the work of {name} was started {stage.starts(name)} times, not once")


def dies_with_its_work(stage: Stage) -> None:
    """Killed in the middle, its work ends too, before anybody else may start it again."""
    stage.submit("killed", gated=True)
    stage.hire(1)
    stage.await_work("killed")
    stage.kill_all()
    stage.await_phase("killed", _PENDING, after_s=stage.ttl_s("killed") + GRACE_S)
    if stage.works("killed"):
        raise Broken("its work ran on when its claim had lapsed: another would have run it twice")


def is_replaced(stage: Stage) -> None:
    """Killed in the middle, its claim lapses, and another instance finishes the group."""
    stage.submit("taken-over", gated=True)
    stage.hire(1)
    stage.await_work("taken-over")
    stage.kill_all()
    stage.await_phase("taken-over", _PENDING, after_s=stage.ttl_s("taken-over") + GRACE_S)
    stage.open_gate("taken-over")
    stage.hire(1)
    stage.await_phase("taken-over", _COMPLETED)


def keeps_to_its_queue(stage: Stage) -> None:
    """Groups of other queues, and those that batchq runs itself, are left alone."""
    stage.submit("not-yours", queue=OTHERS)
    stage.submit_ours("batchqs-own")
    stage.submit("yours")
    stage.hire(1)
    stage.await_phase("yours", _COMPLETED)
    stage.submit("yours-too")
    stage.await_phase("yours-too", _COMPLETED)
    if stage.group("not-yours").status.claim.phase != "None":
        raise Broken("told to serve queue served, it has claimed a group of queue others")
    ours = stage.group("batchqs-own").status
    if ours.phase != _PENDING:
        raise Broken(f"a group that batchq runs itself is {ours.phase}, and there is no node")


#: What is said of each, what it is, and the groups that it leaves behind.
PROMISES: tuple[tuple[str, Callable[[Stage], None], tuple[str, ...]], ...] = (
    ("claims a group, runs it once and reports its success", completes, ("plain",)),
    ("reports running while the work runs", reports_running, ("runs",)),
    ("reports failed work as failed", reports_failure, ("fails",)),
    ("renews its claim while the work outlasts it", renews, ("long",)),
    ("stops the work when the group is suspended, and gives it back", stops, ("held",)),
    ("two of them never run one group at once", shares, _SHARED),
    ("killed (-9), its work ends with it", dies_with_its_work, ("killed",)),
    ("killed (-9), its claim lapses and another finishes the group", is_replaced, ("taken-over",)),
    (
        "leaves other queues' and batchq's own groups alone",
        keeps_to_its_queue,
        ("not-yours", "batchqs-own", "yours", "yours-too"),
    ),
)
