"""Gangs with `spec.launch` on a real agent: no command starts early, and each one is warned."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.objects import Launch, Pod, StopWarning
from batchq.api.transaction import Transaction, Write
from batchq.store.node_channels import WakeReason, notify
from tests.daemon.waiting import until
from tests.worker.stage import NODE, WITHIN_S, Stage

pytestmark = pytest.mark.e2e

#: Tells why it is warned, and asks for another round.
WARNED = """
trap 'echo "warned: $(cat "$BATCHQ_STOP_FILE")"; exit 75' USR2
echo up
while :; do sleep 0.1; done
"""
#: Tells that it is warned, and ends when it is told to stop.
PATIENT = """
trap 'echo warned' USR2
trap 'echo stopped; exit 0' TERM
echo up
while :; do sleep 0.1; done
"""
SECOND = 1000


def bind(stage: Stage, *command: str, replicas: int = 1, **spec: Any) -> list[Pod]:
    """Bind the pods of a gang, and wait until the agent has claimed all of them."""
    warn = spec.pop("warn", None)
    group_spec = {"launch": Launch(style="rank", warn=warn), **spec}
    pods = stage.bind(*command, replicas=replicas, group_spec=group_spec)
    until(lambda: all(stage.now(pod).status.address for pod in pods), within_s=WITHIN_S)
    return pods


def complete(stage: Stage, pod: Pod) -> None:
    """Move the pod's group to Running, and tell the node, as the scheduler does."""
    group = stage.group_of(pod)
    status = msgspec.structs.replace(
        group.status, phase=PodGroupPhase.RUNNING, started_at=stage.store.now_ms()
    )
    after = msgspec.structs.replace(group, status=status)
    key, revision = f"default/{group.metadata.name}", group.metadata.revision
    write = Write(kind="PodGroup", key=key, expect=revision, value=after)
    stage.commit(Transaction(subject=key, writes=(write,)))
    notify(stage.store.link, [NODE], WakeReason.CLAIMS)


def test_no_command_starts_before_the_gang_is_complete(stage: Stage) -> None:
    stage.start_agent()
    pods = bind(stage, "sh", "-c", 'echo "$RANK of $WORLD_SIZE"', replicas=2)
    assert [stage.run_of(pod).group for pod in pods] == [0, 0]  # type: ignore[union-attr]
    complete(stage, pods[0])
    assert [stage.ended(pod).status.phase for pod in pods] == [PodPhase.SUCCEEDED] * 2
    assert [stage.output(pod) for pod in pods] == ["0 of 2\n", "1 of 2\n"]


def test_a_pod_that_waits_for_its_gang_is_stopped_without_having_started(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = bind(stage, "echo", "started")
    stage.stop(pod, "GangRestart")
    notify(stage.store.link, [NODE], WakeReason.STOPS)
    status = stage.ended(pod).status
    assert (status.phase, status.reason) == (PodPhase.EVICTED, "GangRestart")
    assert stage.output(pod) == ""


def test_the_files_of_a_gang_are_removed_with_its_pod(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = bind(stage, "sh", "-c", 'cat "$BATCHQ_HOSTFILE"')
    complete(stage, pod)
    stage.ended(pod)
    assert stage.output(pod) == "127.0.0.1 slots=1\n"
    folder = stage.home / "run" / NODE
    until(lambda: not list(folder.glob(f"{pod.metadata.uid}-*")), within_s=WITHIN_S)


def test_a_pod_is_warned_before_its_walltime_and_may_ask_for_another_round(stage: Stage) -> None:
    stage.start_agent()
    # Before it has set its trap, the warning would end it, and a busy machine starts it slowly.
    warn = StopWarning(before=3_595 * SECOND)
    (pod,) = bind(stage, "sh", "-c", WARNED, walltime=3_600 * SECOND, warn=warn)
    complete(stage, pod)
    status = stage.ended(pod).status
    assert (status.phase, status.reason) == (PodPhase.EVICTED, "GangRestart")
    assert (status.exit_code, status.failures) == (75, 0)
    assert stage.output(pod) == "up\nwarned: WalltimeExceeded\n"


def test_a_pod_is_warned_ahead_of_sigterm(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = bind(stage, "sh", "-c", PATIENT, warn=StopWarning())
    complete(stage, pod)
    stage.started(pod, saying="up")
    stage.stop(pod, "Preempted")
    status = stage.ended(pod).status
    assert (status.phase, status.reason, status.exit_code) == (PodPhase.EVICTED, "Preempted", 0)
    assert stage.output(pod) == "up\nwarned\nstopped\n"


def test_a_pod_that_exits_with_75_without_a_warning_has_failed(stage: Stage) -> None:
    stage.start_agent()
    (pod,) = bind(stage, "sh", "-c", "exit 75", warn=StopWarning())
    complete(stage, pod)
    status = stage.ended(pod).status
    assert (status.phase, status.exit_code, status.failures) == (PodPhase.FAILED, 75, 1)
