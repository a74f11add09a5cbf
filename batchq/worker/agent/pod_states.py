"""The states of a pod attempt on its node, as its agent sees it, and every move between them.

waiting for its image
    │ ▲             ┌─▶ waiting for its gang
    ▼ │             │            │ ▼
delivered ─────▶ claimed ─────▶ running
    │               │            │ │ its work-horse ends, dies, or cannot be started
    │ given back    │ given back │ ▼
    └───────────────┴────────────┴▶ unreported ──▶ reported ──▶ forgotten
                                      ▲
           runs here by the server's ─┘
           records, and does not

An image is pulled before the pod claims its place: the pod is Bound meanwhile, so the pull counts
neither as a part of the run nor of the walltime, and a gang meets only when all of its images are
there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from msgspec import Struct

from batchq.api.lifecycle import ON_NODE, PodPhase
from batchq.api.node_report import MOST_PULLS, PodAttempt, PodOutcome, Pulls
from batchq.api.notation import counted, format_duration
from batchq.api.objects import Object, Pod, PodGroup
from batchq.api.reasons import Leaving
from batchq.errors import InvariantBroken
from batchq.worker.agent.messages import (
    Instructions,
    PostReport,
    PullEnded,
    PullImage,
    PullStarted,
    StopPull,
)


class PodState(StrEnum):
    """The state of a pod attempt on its node. An attempt that is in no state is unknown here."""

    #: Taken from the node's queue. Its start claim is not posted, as far as the agent knows.
    DELIVERED = "delivered"
    #: Its image is being pulled, or is to be pulled again. Its start claim is not posted.
    PULLING = "waiting for its image"
    #: Its start claim is posted and its lease taken; the leader has not applied the claim yet.
    CLAIMED = "claimed"
    #: Its claim is applied, and it does not start before all pods of its gang have claimed.
    MEETING = "waiting for its gang"
    #: A work-horse has it.
    RUNNING = "running"
    #: No work-horse has it, and its end is to be reported.
    UNREPORTED = "unreported"
    #: Its end is reported; the server does not show the end yet.
    REPORTED = "reported"


class Cause(StrEnum):
    """Why a pod attempt moves from one state to the next."""

    DELIVERED = "delivered"
    IMAGE_LACKED = "its image is not on this node"
    IMAGE_THERE = "its image is on this node"
    CLAIM_POSTED = "its claim was posted"
    DECLINED = "it is not ours to run"
    GIVEN_BACK = "it is ours and is not to start"
    RAN_BEFORE = "it runs by the server's records, and was not claimed since its delivery"
    GRANTED = "its claim was applied"
    GANG_AWAITED = "its claim was applied, and it waits for its gang"
    GANG_MET = "its gang is complete"
    NOT_STARTED = "its work-horse could not be started"
    HORSE_REPORTED = "its work-horse has reported its end"
    HANDED_OVER = "its work-horse leaves the report to the agent"
    HORSE_DIED = "its work-horse died"
    SUPERSEDED = "its work-horse found it superseded"
    MISSING = "the server shows it here, and it does not run"
    REPORTED = "its end was reported"
    RESTARTABLE = "it may be started again"
    SEEN = "the server shows its end"


_S = PodState
#: Every move: a state, or None for an unknown attempt, and a cause to the next state.
MOVES: Mapping[tuple[PodState | None, Cause], PodState | None] = {
    (None, Cause.DELIVERED): _S.DELIVERED,
    (None, Cause.MISSING): _S.UNREPORTED,
    (_S.DELIVERED, Cause.CLAIM_POSTED): _S.CLAIMED,
    (_S.DELIVERED, Cause.DECLINED): None,
    (_S.DELIVERED, Cause.GIVEN_BACK): _S.UNREPORTED,
    (_S.DELIVERED, Cause.RAN_BEFORE): _S.UNREPORTED,
    (_S.DELIVERED, Cause.IMAGE_LACKED): _S.PULLING,
    (_S.PULLING, Cause.IMAGE_THERE): _S.DELIVERED,
    (_S.PULLING, Cause.DECLINED): None,
    (_S.PULLING, Cause.GIVEN_BACK): _S.UNREPORTED,
    (_S.CLAIMED, Cause.DECLINED): None,
    (_S.CLAIMED, Cause.GIVEN_BACK): _S.UNREPORTED,
    (_S.CLAIMED, Cause.GRANTED): _S.RUNNING,
    (_S.CLAIMED, Cause.GANG_AWAITED): _S.MEETING,
    (_S.MEETING, Cause.GANG_MET): _S.RUNNING,
    (_S.MEETING, Cause.DECLINED): None,
    (_S.MEETING, Cause.GIVEN_BACK): _S.UNREPORTED,
    (_S.RUNNING, Cause.NOT_STARTED): _S.UNREPORTED,
    (_S.RUNNING, Cause.HORSE_REPORTED): _S.REPORTED,
    (_S.RUNNING, Cause.HANDED_OVER): _S.UNREPORTED,
    (_S.RUNNING, Cause.HORSE_DIED): _S.UNREPORTED,
    (_S.RUNNING, Cause.SUPERSEDED): None,
    (_S.UNREPORTED, Cause.REPORTED): _S.REPORTED,
    (_S.UNREPORTED, Cause.RESTARTABLE): None,
    (_S.UNREPORTED, Cause.SEEN): None,
    (_S.REPORTED, Cause.REPORTED): _S.REPORTED,
    (_S.REPORTED, Cause.SEEN): None,
}


class Paces(Struct, frozen=True, kw_only=True):
    """Intervals in milliseconds."""

    #: The pause between two checks of waiting claims, if no wake-up arrives.
    check_first_ms: int = 20
    check_max_ms: int = 200
    #: The same for pods that only wait for their gangs, which the leader announces, or for images.
    check_gangs_max_ms: int = 1_000
    #: The pause between two reads of the gangs of running pods which must know of changes there. It
    #: grows, so that short jobs end soon.
    read_gangs_first_ms: int = 1_000
    read_gangs_max_ms: int = 10_000
    #: How old leases get before they are renewed, as a part of their length.
    renew_parts: int = 12
    #: A report without effect is posted again: its wake-up may be lost, or the server may have
    #: lost it.
    repeat_ms: int = 5_000
    #: How long a claim waits for a leader before the pod is given back.
    patience_ms: int = 60_000
    #: How long a pod waits for devices that the node should have free.
    devices_patience_ms: int = 10_000
    #: How long an image is pulled before that is reported, the pause after a pull that has failed
    #: (twice as long after the next), and how long a pod waits for its image.
    pull_told_ms: int = 500
    pull_again_ms: int = 10_000
    pull_patience_ms: int = 3_600_000
    #: A pod that has been Bound for this long without a delivery is taken to be lost, and is
    #: enqueued again. A new agent has no such patience when it first looks.
    bound_patience_ms: int = 10_000

    def longest_check_ms(self, only_gangs: bool) -> int:
        """Return the longest pause between two checks of claims."""
        return self.check_gangs_max_ms if only_gangs else self.check_max_ms


class PodOnNode:
    """One attempt on this node; `due_at` is when its end is to be reported, or reported again."""

    __slots__ = (
        "attempt",
        "claimed_pod",
        "devices",
        "due_at",
        "fence",
        "gang",
        "group",
        "has_given_up",
        "has_image",
        "has_processes",
        "is_claim_sent",
        "is_output_sent",
        "is_reported_for_horse",
        "is_seen_dead",
        "lacks_devices",
        "lease_from",
        "outcome",
        "pod",
        "ports",
        "posted_at",
        "pull_again_at",
        "pull_failures",
        "pull_is_told",
        "pull_trouble",
        "pulled_ms",
        "since",
        "state",
    )  # fmt: skip

    def __init__(self, attempt: PodAttempt, *, since: int) -> None:
        self.attempt = attempt
        self.state: PodState | None = None
        self.since = since
        #: The pod as last read, for one check of its claim; and the pod when it was last claimed.
        self.pod: Pod | None = None
        self.claimed_pod: Pod | None = None
        #: Whether a claim was sent, answered or not.
        self.is_claim_sent = False
        self.posted_at = self.lease_from = since
        #: The ports reserved for it, which its claim states.
        self.ports: tuple[int, ...] = ()
        #: The ids of its devices, which its claim states, too.
        self.devices: tuple[str, ...] = ()
        #: Whether it waits for devices that other pods still have.
        self.lacks_devices = False
        #: Whether its image is on this node, if it has one that is pulled, and what has become of
        #: the pulls so far: how many failed and why, and when the next one is due, if none runs.
        self.has_image = False
        self.pull_failures, self.pull_trouble = 0, ""
        self.pull_again_at: int | None = None
        #: Whether no other pull follows.
        self.has_given_up = False
        #: Whether the last news about its pulls was reported; and for how long they took.
        self.pull_is_told, self.pulled_ms = False, 0
        self.group: PodGroup | None = None
        #: The key of its group, if it runs and is told of changes in its gang.
        self.gang = ""
        #: The fence of its pod when it was claimed; empty for an attempt that was not.
        self.fence = ""
        self.due_at = since
        self.outcome: PodOutcome | None = None
        self.is_reported_for_horse = False
        #: Whether its work-horse was seen to end, so that no other machine runs it.
        self.is_seen_dead = False
        self.is_output_sent = False
        #: Whether some of its processes could not be killed, although its work-horse has ended.
        self.has_processes = False

    def lost_at(self, lease_ms: int) -> int:
        """Return when the lease of its claim counts as lost."""
        return self.lease_from + lease_ms - lease_margin_ms(lease_ms)

    def extend(self, asked_at: int, lease_ms: int, *, is_running: bool) -> None:
        """Extend the lease of its claim, unless the leader may have found the pod lost since.

        The leader judges the lease of a pod as soon as it has applied the claim.
        """
        if not is_running or asked_at < self.lost_at(lease_ms):
            self.lease_from = max(self.lease_from, asked_at)


#: The outcome of a pod whose work-horse died.
LOST = PodOutcome(stopped=Leaving.NODE_LOST, message="its work-horse died")
#: The outcomes of pods that are given back.
UNSTARTED = PodOutcome(stopped=Leaving.NODE_LOST, message="its agent stopped before it started")
LATE = PodOutcome(stopped=Leaving.NODE_LOST, message="its node went away")
#: Why an agent that ends gives back what it has claimed.
LEFT = "its node went away before it started"


def attempt_of(pod: Pod) -> PodAttempt:
    """Return the current attempt of a pod."""
    return PodAttempt(pod.metadata.uid, pod.status.attempt)


def pods_of(uids: Iterable[str], found: Mapping[str, Object]) -> dict[str, Pod | None]:
    """Return the pod of each uid among the records found; None for a pod that does not exist."""
    records = {uid: found.get(uid) for uid in uids}
    return {uid: one if isinstance(one, Pod) else None for uid, one in records.items()}


def is_attempt(pod: Pod | None, attempt: PodAttempt) -> bool:
    return pod is not None and pod.status.attempt == attempt.attempt


def is_over(pod: Pod | None, attempt: PodAttempt) -> bool:
    """Return whether the server shows that the attempt has ended, or is superseded."""
    return not is_attempt(pod, attempt) or pod is None or pod.status.phase not in ON_NODE


def may_start(pod: Pod, attempt: PodAttempt, posted: frozenset[str]) -> bool:
    """Return whether a Bound pod may start: no start claim or end of it waits to be applied."""
    is_bound = pod.status.phase == PodPhase.BOUND and not pod.status.terminating
    return is_bound and attempt.id not in posted


def lost_outcome(pod: Pod) -> PodOutcome:
    if pod.status.phase == PodPhase.BOUND and pod.status.terminating:
        return PodOutcome(stopped=pod.status.reason)
    return LOST


def lease_margin_ms(lease_ms: int) -> int:
    """Return how long before its end a lease counts as lost.

    It is enough to kill a process group and to see its end, even on a slow machine.
    """
    return lease_ms // 6


def patience_ms(lease_ms: int) -> int:
    """Return how long agent and work-horse wait for a sign of each other.

    It is well before the end of a lease, so that the work-horse can still ask the server itself.
    """
    return lease_ms // 3


class InvalidMove(InvariantBroken):
    """An event that is impossible in the pod's state; the message tells the last events."""


