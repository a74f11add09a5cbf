"""What goes into the agent's state machine and comes out: events and instructions, as values.

Each event carries its instant in monotonic milliseconds. Each instruction says which event answers
it, if one does; without that event the machine takes the instruction to have failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from batchq.api.node_report import Ended, NodeReport, PodAttempt, PodOutcome, StartClaim
from batchq.api.objects import Pod, PodGroup
from batchq.worker.rendezvous import Peer


class AgentEvent(Struct, frozen=True, kw_only=True):
    """Something that happened at `now_ms`."""

    now_ms: int


class DeliveredPod(Struct, frozen=True, kw_only=True):
    """An attempt from the node's queue, and its pod if that was read with it."""

    attempt: PodAttempt
    pod: Pod | None = None


class PodsDelivered(AgentEvent, frozen=True):
    """Attempts were taken from the node's queue."""

    deliveries: tuple[DeliveredPod, ...]


class ClaimsDue(AgentEvent, frozen=True):
    """The claims may be due for a check."""


class ClaimsApplied(AgentEvent, frozen=True):
    """The leader has announced that it applied claims of this node.

    `pods`: all of them as the leader has stored them, if it has sent them along.
    """

    pods: tuple[Pod, ...] = ()


class ClaimedPodsRead(AgentEvent, frozen=True):
    """The pods of claims as the server has them; None for a pod that does not exist."""

    pods: Mapping[str, Pod | None]


class ClaimAnswer(Struct, frozen=True, kw_only=True):
    """The server's answer to a claim: `ok`, `stop` (with the reason), or `fenced`; `no ports` or
    `no devices` if the claim was not posted because too few are free.
    """

    attempt: PodAttempt
    word: str
    reason: str = ""
    #: Whether the server shows the pod Running.
    is_running: bool = False
    #: The pod's group, if it exists.
    group: PodGroup | None = None
    #: The ports that were reserved for it.
    ports: tuple[int, ...] = ()
    #: The ids of the devices that it got.
    devices: tuple[str, ...] = ()


class ClaimsPosted(AgentEvent, frozen=True):
    """Claims were posted and leases taken, by a request that was sent at `asked_at`."""

    asked_at: int
    answers: tuple[ClaimAnswer, ...]


class GangsRead(AgentEvent, frozen=True):
    """First the groups, by key, of pods that wait for their gangs or must learn which pods have
    rejoined; then the pods, by uid, of the complete gangs among them. None for a record that does
    not exist.
    """

    groups: Mapping[str, PodGroup | None]
    pods: Mapping[str, Pod | None]


class PullStarted(AgentEvent, frozen=True):
    """The image of an attempt is being pulled."""

    attempt: PodAttempt


class PullEnded(AgentEvent, frozen=True):
    """The image of these attempts is on the node, or could not be pulled, with `trouble`.

    `is_final`: another pull would fail as well.
    """

    attempts: tuple[PodAttempt, ...]
    trouble: str = ""
    is_final: bool = False


class LeasesDue(AgentEvent, frozen=True):
    """The leases may be due for a renewal.

    `silent`: attempts whose work-horses have given no sign of life for long.
    """

    silent: frozenset[PodAttempt] = frozenset()


class StopsAnnounced(AgentEvent, frozen=True):
    """The leader has announced that it stops pods of this node."""


class AttemptAnswer(Struct, frozen=True, kw_only=True):
    """The server's answer about an attempt: `ok`, `stop` (with the reason), or `fenced`."""

    attempt: PodAttempt
    word: str
    reason: str = ""
    #: Whether the server shows the pod Running.
    is_running: bool = False


class LeasesRenewed(AgentEvent, frozen=True):
    """The leases of these attempts were renewed, by a request that was sent at `asked_at`."""

    asked_at: int
    answers: tuple[AttemptAnswer, ...]


class StopsRead(AgentEvent, frozen=True):
    """Which of these attempts are to stop."""

    answers: tuple[AttemptAnswer, ...]


class StartFailed(AgentEvent, frozen=True):
    """No work-horse could be started for the attempt."""

    attempt: PodAttempt


class EndRecord(Struct, frozen=True, kw_only=True):
    """What a work-horse has written about its attempt.

    `outcome` is None before the end; `result` is what the pod's function returned.
    """

    outcome: PodOutcome | None = None
    result: bytes | None = None
    #: Whether the agent is to report the outcome.
    hands_over: bool = False


class HorseEnd(Struct, frozen=True, kw_only=True):
    """A work-horse has finished with an attempt; the record is None if none is left."""

    attempt: PodAttempt
    exit_code: int
    record: EndRecord | None


