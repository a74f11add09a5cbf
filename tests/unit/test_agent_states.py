"""Tests of the agent's state machine: what follows from each event, and which moves there are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from batchq.api.lifecycle import PodPhase
from batchq.api.node_report import Ended, PodAttempt, PodOutcome
from batchq.api.objects import Pod
from batchq.errors import StoreUnavailable
from batchq.worker.agent import messages
from batchq.worker.agent.pod_states import (
    LOST,
    MOVES,
    Cause,
    InvalidMove,
    Paces,
    PodState,
    attempt_of,
)
from batchq.worker.agent.state_machine import AgentState
from tests.agents import (
    AUTHOR,
    LEASE_MS,
    a_bound_pod,
    an_agent,
    changed,
    claim,
    granted,
    start,
    the_group,
)

POD = a_bound_pod()
HERE = attempt_of(POD)
DONE = PodOutcome(exit_code=0, how="exited with 0")


def horse_ended(
    agent: AgentState,
    *,
    exit_code: int = 0,
    record: messages.EndRecord | None = None,
    now_ms: int = 2_000,
) -> list[messages.Instruction]:
    end = messages.HorseEnd(attempt=HERE, exit_code=exit_code, record=record)
    return agent.handle(messages.HorsesEnded(now_ms=now_ms, ends=(end,)))


def a_report(outcome: PodOutcome, **more: object) -> messages.EndReport:
    report = Ended(pod=HERE.pod, attempt=HERE.attempt, outcome=outcome, author=AUTHOR)
    return messages.EndReport(report=report, **more)


def due(agent: AgentState, pod: Pod | None, *, now_ms: int = 2_500) -> list[messages.Instruction]:
    """Check the ends while the server shows this pod; return what follows from the answer."""
    assert agent.handle(messages.EndsDue(now_ms=now_ms)) == [messages.ReadEndedPods((HERE.pod,))]
    return agent.handle(messages.EndedPodsRead(now_ms=now_ms, pods={HERE.pod: pod}))


def due_ends_read(
    pod: Pod | None,
    *,
    posted: frozenset[str] = frozenset(),
    lease_ms: int = 0,
    record: messages.EndRecord | None = None,
    now_ms: int = 2_600,
) -> messages.DueEndsRead:
    return messages.DueEndsRead(
        now_ms=now_ms,
        attempts=(HERE,),
        posted=posted,
        pods={HERE.pod: pod},
        leases_ms={HERE: lease_ms},
        records={} if record is None else {HERE: record},
    )


def a_dead_pod() -> AgentState:
    """Return an agent whose only work-horse has just died."""
    agent = an_agent()
    start(agent, POD)
    assert horse_ended(agent, exit_code=-9, record=messages.EndRecord()) == []
    assert agent.state_of(HERE) == PodState.UNREPORTED
    return agent


def test_every_state_is_reachable_and_left() -> None:
    assert {after for after in MOVES.values() if after is not None} == set(PodState)
    assert {before for before, _ in MOVES if before is not None} == set(PodState)


def test_every_cause_has_a_move() -> None:
    assert {cause for _, cause in MOVES} == set(Cause)


def test_only_running_pods_have_a_work_horse_that_can_end() -> None:
    causes = {Cause.HORSE_DIED, Cause.HORSE_REPORTED, Cause.HANDED_OVER, Cause.SUPERSEDED}
    assert {before for before, cause in MOVES if cause in causes} == {PodState.RUNNING}


def test_a_pod_starts_only_after_its_claim_was_posted() -> None:
    starts = [before for (before, _), after in MOVES.items() if after == PodState.RUNNING]
    assert starts == [PodState.CLAIMED, PodState.MEETING]


def test_a_claimed_pod_that_the_notification_carries_starts_without_being_read() -> None:
    agent = an_agent()
    claim(agent, POD, a_bound_pod(1))
    [started] = agent.handle(messages.ClaimsApplied(now_ms=1_001, pods=(granted(POD),)))
    assert isinstance(started, messages.StartPod)
    assert (started.attempt, agent.state_of(HERE)) == (HERE, PodState.RUNNING)
    # The claim of the other pod has not been applied yet.
    assert agent.handle(messages.ClaimsDue(now_ms=1_002)) == []


@pytest.mark.parametrize(
    "pod",
    [
        changed(granted(POD), attempt=POD.status.attempt - 1),
        structs.replace(granted(POD), metadata=structs.replace(POD.metadata, uid="u9-1-0")),
        structs.replace(granted(POD), spec=structs.replace(POD.spec, ports=1)),
    ],
    ids=["of a former attempt", "of another pod", "of a gang that meets"],
)
def test_claimed_pods_are_read_if_the_notification_carries_another(pod: Pod) -> None:
    agent = an_agent()
    claim(agent, POD)
    assert agent.handle(messages.ClaimsApplied(now_ms=1_001, pods=(pod,))) == []
    assert agent.state_of(HERE) == PodState.CLAIMED
    assert agent.handle(messages.ClaimsDue(now_ms=1_001)) == [messages.ReadClaimedPods((HERE.pod,))]


def test_an_invalid_move_tells_what_happened_before() -> None:
    agent = an_agent()
    start(agent, POD)
    horse_ended(agent, record=messages.EndRecord(outcome=DONE))
    with pytest.raises(InvalidMove) as broken:
        horse_ended(agent, record=messages.EndRecord(outcome=DONE))
    told = str(broken.value)
    assert told.startswith(
        "attempt u1-1-0-1 is reported, and cannot move because its work-horse has reported its end"
    )
    assert "1000 u1-1-0-1: claimed → running, because its claim was applied" in told
    assert "2000 u1-1-0-1: running → reported, because its work-horse has reported its end" in told


def test_the_story_of_a_pod_omits_other_pods() -> None:
    agent = an_agent()
    start(agent, POD)
    start(agent, a_bound_pod(1))
    assert [line for line in agent.story(HERE) if "u1-1-1-1" in line] == []
    assert [line for line in agent.story() if "u1-1-1-1" in line] != []


def test_a_known_attempt_that_is_delivered_again_is_ignored() -> None:
    agent = an_agent()
    delivery = messages.PodsDelivered(now_ms=900, deliveries=(messages.DeliveredPod(attempt=HERE),))
    assert agent.handle(delivery) == []
    assert agent.handle(delivery) == [messages.IgnoreDelivery(HERE)]
    agent = an_agent()
    start(agent, POD)
    assert agent.handle(delivery) == [messages.IgnoreDelivery(HERE)]
    horse_ended(agent, record=messages.EndRecord(outcome=DONE))
    assert agent.handle(delivery) == [messages.IgnoreDelivery(HERE)]


def test_a_pod_delivered_while_others_are_read_waits_for_the_next_check() -> None:
    agent = an_agent()
    claim(agent, POD)
    other = attempt_of(a_bound_pod(1))
    agent.handle(messages.ClaimsDue(now_ms=2_000))
    agent.handle(
        messages.PodsDelivered(now_ms=2_000, deliveries=(messages.DeliveredPod(attempt=other),))
    )
    agent.handle(messages.ClaimedPodsRead(now_ms=2_000, pods={HERE.pod: granted(POD)}))
    assert agent.state_of(other) == PodState.DELIVERED


def test_slots_count_pods_that_run_and_pods_that_are_about_to_start() -> None:
    agent = an_agent(slots=2)
    assert agent.free() == 2
    start(agent, POD)
    claim(agent, a_bound_pod(1))
    assert agent.free() == 0
    horse_ended(agent, record=messages.EndRecord(outcome=DONE))
    assert agent.free() == 1


def test_a_claim_granted_after_its_lease_was_nearly_over_is_given_back() -> None:
    agent = an_agent(paces=Paces(patience_ms=60_000))
    claim(agent, POD, now_ms=1_000)
    late = 1_000 + LEASE_MS - LEASE_MS // 6
    agent.handle(messages.ClaimsDue(now_ms=late))
    declined, report = agent.handle(
        messages.ClaimedPodsRead(now_ms=late, pods={HERE.pod: granted(POD)})
    )
    assert declined == messages.DeclinePod(HERE, "its node went away")
    outcome = PodOutcome(stopped="NodeLost", message="its node went away")
    assert report == messages.ReportEnds((a_report(outcome),))


def test_a_claim_whose_answer_was_lost_is_posted_again() -> None:
    agent = an_agent()
    delivery = messages.PodsDelivered(
        now_ms=1_000, deliveries=(messages.DeliveredPod(attempt=HERE, pod=POD),)
    )
    agent.handle(delivery)

    def unanswered(_instruction: messages.Instruction) -> messages.AgentEvent | None:
        raise StoreUnavailable("the answer was lost")

    with pytest.raises(StoreUnavailable):
        agent.drive(messages.ClaimsDue(now_ms=1_000), unanswered)
    assert agent.state_of(HERE) == PodState.DELIVERED
    agent.handle(messages.ClaimsDue(now_ms=1_020))
    # The leader has applied the first claim meanwhile.
    [posted] = agent.handle(messages.ClaimedPodsRead(now_ms=1_020, pods={HERE.pod: granted(POD)}))
    assert isinstance(posted, messages.PostClaims)
    answer = messages.ClaimAnswer(attempt=HERE, word="ok", group=the_group())
    [started] = agent.handle(messages.ClaimsPosted(now_ms=1_030, asked_at=1_020, answers=(answer,)))
    assert isinstance(started, messages.StartPod)
    assert (started.attempt, started.lease_from) == (HERE, 1_020)


def test_an_attempt_that_a_restored_server_shows_again_is_not_started_twice() -> None:
    agent = an_agent()
    delivery = messages.DeliveredPod(attempt=HERE, pod=granted(POD))
    agent.handle(messages.PodsDelivered(now_ms=1_000, deliveries=(delivery,)))
    assert agent.handle(messages.ClaimsDue(now_ms=1_000)) == [
        messages.DeclinePod(HERE, "it has run here before")
    ]
    assert agent.state_of(HERE) == PodState.UNREPORTED


def test_a_former_attempt_is_not_claimed_while_a_later_one_runs_here() -> None:
    agent = an_agent()
    start(agent, changed(POD, attempt=2))
    delivery = messages.DeliveredPod(attempt=HERE, pod=POD)
    agent.handle(messages.PodsDelivered(now_ms=1_000, deliveries=(delivery,)))
    assert agent.handle(messages.ClaimsDue(now_ms=1_000)) == [
        messages.DeclinePod(HERE, "another attempt of it runs here"),
        messages.ForgetPods((HERE,)),
    ]


def test_a_pod_that_cannot_be_started_is_reported_as_lost() -> None:
    agent = an_agent()
    start(agent, POD)
    assert agent.handle(messages.StartFailed(now_ms=1_000, attempt=HERE)) == []
    assert due(agent, granted(POD)) == [messages.EndProcesses((HERE,))]
    agent.handle(messages.ProcessesEnded(now_ms=2_500, attempts=(HERE,), are_left=False))
    assert agent.handle(due_ends_read(granted(POD), lease_ms=9_000)) == [
        messages.ReportEnds((a_report(LOST, replaces_horse=True),))
    ]


def test_the_agent_reports_an_end_that_its_work_horse_hands_over() -> None:
    agent = an_agent()
    start(agent, POD)
    record = messages.EndRecord(outcome=DONE, result=b"7", hands_over=True)
    assert horse_ended(agent, record=record) == [
        messages.ReportEnds((a_report(DONE, result=b"7"),))
    ]
    assert agent.state_of(HERE) == PodState.UNREPORTED
    agent.handle(messages.EndsReported(now_ms=2_100, attempts=(HERE,)))
    assert agent.state_of(HERE) == PodState.REPORTED


def test_an_attempt_whose_work_horse_left_nothing_is_superseded() -> None:
    agent = an_agent()
    start(agent, POD)
    assert horse_ended(agent) == []
    assert HERE not in agent


def test_an_end_is_reported_again_until_the_server_shows_it() -> None:
    agent = an_agent()
    start(agent, POD)
    assert horse_ended(agent, record=messages.EndRecord(outcome=DONE)) == []
    assert due(agent, granted(POD), now_ms=6_999) == []
    assert due(agent, granted(POD), now_ms=7_000) == [messages.EndProcesses((HERE,))]
    ended = messages.ProcessesEnded(now_ms=7_000, attempts=(HERE,), are_left=False)
    assert agent.handle(ended) == [messages.ReadDueEnds((HERE,), False)]
    record = messages.EndRecord(outcome=DONE, result=b"7")
    assert agent.handle(due_ends_read(granted(POD), record=record)) == [
        messages.ReportEnds((a_report(DONE, result=b"7", replaces_horse=True),))
    ]
    agent.handle(messages.EndsReported(now_ms=7_100, attempts=(HERE,)))
    over = changed(granted(POD), phase=PodPhase.SUCCEEDED)
    assert due(agent, over, now_ms=8_000) == [messages.ConcludeEnds((HERE,), ())]
    concluded = messages.EndsConcluded(now_ms=8_000, attempts=(HERE,))
    assert agent.handle(concluded) == [messages.ForgetPods((HERE,))]
    assert HERE not in agent


def test_output_is_sent_once_the_server_shows_the_end_but_not_of_a_superseded_attempt() -> None:
    agent = a_dead_pod()
    over = changed(granted(POD), phase=PodPhase.EVICTED)
    assert due(agent, over) == [messages.ConcludeEnds((HERE,), (HERE,))]
    assert due(a_dead_pod(), changed(POD, attempt=2)) == [messages.ConcludeEnds((HERE,), ())]
    assert due(a_dead_pod(), None) == [messages.ConcludeEnds((HERE,), ())]


def test_a_pod_has_not_ended_while_a_process_is_left_and_keeps_its_lease() -> None:
    agent = a_dead_pod()
    assert due(agent, granted(POD)) == [messages.EndProcesses((HERE,))]
    left = messages.ProcessesEnded(now_ms=2_500, attempts=(HERE,), are_left=True)
    assert agent.handle(left) == []
    assert agent.state_of(HERE) == PodState.UNREPORTED
    assert agent.handle(messages.LeasesDue(now_ms=2_600)) == [
        messages.RenewLeases(((HERE, "u1 1 1"),))
    ]
    agent.handle(messages.ProcessesEnded(now_ms=3_500, attempts=(HERE,), are_left=False))
    assert agent.handle(messages.LeasesDue(now_ms=9_000)) == []


def test_a_bound_pod_whose_work_horse_died_may_be_delivered_again() -> None:
    agent = a_dead_pod()
    due(agent, POD)
    agent.handle(messages.ProcessesEnded(now_ms=2_500, attempts=(HERE,), are_left=False))
    assert agent.handle(due_ends_read(POD)) == [messages.ForgetPods((HERE,))]
    assert HERE not in agent


def test_a_bound_pod_whose_claim_may_yet_be_applied_is_not_delivered_again() -> None:
    agent = a_dead_pod()
    due(agent, POD)
    agent.handle(messages.ProcessesEnded(now_ms=2_500, attempts=(HERE,), are_left=False))
    [report] = agent.handle(due_ends_read(POD, posted=frozenset({HERE.id})))
    assert report == messages.ReportEnds((a_report(LOST, replaces_horse=True),))


def test_an_attempt_unknown_here_is_lost_only_when_its_lease_is_over() -> None:
    agent = an_agent()
    listed = messages.NodePodsRead(
        now_ms=1_000, server_now_ms=1_000, pods=[granted(POD)], reported=frozenset(), leased=(HERE,)
    )
    assert agent.handle(listed) == [messages.EnqueuePods(())]
    due(agent, granted(POD))
    ended = messages.ProcessesEnded(now_ms=2_500, attempts=(HERE,), are_left=False)
    assert agent.handle(ended) == [messages.ReadDueEnds((HERE,), True)]
    assert agent.handle(due_ends_read(granted(POD), lease_ms=9_000)) == []
    assert due(agent, granted(POD), now_ms=11_599) == []
    assert due(agent, granted(POD), now_ms=11_600) == [messages.EndProcesses((HERE,))]
    agent.handle(messages.ProcessesEnded(now_ms=11_600, attempts=(HERE,), are_left=False))
    [report] = agent.handle(due_ends_read(granted(POD), lease_ms=-1, now_ms=11_600))
    assert report == messages.ReportEnds((a_report(LOST, replaces_horse=True),))


def renewed(
    agent: AgentState, *answers: messages.AttemptAnswer, at: int
) -> list[messages.Instruction]:
    """Have the leases renewed at that instant; return what follows from the answers."""
    [renewal] = agent.handle(messages.LeasesDue(now_ms=at))
    assert isinstance(renewal, messages.RenewLeases)
    return agent.handle(messages.LeasesRenewed(now_ms=at + 5, asked_at=at, answers=answers))


def test_one_request_renews_the_leases_of_all_pods_that_run_or_wait_for_their_start() -> None:
    agent = an_agent()
    start(agent, POD)
    claim(agent, a_bound_pod(1))
    assert agent.handle(messages.LeasesDue(now_ms=2_000)) == [
        messages.RenewLeases(((PodAttempt("u1-1-1", 1), "u1 1 1"), (HERE, "u1 1 1")))
    ]


def test_the_work_horses_hear_when_the_renewal_was_sent() -> None:
    agent = an_agent()
    start(agent, POD)
    assert renewed(agent, messages.AttemptAnswer(attempt=HERE, word="ok"), at=2_000) == [
        messages.VouchFor((HERE,), 2_000)
    ]


def test_leases_are_renewed_after_a_twelfth_of_their_length() -> None:
    agent = an_agent()
    start(agent, POD)
    renewed(agent, messages.AttemptAnswer(attempt=HERE, word="ok"), at=2_000)
    assert agent.handle(messages.LeasesDue(now_ms=4_499)) == []
    assert agent.handle(messages.LeasesDue(now_ms=4_500)) == [
        messages.RenewLeases(((HERE, "u1 1 1"),))
    ]


def test_stops_are_read_when_they_are_announced() -> None:
    agent = an_agent()
    assert agent.handle(messages.StopsAnnounced(now_ms=500)) == []
    start(agent, POD)
    claim(agent, a_bound_pod(1))
    assert agent.handle(messages.StopsAnnounced(now_ms=2_000)) == [
        messages.ReadStops(((HERE, "u1 1 1"),))
    ]


def test_a_renewal_without_an_answer_is_repeated_at_the_next_look() -> None:
    agent = an_agent()
    start(agent, POD)
    first = agent.handle(messages.LeasesDue(now_ms=2_000))
    assert agent.handle(messages.LeasesDue(now_ms=2_500)) == first


def test_a_stop_reaches_the_work_horse_with_and_without_a_renewal() -> None:
    agent = an_agent()
    start(agent, POD)
    stop = messages.AttemptAnswer(attempt=HERE, word="stop", reason="Preempted")
    assert agent.handle(messages.StopsRead(now_ms=1_500, answers=(stop,))) == [
        messages.StopPod(HERE, "Preempted")
    ]
    assert renewed(agent, stop, at=2_000) == [
        messages.VouchFor((HERE,), 2_000),
        messages.StopPod(HERE, "Preempted"),
    ]


def test_an_attempt_that_the_server_does_not_know_is_not_vouched_for() -> None:
    agent = an_agent()
    start(agent, POD)
    assert renewed(agent, messages.AttemptAnswer(attempt=HERE, word="fenced"), at=2_000) == [
        messages.DisownPod(HERE)
    ]


def test_a_pod_is_not_vouched_for_while_its_work_horse_is_silent_or_after_its_end() -> None:
    agent = an_agent()
    start(agent, POD)
    assert agent.handle(messages.LeasesDue(now_ms=2_000, silent=frozenset({HERE}))) == []
    end = messages.HorseEnd(
        attempt=HERE, exit_code=0, record=messages.EndRecord(outcome=PodOutcome(exit_code=0))
    )
    agent.handle(messages.HorsesEnded(now_ms=2_100, ends=(end,)))
    assert agent.handle(messages.LeasesDue(now_ms=2_200)) == []


def test_a_claim_whose_lease_was_lost_once_the_pod_was_running_is_given_back() -> None:
    agent = an_agent()
    claim(agent, POD, now_ms=1_000)
    lost = 1_000 + LEASE_MS - LEASE_MS // 6
    renewed(agent, messages.AttemptAnswer(attempt=HERE, word="ok", is_running=True), at=lost)
    agent.handle(messages.ClaimsDue(now_ms=lost + 100))
    declined, _ = agent.handle(
        messages.ClaimedPodsRead(now_ms=lost + 100, pods={HERE.pod: granted(POD)})
    )
    assert declined == messages.DeclinePod(HERE, "its node went away")


def test_a_claim_that_was_not_applied_in_an_outage_starts_with_its_renewed_lease() -> None:
    agent = an_agent()
    claim(agent, POD, now_ms=1_000)
    late = 1_000 + LEASE_MS
    renewed(agent, messages.AttemptAnswer(attempt=HERE, word="ok"), at=late)
    agent.handle(messages.ClaimsDue(now_ms=late + 100))
    [started] = agent.handle(
        messages.ClaimedPodsRead(now_ms=late + 100, pods={HERE.pod: granted(POD)})
    )
    assert isinstance(started, messages.StartPod)
    assert started.lease_from == late


def listing(
    *pods: Pod, now_ms: int = 1_000, leased: tuple[PodAttempt, ...] = ()
) -> messages.NodePodsRead:
    return messages.NodePodsRead(
        now_ms=now_ms, server_now_ms=now_ms, pods=pods, reported=frozenset(), leased=leased
    )


def test_a_bound_pod_without_a_delivery_is_delivered_again_after_some_patience() -> None:
    agent = an_agent()
    assert agent.handle(listing(POD, now_ms=100)) == [messages.EnqueuePods((HERE,))]
    assert agent.handle(listing(POD, now_ms=9_999)) == [messages.EnqueuePods(())]
    assert agent.handle(listing(POD, now_ms=10_000)) == [messages.EnqueuePods((HERE,))]


def test_a_pod_that_was_bound_in_the_future_is_delivered_at_once() -> None:
    agent = an_agent()
    agent.handle(listing(now_ms=100))
    pod = structs.replace(POD, status=structs.replace(POD.status, bound_at=10**15))
    assert agent.handle(listing(pod, now_ms=200)) == [messages.EnqueuePods((HERE,))]


def test_a_pod_whose_end_waits_to_be_applied_is_left_alone() -> None:
    agent = an_agent()
    listed = messages.NodePodsRead(
        now_ms=1_000, server_now_ms=99_000, pods=[POD], reported=frozenset({HERE.id}), leased=()
    )
    assert agent.handle(listed) == [messages.EnqueuePods(())]
    assert HERE not in agent


def test_leases_of_attempts_that_are_unknown_here_are_ended() -> None:
    agent = an_agent()
    start(agent, POD)
    stray = PodAttempt("u2-1-0", 3)
    assert agent.handle(listing(leased=(HERE, stray))) == [
        messages.EndLeases((stray,)),
        messages.EnqueuePods(()),
    ]


def signalled(agent: AgentState, count: int, *, now_ms: int) -> list[messages.Instruction]:
    return agent.handle(messages.SignalsReceived(now_ms=now_ms, count=count))


def test_a_draining_agent_stops_its_pods_after_the_timeout_and_kills_them_on_a_second_signal() -> (
    None
):
    agent = an_agent()
    start(agent, POD)
    assert signalled(agent, 0, now_ms=1_000) == []
    assert not agent.is_draining
    assert signalled(agent, 1, now_ms=2_000) == []
    assert signalled(agent, 1, now_ms=11_999) == []
    assert signalled(agent, 1, now_ms=12_000) == [messages.StopHorses(kills=False)]
    assert signalled(agent, 1, now_ms=12_500) == []
    assert signalled(agent, 2, now_ms=13_000) == [messages.StopHorses(kills=True)]
    assert signalled(agent, 2, now_ms=13_500) == []
    assert not agent.is_drained
    horse_ended(agent, record=messages.EndRecord(outcome=DONE))
    assert agent.is_drained


def test_a_draining_agent_gives_back_what_it_has_not_started() -> None:
    agent = an_agent()
    claim(agent, POD)
    other = a_bound_pod(1)
    signalled(agent, 1, now_ms=2_000)
    agent.handle(messages.ClaimsDue(now_ms=2_000))
    declined, _ = agent.handle(messages.ClaimedPodsRead(now_ms=2_000, pods={HERE.pod: POD}))
    assert declined == messages.DeclinePod(HERE, "its node went away before it started")
    [report] = agent.handle(
        messages.UnstartedPodsRead(now_ms=2_000, pods=[POD, other, granted(other)])
    )
    assert isinstance(report, messages.ReportEnds)
    assert [end.report.subject for end in report.ends] == ["u1-1-1-1"]
    assert agent.is_drained
    assert agent.handle(listing(POD, now_ms=99_000)) == []


def failing_from(
    place: int,
    told: list[messages.Instruction],
    answer: Callable[[messages.Instruction], messages.AgentEvent | None],
) -> Callable[[messages.Instruction], messages.AgentEvent | None]:
    def carry_out(instruction: messages.Instruction) -> messages.AgentEvent | None:
        told.append(instruction)
        if len(told) > place:
            raise StoreUnavailable("down")
        return answer(instruction)

    return carry_out


def test_after_a_failure_only_instructions_that_need_no_server_are_carried_out() -> None:
    agent = a_dead_pod()
    told: list[messages.Instruction] = []

    def answer(instruction: messages.Instruction) -> messages.AgentEvent | None:
        assert isinstance(instruction, messages.ReadEndedPods)
        return messages.EndedPodsRead(now_ms=2_500, pods={HERE.pod: None})

    with pytest.raises(StoreUnavailable):
        agent.drive(messages.EndsDue(now_ms=2_500), failing_from(1, told, answer))
    assert told == [messages.ReadEndedPods((HERE.pod,)), messages.ConcludeEnds((HERE,), ())]
    assert agent.state_of(HERE) == PodState.UNREPORTED
    assert due(agent, None) == [messages.ConcludeEnds((HERE,), ())]


def test_starts_after_a_failed_start_fail_too_and_are_not_forgotten() -> None:
    agent = an_agent()
    second = a_bound_pod(1)
    claim(agent, POD, second)
    told: list[messages.Instruction] = []

    def answer(instruction: messages.Instruction) -> messages.AgentEvent | None:
        pods = {HERE.pod: granted(POD), second.metadata.uid: granted(second)}
        return messages.ClaimedPodsRead(now_ms=1_500, pods=pods)

    with pytest.raises(StoreUnavailable):
        agent.drive(messages.ClaimsDue(now_ms=1_500), failing_from(1, told, answer))
    assert [type(one).__name__ for one in told] == ["ReadClaimedPods", "StartPod"]
    assert agent.ended() == {HERE, attempt_of(second)}


@pytest.mark.parametrize(("count", "at_ms"), [(2, 2_000), (1, 12_000)])
def test_a_claim_that_is_granted_after_pods_were_told_to_stop_is_given_back(
    count: int, at_ms: int
) -> None:
    """It would not hear of that, and would keep the agent until it is killed."""
    agent = an_agent()
    claim(agent, POD, now_ms=1_999)
    signalled(agent, 1, now_ms=2_000)
    assert signalled(agent, count, now_ms=at_ms) == [messages.StopHorses(kills=count == 2)]
    applied = messages.ClaimsApplied(now_ms=at_ms, pods=(granted(POD),))
    declined, report = agent.handle(applied)
    why = "its node went away before it started"
    assert declined == messages.DeclinePod(HERE, why)
    outcome = PodOutcome(stopped="NodeLost", message=why)
    assert report == messages.ReportEnds((a_report(outcome),))
