"""The agent's state machine and gangs with `spec.launch`: no pod starts before all have claimed."""

from __future__ import annotations

import pytest
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.node_report import Ended, PodOutcome, StartClaim
from batchq.api.objects import Launch, Pod, PodGroup, PodGroupStatus
from batchq.worker.agent import messages
from batchq.worker.agent.pod_states import PodState, attempt_of
from batchq.worker.agent.state_machine import AgentState
from tests.agents import AUTHOR, LEASE_MS, NODE, changed
from tests.builders import a_group, a_pod

ADDRESS, PORTS = "10.0.0.1", (61_440, 61_441)


def the_gang(*, phase: PodGroupPhase = PodGroupPhase.IN_QUEUE, admission: int = 1) -> PodGroup:
    status = PodGroupStatus(phase=phase, admission=admission)
    return a_group("u1", 2, launch=Launch(ports=2), status=status)


COMPLETE = the_gang(phase=PodGroupPhase.RUNNING)
BOUND = a_pod(the_gang(), 0, phase=PodPhase.BOUND, node=NODE, bound_at=0)
HERE = attempt_of(BOUND)
CLAIMED = changed(
    BOUND, phase=PodPhase.RUNNING, holder=AUTHOR, address=ADDRESS, ports=PORTS, started_at=1
)
#: The other pod of the gang, on another node.
SIBLING = a_pod(
    the_gang(), 1, phase=PodPhase.RUNNING, node="n2", address="10.0.0.2", ports=(61_440, 61_441)
)


def an_agent() -> AgentState:
    return AgentState(node=NODE, author=AUTHOR, slots=8, lease_ms=LEASE_MS, address=ADDRESS)


def a_claim(agent: AgentState, *, now_ms: int = 1_000) -> messages.PostClaims:
    """Deliver the pod, and return the claims to post."""
    delivery = messages.DeliveredPod(attempt=HERE, pod=BOUND)
    agent.handle(messages.PodsDelivered(now_ms=now_ms, deliveries=(delivery,)))
    [posted] = agent.handle(messages.ClaimsDue(now_ms=now_ms))
    assert isinstance(posted, messages.PostClaims)
    return posted


def answer(agent: AgentState, word: str = "ok", *, now_ms: int = 1_000) -> list[object]:
    found = messages.ClaimAnswer(
        attempt=HERE, word=word, group=the_gang(), ports=PORTS if word == "ok" else ()
    )
    event = messages.ClaimsPosted(now_ms=now_ms, asked_at=now_ms, answers=(found,))
    return list(agent.handle(event))


def look(agent: AgentState, pod: Pod, *, now_ms: int = 1_100) -> list[messages.Instruction]:
    """Check the claims while the server shows this pod; return what follows."""
    agent.handle(messages.ClaimsApplied(now_ms=now_ms))
    [read] = agent.handle(messages.ClaimsDue(now_ms=now_ms))
    assert read == messages.ReadClaimedPods((HERE.pod,))
    return agent.handle(messages.ClaimedPodsRead(now_ms=now_ms, pods={HERE.pod: pod}))


def a_meeting_pod() -> AgentState:
    """Return an agent whose pod has claimed its place, and waits for its gang."""
    agent = an_agent()
    a_claim(agent)
    assert answer(agent) == []
    assert look(agent, CLAIMED) == [messages.ReadGangs(("default/u1",))]
    assert agent.state_of(HERE) == PodState.MEETING
    agent.check()
    return agent


def gang_read(
    group: PodGroup | None = COMPLETE, *pods: Pod, now_ms: int = 1_200
) -> messages.GangsRead:
    found = {pod.metadata.uid: pod for pod in pods or (CLAIMED, SIBLING)}
    return messages.GangsRead(now_ms=now_ms, groups={"default/u1": group}, pods=found)


def test_ports_are_reserved_for_its_claim() -> None:
    assert a_claim(an_agent()).ports == {HERE: 2}


def test_a_repeated_claim_states_the_same_place() -> None:
    agent = an_agent()
    a_claim(agent)
    answer(agent)
    [read] = agent.handle(messages.ClaimsDue(now_ms=9_000))
    assert isinstance(read, messages.ReadClaimedPods)
    [posted] = agent.handle(messages.ClaimedPodsRead(now_ms=9_000, pods={HERE.pod: BOUND}))
    claim = StartClaim(
        pod=HERE.pod, attempt=HERE.attempt, author=AUTHOR, address=ADDRESS, ports=PORTS
    )
    assert posted == messages.PostReport(claim)


def test_a_pod_without_free_ports_is_given_back() -> None:
    agent = an_agent()
    a_claim(agent)
    declined, reported = answer(agent, "no ports")
    assert declined == messages.DeclinePod(HERE, "fewer than 2 ports are free")
    assert isinstance(reported, messages.ReportEnds)
    assert reported.ends[0].report.outcome.stopped == "NodeLost"