#: The states of attempts that are about to start, and of those whose end the server does not show.
STARTING = (_S.MEETING, _S.CLAIMED, _S.PULLING, _S.DELIVERED)
ENDED = (_S.UNREPORTED, _S.REPORTED)
#: How many of the last events an error tells.
_STORY_LENGTH = 200


class PodTable:
    """The attempts on a node, each in one state, and the last events; owned by an `AgentState`."""

    def __init__(self) -> None:
        self._by_attempt: dict[PodAttempt, PodOnNode] = {}
        self._by_state: dict[PodState, dict[PodAttempt, PodOnNode]] = {one: {} for one in PodState}
        self._story: deque[tuple[int, object]] = deque(maxlen=_STORY_LENGTH)

    def __contains__(self, attempt: object) -> bool:
        return attempt in self._by_attempt

    def __iter__(self) -> Iterator[PodAttempt]:
        return iter(self._by_attempt)

    def __getitem__(self, attempt: PodAttempt) -> PodOnNode:
        return self._by_attempt[attempt]

    def get(self, attempt: PodAttempt) -> PodOnNode | None:
        """Return an attempt; None if it is unknown here."""
        return self._by_attempt.get(attempt)

    def of(self, *states: PodState) -> list[PodOnNode]:
        """Return the attempts in these states, state by state."""
        return [one for state in states for one in self._by_state[state].values()]

    def attempts(self, *states: PodState) -> list[PodAttempt]:
        """Return the names of the attempts in these states."""
        return [attempt for state in states for attempt in self._by_state[state]]

    def count(self, *states: PodState) -> int:
        """Return how many attempts are in these states."""
        return sum(len(self._by_state[state]) for state in states)

    def ended(self) -> list[PodOnNode]:
        """Return all attempts whose end the server does not show, by id."""
        return sorted(self.of(*ENDED), key=lambda one: one.attempt.id)

    def ended_of(self, attempts: Iterable[PodAttempt]) -> list[PodOnNode]:
        """Return those of the attempts whose end the server does not show."""
        found = map(self._by_attempt.get, attempts)
        return [one for one in found if one is not None and one.state in ENDED]

    def move(self, attempt: PodAttempt, cause: Cause, now_ms: int) -> PodOnNode:
        """Move an attempt to its next state, and return it. Raise InvalidMove if it has none."""
        one = self._by_attempt.get(attempt)
        before = None if one is None else one.state
        if (before, cause) not in MOVES:
            where = "unknown here" if before is None else before
            raise self.broken(attempt, f"is {where}, and cannot move because {cause}")
        after = MOVES[before, cause]
        self.note(now_ms, (attempt, before, cause, after))
        if one is None:
            one = self._by_attempt[attempt] = PodOnNode(attempt, since=now_ms)
        if before is not None:
            del self._by_state[before][attempt]
        one.state = after
        if after is None:
            del self._by_attempt[attempt]
        else:
            self._by_state[after][attempt] = one
        return one

    def note(self, now_ms: int, entry: object) -> None:
        """Add an event to the story."""
        self._story.append((now_ms, entry))

    def story(self, attempt: PodAttempt | None = None) -> list[str]:
        """Return the last events, oldest first; those of one attempt if it is given."""
        return [
            f"{now_ms} {told(entry)}"
            for now_ms, entry in self._story
            if attempt is None or not isinstance(entry, tuple) or entry[0] == attempt
        ]

    def broken(self, attempt: PodAttempt | None, what: str) -> InvalidMove:
        """Return the error that `what` is wrong with an attempt, or with the agent."""
        subject = "the agent" if attempt is None else f"attempt {attempt.id}"
        story = "\n  ".join(self.story(attempt))
        return InvalidMove(f"{subject} {what}; the last events:\n  {story}")

    def check(self) -> None:
        """Raise InvalidMove if the states contradict each other."""
        for state, pods in self._by_state.items():
            for attempt, one in pods.items():
                if one.state != state or self._by_attempt.get(attempt) is not one:
                    raise self.broken(attempt, f"is kept as {state}, and is {one.state}")
        if self.count(*PodState) != len(self._by_attempt):
            raise self.broken(None, "an attempt is kept in no state or in two")
        for one in self.of(_S.CLAIMED, _S.MEETING):
            if one.group is None:
                raise self.broken(one.attempt, "is claimed without its group")
        for one in self.of(_S.REPORTED):
            if one.outcome is None:
                raise self.broken(one.attempt, "is reported without an outcome")