class HorsesEnded(AgentEvent, frozen=True):
    """Work-horses have finished with their attempts, or have died."""

    ends: tuple[HorseEnd, ...]


class FormerPodsFound(AgentEvent, frozen=True):
    """A former agent of the node has left records of these attempts; none of them runs."""

    attempts: tuple[PodAttempt, ...]


class EndsDue(AgentEvent, frozen=True):
    """The ends that the server does not show yet are to be checked."""


class EndedPodsRead(AgentEvent, frozen=True):
    """The pods of ended attempts as the server has them; None for one that does not exist."""

    pods: Mapping[str, Pod | None]


class ProcessesEnded(AgentEvent, frozen=True):
    """The remaining processes of these attempts were killed, or some cannot be killed."""

    attempts: tuple[PodAttempt, ...]
    are_left: bool


class DueEndsRead(AgentEvent, frozen=True):
    """All that is known of ended attempts: what is posted, then the pods, then the leases.

    `posted`: the subjects of start claims and ends that wait to be applied. `leases_ms`: for how
    long another machine may still run an attempt. `records`: what the work-horses left.
    """

    attempts: tuple[PodAttempt, ...]
    posted: frozenset[str]
    pods: Mapping[str, Pod | None]
    leases_ms: Mapping[PodAttempt, int]
    records: Mapping[PodAttempt, EndRecord]


class EndsReported(AgentEvent, frozen=True):
    """The ends of these attempts were posted, with all of their output."""

    attempts: tuple[PodAttempt, ...]


class EndsConcluded(AgentEvent, frozen=True):
    """The leases of these ended attempts were ended, and their output is sent."""

    attempts: tuple[PodAttempt, ...]


class NodePodsRead(AgentEvent, frozen=True):
    """The pods that the server has on this node, at `server_now_ms` of its clock.

    `reported`: the subjects of ends that wait to be applied. `leased`: attempts with a lease.
    """

    server_now_ms: int
    pods: Sequence[Pod]
    reported: frozenset[str]
    leased: tuple[PodAttempt, ...]


class ServerAnswered(AgentEvent, frozen=True):
    """The server has answered; `run` names its run since its last start."""

    run: str


class StartedRun(Struct, frozen=True, kw_only=True):
    """An attempt whose command runs, and the author of its work-horse's reports."""

    attempt: PodAttempt
    author: str
    #: Milliseconds of the server's clock.
    started_at: int


class RunningPodsRead(AgentEvent, frozen=True):
    """The commands that run here, and their pods as this run of the server has them."""

    run: str
    pods: Mapping[str, Pod | None]
    runs: tuple[StartedRun, ...]


class SignalsReceived(AgentEvent, frozen=True):
    """The agent was told to stop `count` times since it started; sent again as time passes."""

    count: int


class UnstartedPodsRead(AgentEvent, frozen=True):
    """The pods that the server has on this node, which takes no more."""

    pods: Sequence[Pod]


class ReadClaimedPods(Struct, frozen=True):
    """Read these pods; answered by ClaimedPodsRead."""

    pods: tuple[str, ...]


class PostClaims(Struct, frozen=True):
    """Record the attempts, take their leases, post the claims, and read the groups.

    Each claim has the fence of its pod, and the name of its group. First reserve this many `ports`,
    and these amounts of `devices`, for the attempts that need some, and state them in the claims.
    Answered by ClaimsPosted.
    """

    claims: tuple[tuple[StartClaim, str, str], ...]
    ports: Mapping[PodAttempt, int] = {}
    devices: Mapping[PodAttempt, Mapping[str, int]] = {}


class PullImage(Struct, frozen=True):
    """Have the image of a pod pulled, unless it is on the node.

    Answered by PullStarted, and PullEnded follows; or by PullEnded at once.
    """

    attempt: PodAttempt
    pod: Pod


class StopPull(Struct, frozen=True):
    """End the pull of an attempt's image, unless other attempts wait for that image."""

    attempt: PodAttempt


class ReadGangs(Struct, frozen=True):
    """Read the groups with these keys, and the pods of complete gangs; answered by GangsRead."""

    groups: tuple[str, ...]


#: Attempts, each with the fence of its pod.
FencedAttempts: TypeAlias = tuple[tuple[PodAttempt, str], ...]


class RenewLeases(Struct, frozen=True):
    """Renew the leases of all these attempts in one request; answered by LeasesRenewed."""

    attempts: FencedAttempts


class ReadStops(Struct, frozen=True):
    """Read which of these attempts are to stop; answered by StopsRead."""

    attempts: FencedAttempts


