"""Plugin traits: what a plugin promises about its answers, declared as one value.

    class Owned:
        name = "owned"
        traits = PluginTraits(lifted_by={Waiting.MISCONFIGURED: frozenset()})

Most waiting groups are alike: groups of one queue with equal requests form an equivalence class,
which a session evaluates once and parks while a limit refuses it. With a promise, one answer of a
plugin is valid for a whole class, or for later sessions. The defaults promise nothing and are right
for every plugin: each session asks the plugin about each waiting group, and the groups that it
refuses leave their class.

kube-scheduler works alike: a plugin declares which events could change its answer
(`EventsToRegister`), and a plugin that declares none is asked again after every event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from batchq.api.reasons import Waiting


class LiftingChange(StrEnum):
    """A change that can lift a refusal.

    A change of the group's own record, of queues, quotas, nodes or priority classes need not be
    named: it always has the group asked about again.
    """

    #: An admission check was written or removed, or the lease of its controller has moved.
    CHECKS = "checks"
    #: A group that this one depends on has changed its phase, or its last process has ended.
    DEPENDENCIES = "dependencies"
    #: An instant of the group's record has come: the end of its back-off, or of a check's retry.
    CLOCK = "clock"


#: Reason -> the changes that can lift a refusal for it.
LiftedBy: TypeAlias = Mapping[Waiting, frozenset[LiftingChange]]


class RefusesBy(StrEnum):
    """What a plugin's refusals at `admissible` follow from."""

    #: Anything: two groups that ask for the same may be answered differently.
    ANYTHING = "anything"
    #: Queue, namespace, priority and request of a group, and sums of the ledger. While a limit of
    #: the cluster or of a queue is full for a group, it is refused in line or not at all.
    REQUESTS = "requests"
    #: As REQUESTS, and nothing is refused but what can never fit, and what a limit of the ledger
    #: has no capacity for.
    LEDGER = "ledger"


class Rule(StrEnum):
    """A rule that other parts of batchq follow only while a plugin enforces it."""

    #: Gated pods are neither created nor counted. Enforced at `preEnqueue`.
    SCHEDULING_GATES = "scheduling gates"
    #: The limits of queues and of the cluster bind an admission. Enforced at `admissible`.
    CAPACITY = "capacity"
    #: A group with a reservation waits until its admission checks pass. Enforced at `permit`.
    ADMISSION_CHECKS = "admission checks"


#: The point at which a plugin enforces a rule.
POINT_OF_RULE: Mapping[Rule, str] = {
    Rule.SCHEDULING_GATES: "preEnqueue",
    Rule.CAPACITY: "admissible",
    Rule.ADMISSION_CHECKS: "permit",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginTraits:
    """What a plugin promises. Every default is safe."""

    #: At `preEnqueue` and `admissible`: nothing changes the plugin's answer about a group but a
    #: change of the group's record, of queues, quotas, nodes or priority classes, and, for a
    #: refusal, the changes named here for its reason. None: the answer may change at any time.
    lifted_by: LiftedBy | None = None
    #: At `preEnqueue`: a group without gates, dependencies and checks is never refused.
    passes_plain: bool = False
    #: At `admissible`: what refusals follow from.
    refuses_by: RefusesBy = RefusesBy.ANYTHING
    #: At `groupOrder`: a waiting group keeps its key while its record and the priority classes
    #: stay the same.
    order_lasts: bool = False
    #: At `preemptable` and `reclaimable`: never agrees to a victim, but only refuses some.
    only_vetoes: bool = False
    #: At the same points: what is true of the victims that it refuses, for `batchq why`.
    spares: str = ""
    #: The rules that hold because this plugin is on.
    enforces: frozenset[Rule] = frozenset()


_PROMISES_NOTHING = PluginTraits()


def traits_of(plugin: object) -> PluginTraits:
    """Return what a plugin declares, or the defaults.

    Raises TypeError if its attribute `traits` is not a PluginTraits.
    """
    traits = getattr(plugin, "traits", _PROMISES_NOTHING)
    if not isinstance(traits, PluginTraits):
        raise TypeError(f"expected traits to be a PluginTraits, found {traits!r}")
    return traits