def told(entry: object) -> str:
    """Return an entry of the machine's story in words."""
    match entry:
        case (PodAttempt() as attempt, before, cause, after):
            return f"{attempt.id}: {before or 'unknown'} → {after or 'forgotten'}, because {cause}"
        case _:
            return str(entry)


def claimed_among(pods: PodTable, sent: Iterable[Pod]) -> dict[str, Pod]:
    """Return by uid those of the pods whose present attempt waits for its claim alone: what was
    sent along may be old, and a pod of a gang waits for the others, too.
    """
    claimed = pods.attempts(PodState.CLAIMED)
    return {
        pod.metadata.uid: pod for pod in sent if attempt_of(pod) in claimed and not pod.spec.ports
    }


_LACK_IMAGES = (PodState.DELIVERED, PodState.PULLING)


def pull_for(one: PodOnNode, pod: Pod, paces: Paces, now_ms: int) -> Instructions | None:
    """Return what follows for a pod that lacks its image: it is pulled, and that is reported. None
    if the image is on the node, or if the pod has none.
    """
    if not pod.spec.image or one.has_image or one.state not in _LACK_IMAGES:
        return None
    if one.state == PodState.DELIVERED:
        # For its claim, if the image is there.
        one.pod = pod
        return [PullImage(one.attempt, pod)]
    instructions: Instructions = []
    if one.pull_again_at is not None and now_ms >= one.pull_again_at:
        instructions.append(PullImage(one.attempt, pod))
    if now_ms >= one.posted_at + (paces.repeat_ms if one.pull_is_told else paces.pull_told_ms):
        one.pull_is_told, one.posted_at = True, now_ms
        report = Pulls(
            pod=one.attempt.pod,
            attempt=one.attempt.attempt,
            failures=one.pull_failures,
            trouble=one.pull_trouble,
        )
        instructions.append(PostReport(report))
    return instructions