def test_a_pod_starts_when_its_gang_is_complete_and_knows_all_pods() -> None:
    agent = a_meeting_pod()
    [start] = agent.handle(gang_read())
    assert isinstance(start, messages.StartPod)
    assert (start.attempt, start.group) == (HERE, COMPLETE)
    assert [(peer.node, peer.address) for peer in start.peers] == [
        ("n1", "10.0.0.1"),
        ("n2", "10.0.0.2"),
    ]
    assert agent.running() == {HERE}


@pytest.mark.parametrize(
    ("why", "event"),
    [
        ("not all pods have claimed", gang_read(the_gang(phase=PodGroupPhase.IN_QUEUE))),
        ("the gang restarts", gang_read(the_gang(phase=PodGroupPhase.PENDING))),
        (
            "this is the next round of the gang",
            gang_read(the_gang(phase=PodGroupPhase.RUNNING, admission=2)),
        ),
        ("a pod was lost since", gang_read(COMPLETE, CLAIMED, changed(SIBLING, phase="Evicted"))),
        ("a pod is bound again", gang_read(COMPLETE, CLAIMED, changed(SIBLING, phase="Bound"))),
        ("it is being stopped", gang_read(COMPLETE, changed(CLAIMED, terminating=True), SIBLING)),
        ("its own attempt is over", gang_read(COMPLETE, changed(CLAIMED, attempt=2), SIBLING)),
        ("the group is gone", gang_read(None)),
        (
            "another group has its name",
            gang_read(a_group("u1", 2, launch=Launch(ports=2), uid="v", status=COMPLETE.status)),
        ),
    ],
)
def test_a_pod_does_not_start_while(why: str, event: messages.GangsRead) -> None:
    agent = a_meeting_pod()
    assert agent.handle(event) == [], why
    assert agent.state_of(HERE) == PodState.MEETING


def test_the_lease_is_renewed_while_it_waits() -> None:
    agent = a_meeting_pod()
    [renew] = agent.handle(messages.LeasesDue(now_ms=6_000))
    assert isinstance(renew, messages.RenewLeases)
    assert [attempt for attempt, _ in renew.attempts] == [HERE]
    found = messages.AttemptAnswer(attempt=HERE, word="ok", is_running=True)
    renewed = messages.LeasesRenewed(now_ms=6_000, asked_at=6_000, answers=(found,))
    assert agent.handle(renewed) == []
    [start] = agent.handle(gang_read(now_ms=28_000))
    assert isinstance(start, messages.StartPod)
    assert start.lease_from == 6_000


def test_a_pod_whose_lease_was_lost_while_it_waited_is_given_back() -> None:
    agent = a_meeting_pod()
    declined, reported = agent.handle(gang_read(now_ms=1_000 + LEASE_MS))
    assert declined == messages.DeclinePod(HERE, "its node went away")
    assert isinstance(reported, messages.ReportEnds)


def test_a_gang_waits_for_longer_than_a_claim_without_a_leader() -> None:
    agent = a_meeting_pod()
    for now_ms in range(6_000, 120_000, 6_000):
        found = messages.AttemptAnswer(attempt=HERE, word="ok", is_running=True)
        agent.handle(messages.LeasesRenewed(now_ms=now_ms, asked_at=now_ms, answers=(found,)))
        assert look(agent, CLAIMED, now_ms=now_ms) == [messages.ReadGangs(("default/u1",))]


def test_a_stop_ends_the_wait_at_once() -> None:
    agent = a_meeting_pod()
    agent.handle(messages.StopsAnnounced(now_ms=1_200))
    [read] = agent.handle(messages.ClaimsDue(now_ms=1_200))
    assert read == messages.ReadClaimedPods((HERE.pod,))
    stopped = changed(CLAIMED, terminating=True, reason="GangRestart")
    declined, reported = agent.handle(
        messages.ClaimedPodsRead(now_ms=1_200, pods={HERE.pod: stopped})
    )
    assert declined == messages.DeclinePod(HERE, "stopped before it started")
    outcome = PodOutcome(stopped="GangRestart", message="stopped before it started")
    assert reported == messages.ReportEnds(
        (
            messages.EndReport(
                report=Ended(pod=HERE.pod, attempt=HERE.attempt, outcome=outcome, author=AUTHOR)
            ),
        )
    )


def test_an_agent_that_drains_gives_back_the_pod_that_waits() -> None:
    agent = a_meeting_pod()
    agent.handle(messages.SignalsReceived(now_ms=1_200, count=1))
    assert not agent.is_drained
    declined, _ = look(agent, CLAIMED, now_ms=1_200)
    assert declined == messages.DeclinePod(HERE, "its node went away before it started")
    assert agent.is_drained


def test_a_claim_that_the_server_has_lost_is_posted_again() -> None:
    agent = a_meeting_pod()
    [posted] = look(agent, BOUND, now_ms=9_000)
    assert isinstance(posted, messages.PostReport)
    assert agent.state_of(HERE) == PodState.MEETING


