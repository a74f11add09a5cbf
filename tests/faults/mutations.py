"""Faults put into the code that the simulated cluster runs; the seeds must find each of them.

    python -m tests.faults --mutations    the first of 1,000 seeds that finds each one

A mutation replaces a piece of one function's source. The piece must occur exactly once, so that the
table follows the code.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from batchq.api.notation import MINUTE
from batchq.scheduler import node_reports, pod_controller, timers
from batchq.store import memory
from batchq.worker.agent import pod_states
from batchq.worker.agent.state_machine import AgentState
from batchq.worker.host.device_pool import DevicePool
from batchq.worker.workhorse.leases import Lease, Voucher
from batchq.worker.workhorse.supervision import AgentContact
from tests.faults.play import failure_of

#: Without a fault in the code, clusters rest within five minutes of the last fault of the scenario.
_REST_WITHIN_MS = 20 * MINUTE


class Mutation(Struct, frozen=True, kw_only=True):
    """A fault: in the source of `name`, an attribute of `owner`, `before` is replaced by `after`.

    `found_by` is a seed that finds it; with `launches`, if its gangs are distributed jobs, with
    `devices`, if its pods request GPUs, and with `beside`, if its agents run beside the server.
    """

    what: str
    owner: Any
    name: str
    before: str
    after: str
    found_by: int
    launches: bool = False
    devices: bool = False
    beside: bool = False


@contextmanager
def mutated(mutation: Mutation) -> Iterator[None]:
    """Put the fault into the code for a while. Raise ValueError if the code has changed."""
    original = inspect.getattr_static(mutation.owner, mutation.name)
    source = textwrap.dedent(inspect.getsource(original))
    if source.count(mutation.before) != 1:
        raise ValueError(f"{mutation.what}: {mutation.before!r} is not once in {mutation.name}")
    module = sys.modules[original.__module__]
    found: dict[str, Callable[..., Any]] = {}
    changed = "from __future__ import annotations\n" + source.replace(
        mutation.before, mutation.after
    )
    exec(compile(changed, f"<{mutation.what}>", "exec"), vars(module), found)
    # Other modules may have imported a function by its name.
    importers = [one for one in sys.modules.values() if vars(one).get(mutation.name) is original]
    owners = dict.fromkeys([mutation.owner, *importers])
    for owner in owners:
        setattr(owner, mutation.name, found[mutation.name])
    try:
        yield
    finally:
        for owner in owners:
            setattr(owner, mutation.name, original)


def first_seed(place: int, seeds: Iterable[int]) -> int | None:
    """Return the first seed that finds the fault at this place of the table; None if none does."""
    mutation = MUTATIONS[place]
    with mutated(mutation):
        for seed in seeds:
            failure = failure_of(
                seed,
                launches=mutation.launches,
                devices=mutation.devices,
                beside=mutation.beside,
                rest_within_ms=_REST_WITHIN_MS,
            )
            if failure is not None:
                return seed
    return None


def _agent(what: str, name: str, before: str, after: str, *, found_by: int) -> Mutation:
    return Mutation(
        what=what, owner=AgentState, name=name, before=before, after=after, found_by=found_by
    )


MUTATIONS = (
    _agent(
        "a superseded delivery is claimed under the newer attempt's fence",
        "_decide_claim",
        "pod is None or pod.status.attempt != one.attempt.attempt",
        "pod is None",
        found_by=263,
    ),
    _agent(
        "a pod starts before its claim is applied",
        "_decide_claim",
        "if is_ours and one.state == _S.CLAIMED:",
        "if one.state == _S.CLAIMED:",
        found_by=234,
    ),
    _agent(
        "a pod starts as soon as its claim is posted",
        "_on_claims_posted",
        "if pod.status.phase == PodPhase.RUNNING and not pod.spec.ports:",
        "if True:",
        found_by=70,
    ),
    _agent(
        "an attempt whose end is not reported is delivered again",
        "_on_delivery",
        "if attempt in self._pods:",
        "if self.state_of(attempt) in (_S.DELIVERED, _S.CLAIMED, _S.RUNNING):",
        found_by=3,
    ),
    _agent(
        "an end is never forgotten",
        "_on_ends_concluded",
        "self._pods.move(attempt, Cause.SEEN, event.now_ms)",
        "pass",
        found_by=0,
    ),
    Mutation(
        what="an end counts as seen while the server shows the pod running",
        owner=pod_states,
        name="is_over",
        before=" or pod.status.phase not in ON_NODE",
        after=" or pod.status.phase != PodPhase.BOUND",
        found_by=2,
    ),
    _agent(
        "leases of attempts that do not run here stay",
        "_on_node_pods",
        "if stray else []",
        "if False else []",
        found_by=23,
    ),
    _agent(
        "leases of running attempts are ended",
        "_on_node_pods",
        "if attempt not in self._pods)",
        "if True)",
        found_by=0,
    ),
    _agent(
        "lost deliveries are not repeated",
        "_on_node_pods",
        "waiting.append(attempt)",
        "pass",
        found_by=11,
    ),
    _agent(
        "a Running pod that does not run here is not noticed",
        "_on_node_pods",
        "self._missing(attempt, event.now_ms)",
        "pass",
        found_by=0,
    ),
    Mutation(
        what="a pod outlives its lease",
        owner=Lease,
        name="is_lost",
        before="self.ends_at - self.margin_ms",
        after="self.ends_at + self.margin_ms",
        found_by=2,
    ),
    Mutation(
        what="a lease grows with each renewal",
        owner=Lease,
        name="extend",
        before="self.ends_at = asked_at + self._lease_ms",
        after="self.ends_at += self._lease_ms",
        found_by=36,
    ),
    _agent(
        "a superseded attempt is vouched for",
        "_pass_on",
        "instructions.append(DisownPod(answer.attempt))",
        "instructions.append(VouchFor((answer.attempt,), self._renewed_at))",
        found_by=870,
    ),
    _agent(
        "an attempt that has ended keeps its lease",
        "_vouched",
        "if one.has_processes",
        "if True",
        found_by=70,
    ),
    _agent(
        "stops are not passed on",
        "_pass_on",
        'elif answer.word == "stop":',
        "elif False:",
        found_by=25,
    ),
    _agent(
        "a pod is vouched for when its stops are read",
        "_on_stops_announced",
        "stops: Instructions = [ReadStops(_fenced(running))] if running else []",
        "stops = [VouchFor(tuple(one.attempt for one in running), _event.now_ms)]",
        found_by=791,
    ),
    Mutation(
        what="a work-horse takes any sign of its agent for a renewal",
        owner=AgentContact,
        name="hear",
        before="asked_at=self._voucher.asked_at",
        after="asked_at=max(self._voucher.asked_at, self._voucher.ticked_at())",
        found_by=2,
    ),
    Mutation(
        what="a former leader's writes are applied",
        owner=memory.MemoryStore,
        name="_answer",
        before="epoch is not None and epoch != self._epoch",
        after="False",
        found_by=3,
    ),
    Mutation(
        what="an attempt that was bound before a restore is granted",
        owner=node_reports,
        name="claim",
        before="generation_of(report.attempt) < generation",
        after="False",
        found_by=233,
    ),
    Mutation(
        what="the end of a former attempt ends the present one",
        owner=node_reports,
        name="end",
        before=" or pod.status.attempt != report.attempt",
        after="",
        found_by=609,
    ),
    Mutation(
        what="a pod is lost before its lease is over",
        owner=timers,
        name="lease_over_at",
        before="max(ends_at, since(session, ends_at - lease_ms) + lease_ms) + grace",
        after="ends_at - lease_ms // 2",
        found_by=2,
    ),
    Mutation(
        what="a lost pod of a gang that has started is bound again alone",
        owner=pod_controller,
        name="_restart_if_broken",
        before="pod.status.phase == PodPhase.EVICTED and pod.status.started_at is not None",
        after="False",
        found_by=2,
        launches=True,
    ),
    Mutation(
        what="a gang of which a restarted server has forgotten a pod goes on",
        owner=pod_controller,
        name="_is_of_two_runs",
        before="len(started) < group.replicas",
        after="False",
        found_by=225,
        launches=True,
    ),
    Mutation(
        what="a pod claims its place before its image is there",
        owner=pod_states,
        name="pull_for",
        before="one.has_image or",
        after="True or",
        found_by=0,
        launches=True,
    ),
    Mutation(
        what="the pull for a pod that does not wait any more goes on",
        owner=pod_states,
        name="stop_of_pull",
        before="one.state == PodState.PULLING",
        after="False",
        found_by=8,
        launches=True,
    ),
    Mutation(
        what="a device is given to two pods",
        owner=DevicePool,
        name="_units",
        before="sum(units.get(device, 0) for units in self._held.values())",
        after="0",
        found_by=0,
        devices=True,
    ),
    Mutation(
        what="the devices of a pod are not recorded",
        owner=node_reports,
        name="_running",
        before="report.devices and devices_in(pod.spec.requests)",
        after="False",
        found_by=0,
        devices=True,
    ),
    Mutation(
        what="a lease runs out while the server's process is away",
        owner=AgentContact,
        name="is_server_away",
        before="return self._server.is_away()",
        after="return False",
        found_by=1,
        beside=True,
    ),
    Mutation(
        what="a work-horse does not learn from its agent which process the server is",
        owner=Voucher,
        name="server",
        before="return self._table.server()",
        after="return None",
        found_by=1,
        beside=True,
    ),
    Mutation(
        what="no lease starts again after an interruption",
        owner=timers,
        name="lease_over_at",
        before="max(ends_at, since(session, ends_at - lease_ms) + lease_ms) + grace",
        after="ends_at + grace",
        found_by=1,
        beside=True,
    ),
)
