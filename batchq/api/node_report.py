"""What a node says: the only things that an agent and its work-horses may write about pods.

An agent changes no object. It leaves facts in the inbox of its own node; the leader's clerk
(`batchq/scheduler/node_reports.py`) looks whether they still hold, and folds them into objects and
ledger. So the credentials of a node are good for its own inbox and nothing else.

Facts are levels, not edges: one that is left twice, or folded twice, changes nothing the second
time, and whoever left it sees that it was folded by reading the object. Of one subject the last
fact counts.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import Struct, structs

from batchq.api.objects import Integer, Taint

#: What agents and schedulers of this version say to each other. Neighbours understand each other:
#: what one does not know it leaves aside, and what it does not find has a default.
PROTOCOL = 1

#: Annotations of a Node: who serves it, and which protocol that speaks.
AGENT_ANNOTATION = "batchq/agent"
PROTOCOL_ANNOTATION = "batchq/protocol"

#: Of what is said of an attempt's end, in characters.
LONGEST_MESSAGE = 2_000

#: The subject of what a node says about itself.
NODE = "node"


class PodOutcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a work-horse, or the agent in its place, has to say about the end of one attempt.

    `stopped` is the reason for which the pod's processes were told to stop, empty if they ended
    by themselves. Both `exit_code` and `signal` are None if they never ran or nobody saw the end.
    `how` tells the end in words, `killed by signal 9 (SIGKILL)`; `message` what else there is to
    say.
    """

    exit_code: Integer | None = None
    signal: Integer | None = None
    stopped: str = ""
    how: str = ""
    message: str = ""


class StartClaim(Struct, frozen=True, kw_only=True, tag="claim", tag_field="fact"):
    """`author`, a work-horse, is about to start this attempt of a pod that is Bound to the node."""

    pod: str
    attempt: Integer
    author: str

    @property
    def subject(self) -> str:
        return subject_of_pod(self.pod, self.attempt)


class Ended(Struct, frozen=True, kw_only=True, tag="ended", tag_field="fact"):
    """An attempt has ended, and no process of it is left."""

    pod: str
    attempt: Integer
    outcome: PodOutcome
    author: str = ""

    @property
    def subject(self) -> str:
        return subject_of_pod(self.pod, self.attempt)


class Runs(Struct, frozen=True, kw_only=True, tag="runs", tag_field="fact"):
    """An attempt runs here. Left after a restart of the server, which may have forgotten it."""

    pod: str
    attempt: Integer
    author: str
    started_at: Integer

    @property
    def subject(self) -> str:
        return subject_of_pod(self.pod, self.attempt)


class Serves(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="serves", tag_field="fact"):
    """The agent `agent` serves the node, and offers this. Labels and annotations are added to
    those that others set; taints, if any are given, replace them.
    """

    agent: str
    resources: dict[str, Integer]
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    taints: tuple[Taint, ...] = ()
    protocol: Integer = PROTOCOL

    @property
    def subject(self) -> str:
        return NODE


#: How the reason begins for which a node is out of service because of what stands under its keys.
SPOILED = "what stands under its keys in the server cannot be read"


class Leaves(Struct, frozen=True, kw_only=True, omit_defaults=True, tag="leaves", tag_field="fact"):
    """Nothing new shall be bound to the node, as long as `agent` is the one that serves it.

    `reason`, for people, is empty where the agent ends.
    """

    agent: str
    reason: str = ""

    @property
    def subject(self) -> str:
        return NODE


NodeReport: TypeAlias = StartClaim | Ended | Runs | Serves | Leaves


def subject_of_pod(pod: str, attempt: int) -> str:
    """What facts about an attempt are kept under."""
    return f"{pod}-{attempt}"


def encode(fact: NodeReport) -> bytes:
    """As it is left in the inbox; of a message so much as the leader keeps of it. A fact that is
    too long is never read, and the room of its pod never given away.
    """
    if isinstance(fact, Ended) and len(fact.outcome.message) > LONGEST_MESSAGE:
        cut = structs.replace(fact.outcome, message=fact.outcome.message[:LONGEST_MESSAGE])
        fact = structs.replace(fact, outcome=cut)
    return _encoder.encode(fact)


def decode(stored: bytes) -> NodeReport:
    """Raises msgspec.MsgspecError for what is no fact that this version knows."""
    fact: NodeReport = _decoder.decode(stored)
    return fact


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[NodeReport] = msgspec.json.Decoder(NodeReport)
