"""Node reports: the only things that an agent and its work-horses may write about pods.

An agent changes no object. It posts reports to the queue of its own node; the leader's node-report
processor (`batchq/scheduler/node_reports.py`) checks whether they still hold, and applies them to
objects and ledger. So a node's credentials are good for its own queue and nothing else.

Reports are levels, not edges: a report that is posted or applied twice changes nothing the second
time, and its author sees from the object that it was applied. A newer report on a subject replaces
an older one.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import TypeAlias

import msgspec
from msgspec import Struct, structs

from batchq.api.objects import Integer, Taint

#: The version of the protocol between agents and schedulers. Neighbouring versions understand each
#: other: unknown fields are ignored, and missing ones have defaults. Since 2, the leader announces
#: stops on the wake-up channels of nodes; an agent finds them later without. Since 3, agents start
#: pods of groups with `spec.launch`. Since 4, they start pods of such gangs again alone (`restart:
#: pod`), and gangs of MPI; no such pod is bound to an older one. They also report that they
#: pull an image.
PROTOCOL, FIRST_WITH_MPI = 4, 4

#: The interval of an agent's heartbeats, unless `batchq worker --beat` sets another.
BEAT_MS = 5_000

#: Annotations of a Node: the agent that serves it, and that agent's protocol.
AGENT_ANNOTATION = "batchq/agent"
PROTOCOL_ANNOTATION = "batchq/protocol"
#: Annotations of a Node, for people: where the pods of gangs with `spec.launch` find its pods.
ADDRESS_ANNOTATION = "batchq/address"
PORTS_ANNOTATION = "batchq/ports"
#: Under which accounts the pods of a node run: `owner`, `root`, or `uid 1000`, the agent's own.
RUN_AS_ANNOTATION = "batchq/run-as"

#: How the names of the abstract unix sockets begin by which an API recognises the accounts of the
#: agents of its own machine.
AGENT_SOCKET = "batchq-agent/"

#: The longest message about an attempt's end, in characters.
LONGEST_MESSAGE = 2_000
#: The exit code of a pod without its container, as docker has it.
NO_CONTAINER = 125
#: How many pulls of an image may fail before its pod fails.
MOST_PULLS = 3

#: An IPv6 address with a zone.
_LONGEST_ADDRESS = 64

#: The subject of a node's reports about itself.
NODE = "node"


class PodAttempt(Struct, frozen=True):
    """One attempt of a pod, by the pod's uid."""

    pod: str
    attempt: int

    @property
    def id(self) -> str:
        """`<pod>-<attempt>`: the subject of reports about it, and the id of its RQ job."""
        return f"{self.pod}-{self.attempt}"


class PodOutcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The end of one attempt, as reported by its work-horse, or by the agent in its place.

    `stopped` is the reason for which the pod's processes were told to stop, "" if they ended on
    their own. Both `exit_code` and `signal` are None if they never ran or their end was not
    observed. `how` describes the end, `killed by signal 9 (SIGKILL)`; `message` has further
    details.
    """

    exit_code: Integer | None = None
    signal: Integer | None = None
    stopped: str = ""
    how: str = ""
    message: str = ""


class StartClaim(
    Struct, frozen=True, kw_only=True, omit_defaults=True, tag="claim", tag_field="fact"
):
    """The agent `author` asks to start this attempt of a pod that is Bound to its node.

    If the pod's group has `spec.launch`, it states where the other pods will reach this one; if the
    pod requests devices, which ones it gets.
    """

    pod: str
    attempt: Integer
    author: str
    address: str = ""
    ports: tuple[Integer, ...] = ()
    devices: tuple[str, ...] = ()
    #: For how long its image was pulled.
    pulled_ms: Integer = 0

    @property
    def subject(self) -> str:
        return subject_of_pod(self.pod, self.attempt)


class Pulls(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="pulls", tag_field="fact"):
    """The image of an attempt that is Bound to the node is being pulled.

    `trouble`: why the last of `failures` pulls failed, if the next one has not begun.
    """

    pod: str
    attempt: Integer
    failures: Integer = 0
    trouble: str = ""

    @property
    def subject(self) -> str:
        return subject_of_pod(self.pod, self.attempt)


class Ended(Struct, frozen=True, kw_only=True, tag="ended", tag_field="fact"):
    """An attempt has ended, and none of its processes is left."""

    pod: str
    attempt: Integer
    outcome: PodOutcome
    author: str = ""

    @property
    def subject(self) -> str:
        return subject_of_pod(self.pod, self.attempt)


class Runs(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="runs", tag_field="fact"):
    """An attempt runs here. Posted after a restart of the server, which may have lost
    the attempt.
    """

    pod: str
    attempt: Integer
    author: str
    started_at: Integer
    devices: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        return subject_of_pod(self.pod, self.attempt)


class Serves(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="serves", tag_field="fact"):
    """The agent `agent` serves the node, and offers these resources. Labels and annotations are
    added to those that others set; taints, if any are given, replace them.
    """

    agent: str
    resources: dict[str, Integer]
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    #: Agents of the first version do not state it.
    protocol: Integer = 1

    @property
    def subject(self) -> str:
        return NODE


#: The beginning of the reason of a node that is out of service because of unreadable keys.
SPOILED = "its keys in the server cannot be read"


class Leaves(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="leaves", tag_field="fact"):
    """Nothing new may be bound to the node while `agent` is the one that serves it.

    `reason`, for people, is "" when the agent ends, or if a work-horse has found it dead.
    """

    agent: str
    reason: str = ""
    is_dead: bool = False

    @property
    def subject(self) -> str:
        return NODE


NodeReport: TypeAlias = StartClaim | Pulls | Ended | Runs | Serves | Leaves


def subject_of_pod(pod: str, attempt: int) -> str:
    """Return the subject of reports about an attempt."""
    return f"{pod}-{attempt}"


def is_address(text: str) -> bool:
    """Return whether it is an IP address, by which pods of a gang can reach each other. A name
    might mean something else on another machine, or nothing.
    """
    try:
        ip_address(text)
    except ValueError:
        return False
    return len(text) <= _LONGEST_ADDRESS


def encode(report: NodeReport) -> bytes:
    """Return the stored form, with the message cut to the length that the leader keeps. A longer
    report would never be read, and its pod's resources never freed.
    """
    if isinstance(report, Ended) and len(report.outcome.message) > LONGEST_MESSAGE:
        cut = structs.replace(report.outcome, message=report.outcome.message[:LONGEST_MESSAGE])
        report = structs.replace(report, outcome=cut)
    return _encoder.encode(report)


def decode(stored: bytes) -> NodeReport:
    """Return the report. Raises msgspec.MsgspecError for one that this version does not know."""
    report: NodeReport = _decoder.decode(stored)
    return report


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[NodeReport] = msgspec.json.Decoder(NodeReport)
