"""What is recorded of a group whose command at this terminal was lost or left."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import cast

import click
import pytest

from batchq.api.lifecycle import PodPhase
from batchq.api.objects import Pod, PodGroup, key_of
from batchq.api.views import Result
from batchq.cli.allocation import _cancelled_on_error, _ended
from batchq.cli.foreground import NotedSignals, WatchedGroup
from batchq.cli.main import main
from batchq.client import Client
from batchq.errors import Conflict, WaitTimedOut
from tests.builders import a_group, a_pod


class OneGroup:
    """A client of a server with one group, which has not ended."""

    def __init__(self, group: PodGroup, *pods: Pod) -> None:
        self.reasons: list[str] = []
        self._group = group
        self._pods = pods

    def wait(self, _keys: Sequence[str], *, timeout_s: float) -> list[Result]:
        raise WaitTimedOut("not ended")

    def get(self, _kind: str, _key: str) -> PodGroup:
        return self._group

    def pods(self, _group: PodGroup) -> Sequence[Pod]:
        return self._pods

    def cancel(self, _key: str, *, reason: str) -> None:
        self.reasons.append(reason)


def test_a_group_whose_pod_is_lost_is_cancelled_with_the_pod_and_the_node() -> None:
    group = a_group("g")
    begun = a_pod(group, node="a2", phase=PodPhase.RUNNING)
    lost = a_pod(group, phase=PodPhase.PENDING, last_node="a2", last_reason="NodeLost")
    server = OneGroup(group, lost)
    client = cast("Client", server)
    with pytest.raises(Conflict), _cancelled_on_error(client, key_of(group)):
        _ended(client, key_of(group), [begun], NotedSignals())
    [reason] = server.reasons
    lost_pod = "PodGroup default/g has lost pod g-w-0 on node a2 (NodeLost)"
    assert reason == f"{lost_pod}, and the command that ran in it"


@pytest.mark.parametrize("name", ["run", "alloc"])
def test_a_group_is_cancelled_with_the_command_that_a_signal_ended(name: str) -> None:
    server = OneGroup(a_group("g"))
    signals = NotedSignals()
    signals.note(signal.SIGTERM, None)
    watched = WatchedGroup(cast("Client", server), "default/g", signals, timeout_s=None)
    root = click.Context(main, info_name="batchq")
    with click.Context(click.Command(name), info_name=name, parent=root):
        watched.answer()
    assert server.reasons == [f"`batchq {name}` was ended by SIGTERM"]
    assert watched.exit_code == 143