class VouchFor(Struct, frozen=True):
    """Tell the work-horses of these attempts that their leases were renewed at `asked_at`."""

    attempts: tuple[PodAttempt, ...]
    asked_at: int


class StopPod(Struct, frozen=True):
    """Tell the work-horse of an attempt to stop its pod with the grace period."""

    attempt: PodAttempt
    reason: str


class DisownPod(Struct, frozen=True):
    """Tell the work-horse of an attempt that the server does not know it.

    The work-horse then asks the server itself.
    """

    attempt: PodAttempt


class StartPod(Struct, frozen=True, kw_only=True):
    """Have a work-horse run the attempt: the pod is Running and ours.

    Its lease started at `lease_from`. If the start fails, it is answered by StartFailed.
    """

    attempt: PodAttempt
    pod: Pod
    group: PodGroup
    lease_from: int
    #: The pods of its gang, by rank, if its group has `spec.launch`.
    peers: tuple[Peer, ...] = ()


class WritePeers(Struct, frozen=True):
    """Write the host file and the peers file of a running attempt again if the peers changed."""

    attempt: PodAttempt
    peers: tuple[Peer, ...]


class DeclinePod(Struct, frozen=True):
    """Drop the delivery of an attempt that is not started."""

    attempt: PodAttempt
    why: str


class IgnoreDelivery(Struct, frozen=True):
    """Drop the delivery of an attempt that is known already."""

    attempt: PodAttempt


class EndReport(Struct, frozen=True, kw_only=True):
    """The report of an end, and the result of the pod's function, if it returned one."""

    report: Ended
    result: bytes | None = None
    #: Whether the agent reports for the first time what a work-horse should have reported.
    replaces_horse: bool = False


class ReportEnds(Struct, frozen=True):
    """Send the unsent output and the results, then post the ends and end the leases.

    A reader who sees an end can so read all output. Answered by EndsReported.
    """

    ends: tuple[EndReport, ...]


class ReadEndedPods(Struct, frozen=True):
    """Read these pods; answered by EndedPodsRead."""

    pods: tuple[str, ...]


class EndProcesses(Struct, frozen=True):
    """Kill what is left of these attempts; answered by ProcessesEnded."""

    attempts: tuple[PodAttempt, ...]


class ReadDueEnds(Struct, frozen=True):
    """Read all that is known of ended attempts, in the order that DueEndsRead states.

    If all of them are explained, only their pods and records are needed.
    """

    attempts: tuple[PodAttempt, ...]
    is_unexplained: bool


class ConcludeEnds(Struct, frozen=True):
    """Send the output of the `unsent` attempts and end all leases; answered by EndsConcluded."""

    attempts: tuple[PodAttempt, ...]
    unsent: tuple[PodAttempt, ...]


class ForgetPods(Struct, frozen=True):
    """Remove the records of these attempts."""

    attempts: tuple[PodAttempt, ...]


class EndLeases(Struct, frozen=True):
    """End the leases of attempts that do not run here."""

    attempts: tuple[PodAttempt, ...]


class EnqueuePods(Struct, frozen=True):
    """Deliver Bound attempts again that the queue has lost."""

    attempts: tuple[PodAttempt, ...]


class ReadRunningPods(Struct, frozen=True):
    """Read which of these attempts' commands run, and their pods; answered by RunningPodsRead."""

    run: str
    attempts: tuple[PodAttempt, ...]


class PostReport(Struct, frozen=True):
    """Post a report."""

    report: NodeReport


class StopHorses(Struct, frozen=True):
    """Tell all work-horses to stop their pods with the grace period, or to kill them."""

    kills: bool


Instruction: TypeAlias = (
    ReadClaimedPods
    | PostClaims
    | PullImage
    | StopPull
    | ReadGangs
    | RenewLeases
    | ReadStops
    | VouchFor
    | StopPod
    | DisownPod
    | StartPod
    | DeclinePod
    | IgnoreDelivery
    | ReportEnds
    | ReadEndedPods
    | EndProcesses
    | ReadDueEnds
    | ConcludeEnds
    | ForgetPods
    | EndLeases
    | EnqueuePods
    | ReadRunningPods
    | PostReport
    | StopHorses
    | WritePeers
)
Instructions: TypeAlias = list[Instruction]

#: Instructions that need no server.
LOCAL = (
    DeclinePod,
    DisownPod,
    EndProcesses,
    ForgetPods,
    IgnoreDelivery,
    StopHorses,
    StopPod,
    StopPull,
    VouchFor,
    WritePeers,
)
#: Events without news.
TIMERS = (
    ClaimsDue,
    EndsDue,
    LeasesDue,
    LeasesRenewed,
    ServerAnswered,
    SignalsReceived,
    StopsRead,
)