def test_pods_that_only_wait_for_their_gangs_are_looked_at_once_a_second() -> None:
    agent = a_meeting_pod()
    pauses = []
    now_ms = 1_200
    for _ in range(8):
        agent.handle(messages.ClaimsDue(now_ms=now_ms))
        next_at = agent.next_check_at() or 0
        pauses.append(next_at - now_ms)
        now_ms = next_at
    assert pauses[-1] == 1_000


def rejoining(*, phase: PodGroupPhase = PodGroupPhase.RUNNING) -> PodGroup:
    group = the_gang(phase=phase)
    launch = Launch(ports=2, restart="pod")
    return structs.replace(group, spec=structs.replace(group.spec, launch=launch))


REJOINING = rejoining()


def a_running_pod(group: PodGroup = REJOINING) -> AgentState:
    agent = a_meeting_pod()
    [start] = agent.handle(gang_read(group))
    assert isinstance(start, messages.StartPod)
    return agent


def test_a_running_pod_is_told_where_another_has_started_again() -> None:
    agent = a_running_pod()
    moved = changed(SIBLING, attempt=2, node="n3", address="10.0.0.3", ports=(61_450, 61_451))
    [told] = agent.handle(gang_read(REJOINING, CLAIMED, moved))
    assert isinstance(told, messages.WritePeers)
    assert told.attempt == HERE
    assert [(peer.node, peer.address, peer.ports) for peer in told.peers] == [
        ("n1", "10.0.0.1", (61_440, 61_441)),
        ("n3", "10.0.0.3", (61_450, 61_451)),
    ]


@pytest.mark.parametrize(
    ("why", "event"),
    [
        ("a pod has failed", gang_read(REJOINING, CLAIMED, changed(SIBLING, phase="Failed"))),
        ("a pod is bound again", gang_read(REJOINING, CLAIMED, changed(SIBLING, phase="Bound"))),
        ("the gang is not complete", gang_read(rejoining(phase=PodGroupPhase.UNKNOWN))),
        ("it is being stopped", gang_read(REJOINING, changed(CLAIMED, terminating=True), SIBLING)),
        ("its attempt is over", gang_read(REJOINING, changed(CLAIMED, attempt=2), SIBLING)),
    ],
)
def test_a_running_pod_is_told_nothing_while(why: str, event: messages.GangsRead) -> None:
    assert a_running_pod().handle(event) == [], why


def test_the_gang_of_a_running_pod_is_read_when_it_may_be_complete_and_then_less_and_less() -> None:
    agent = a_running_pod()
    read = messages.ReadGangs(("default/u1",))
    assert read in agent.handle(messages.StopsAnnounced(now_ms=1_300))
    seen = [
        now_ms
        for now_ms in range(1_000, 40_000, 200)
        if read in agent.handle(messages.LeasesDue(now_ms=now_ms))
    ]
    assert seen == [1_000, 3_000, 7_000, 15_000, 25_000, 35_000]


def test_the_gang_of_a_running_pod_that_restarts_whole_is_not_read() -> None:
    agent = a_running_pod(COMPLETE)
    moved = changed(SIBLING, attempt=2, node="n3")
    assert agent.handle(gang_read(COMPLETE, CLAIMED, moved)) == []
    for event in (messages.StopsAnnounced(now_ms=1_300), messages.LeasesDue(now_ms=9_000)):
        assert not any(isinstance(one, messages.ReadGangs) for one in agent.handle(event))


def test_pods_that_start_again_and_again_do_not_delay_the_others() -> None:
    agent = a_running_pod()
    agent.handle(messages.LeasesDue(now_ms=1_300))
    reads = 0
    for number in range(2, 22):
        # Each starts in the last moment before the gangs would be read.
        now_ms = 1_200 + 900 * number
        pod = changed(BOUND, attempt=number)
        later = structs.replace(pod, metadata=structs.replace(pod.metadata, uid=f"later-{number}"))
        attempt = attempt_of(later)
        running = changed(
            later, phase=PodPhase.RUNNING, holder=AUTHOR, address=ADDRESS, ports=PORTS, started_at=1
        )
        delivery = messages.DeliveredPod(attempt=attempt, pod=later)
        agent.handle(messages.PodsDelivered(now_ms=now_ms, deliveries=(delivery,)))
        agent.handle(messages.ClaimsDue(now_ms=now_ms))
        found = messages.ClaimAnswer(attempt=attempt, word="ok", group=REJOINING, ports=PORTS)
        agent.handle(messages.ClaimsPosted(now_ms=now_ms, asked_at=now_ms, answers=(found,)))
        read = messages.ClaimedPodsRead(now_ms=now_ms, pods={attempt.pod: running})
        agent.handle(read)
        pods = {CLAIMED.metadata.uid: CLAIMED, SIBLING.metadata.uid: SIBLING, attempt.pod: running}
        event = messages.GangsRead(now_ms=now_ms, groups={"default/u1": REJOINING}, pods=pods)
        assert any(isinstance(one, messages.StartPod) for one in agent.handle(event))
        due = agent.handle(messages.LeasesDue(now_ms=now_ms))
        reads += messages.ReadGangs(("default/u1",)) in due
    assert reads >= 5