def why_no_image(one: PodOnNode, pod: Pod, node: str, paces: Paces, now_ms: int) -> str:
    """Return why a pod does not wait for its image any more; "" if it does, or needs none."""
    if one.state != PodState.PULLING:
        return ""
    where = f"image {pod.spec.image} could not be pulled on node {node}"
    if one.has_given_up:
        tried = f", tried {counted(one.pull_failures, 'time')}" if one.pull_failures > 1 else ""
        return f"{where}{tried}: {one.pull_trouble}"
    if now_ms - one.since >= paces.pull_patience_ms:
        return f"{where} within {format_duration(paces.pull_patience_ms)}"
    return ""


def stop_of_pull(one: PodOnNode) -> Instructions:
    """Return the end of the pull of a pod that does not wait any more, if one runs."""
    return [StopPull(one.attempt)] if one.state == PodState.PULLING else []


def note_pull(pods: PodTable, event: PullStarted | PullEnded, paces: Paces) -> None:
    """Note that an image is being pulled, that it is on this node, or that the pull has failed."""
    if isinstance(event, PullStarted):
        _note_start(pods, event)
        return
    for attempt in event.attempts:
        one = pods.get(attempt)
        if one is None or one.state not in _LACK_IMAGES:
            continue
        if event.trouble:
            _note_failure(pods, one, event, paces)
            continue
        one.has_image = True
        if one.state == PodState.PULLING:
            # A pull that was not reported is not worth an event.
            one.pulled_ms = event.now_ms - one.since if one.pull_is_told else 0
            pods.move(attempt, Cause.IMAGE_THERE, event.now_ms).since = event.now_ms


def _note_start(pods: PodTable, event: PullStarted) -> None:
    one = pods.get(event.attempt)
    if one is None or one.state not in _LACK_IMAGES:
        return
    if one.state == PodState.DELIVERED:
        pods.move(event.attempt, Cause.IMAGE_LACKED, event.now_ms)
        one.since = one.posted_at = event.now_ms
    one.pod = one.pull_again_at = None


def _note_failure(pods: PodTable, one: PodOnNode, event: PullEnded, paces: Paces) -> None:
    if one.state == PodState.DELIVERED:
        pods.move(one.attempt, Cause.IMAGE_LACKED, event.now_ms)
        one.since = event.now_ms
    one.pod, one.pull_trouble = None, event.trouble
    one.pull_failures += 1
    one.has_given_up = event.is_final or one.pull_failures >= MOST_PULLS
    one.pull_again_at = event.now_ms + paces.pull_again_ms * 2 ** (one.pull_failures - 1)
    # This is reported at once.
    one.pull_is_told, one.posted_at = False, event.now_ms - paces.pull_told_ms
