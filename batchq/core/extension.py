"""Extension points: the functions that plugins implement, and how several answers are combined; and
plugin traits: what a plugin promises about its answers.

`ExtensionPoint` holds what is registered at a point; callers combine the answers as listed below. A
plugin is an object with a `name` and a method for each point that it implements, named as the
point's `method`. Votes are pure: asked twice about the same state, a plugin returns the same answer
twice, and changes nothing.

| point       | asked                                    | several answers combine by |
|-------------|------------------------------------------|----------------------------|
| preEnqueue  | may this Pending group stand in line?    | every refusal is kept      |
| admissible  | may this group be admitted now?          | every refusal is kept      |
| queueOrder  | which queue is served next?              | sort key, in plugin order  |
| groupOrder  | which group of a queue comes first?      | sort key, in plugin order  |
| podOrder    | which pod of a group comes first?        | sort key, in plugin order  |
| predicate   | may a pod of this shape be on this node? | first refusal              |
| score       | how good is this node for it?            | weighted sum               |
| groupReady  | are this group's placements enough?      | all must agree             |
| preemptable | may this preemptor of the same queue     | at least one agrees, and   |
|             | take this victim?                        | none refuses               |
| reclaimable | the same, of another queue               | the same                   |
| permit      | its quota is reserved: may it start?     | every refusal is kept      |

`preemptable` and `reclaimable` answer True (agreed), False (refused) or None (no opinion), for one
victim at a time and for the current state, without the victims chosen before. A vote with a fourth
parameter gets what the preemptor lacks (`batchq.core.session.state.Shortage`).

A plugin declares its traits as one value:

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

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from inspect import signature
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from msgspec import Struct

from batchq.api.reasons import Verdict, Waiting
from batchq.errors import PluginFailed


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


class PluginTraits(Struct, frozen=True, kw_only=True):
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
    #: At `groupOrder`: moreover, groups of equal priority have equal keys.
    orders_by_priority: bool = False
    #: At `preemptable` and `reclaimable`: never agrees to a victim, but only refuses some.
    only_vetoes: bool = False
    #: At `preemptable` and `reclaimable`: a refusal follows from the victim's record, and from the
    #: preemptor's queue and priority, so that it stands while victims are chosen.
    refusals_last: bool = False
    #: At the same points: refuses single pods of a group that has no more than minMember of them.
    keeps_min_member: bool = False
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


F = TypeVar("F")


class Plugin(Protocol):
    """A policy: an object with a name, and a method for each point that it implements.

    An attribute `traits` may declare properties of its answers.
    """

    name: str


#: Point -> the plugins called there, in this order, each with its weight.
PluginPlaces: TypeAlias = Mapping[str, Sequence[tuple[Plugin, int]]]


class AtOnce(Struct, frozen=True):
    """A plugin's batched methods, for many nodes or pods (`placement.node_order`)."""

    many: Callable[..., Any]
    rows: Callable[..., Any] | None = None


class Registration(Struct, Generic[F], frozen=True):
    """A plugin's function at a point."""

    plugin: str
    function: F
    weight: int = 1
    at_once: AtOnce | None = None
    traits: PluginTraits = _PROMISES_NOTHING


class ExtensionPoint(list[Registration[F]], Generic[F]):
    """The plugins registered at one point, in the order of the calls.

    It is a list because sessions iterate over it for every group and every pod.
    """

    def __init__(self, name: str, method: str) -> None:
        super().__init__()
        self.name = name
        self.method = method

    def add(
        self,
        plugin: str,
        function: F,
        weight: int = 1,
        at_once: AtOnce | None = None,
        traits: PluginTraits = _PROMISES_NOTHING,
    ) -> None:
        """Register a function. Raise ValueError if the plugin is registered at this point."""
        if any(entry.plugin == plugin for entry in self):
            raise ValueError(f"plugin {plugin} is registered at {self.name} already")
        self.append(Registration(plugin, function, weight, at_once, traits))


#: Point -> the method of a plugin that implements it.
POINTS: dict[str, str] = {
    "preEnqueue": "pre_enqueue",
    "admissible": "admissible",
    "queueOrder": "queue_order",
    "groupOrder": "group_order",
    "podOrder": "pod_order",
    "predicate": "predicate",
    "score": "score",
    "groupReady": "group_ready",
    "preemptable": "preemptable",
    "reclaimable": "reclaimable",
    "permit": "permit",
}


#: The points at which plugins vote on victims.
VOTES = frozenset({"preemptable", "reclaimable"})
#: The parameters of every vote: session, preemptor, victim.
_LEAST_ASKED = 3


def with_shortage(vote: Callable[..., Any]) -> Callable[..., Any]:
    """Return a vote that takes the preemptor's shortage as its fourth argument.

    A plugin whose vote does not depend on the shortage has no parameter for it.
    """
    if len(signature(vote).parameters) > _LEAST_ASKED:
        return vote
    return lambda session, preemptor, victim, _: vote(session, preemptor, victim)


def implemented(plugin: Plugin) -> tuple[str, ...]:
    """Return the points that a plugin implements."""
    return tuple(
        point for point, method in POINTS.items() if getattr(plugin, method, None) is not None
    )


def everywhere(plugins: Iterable[tuple[Plugin, int]]) -> PluginPlaces:
    """Return each plugin at every point that it implements, in the order given."""
    all_of_them = tuple(plugins)
    return {
        point: tuple(pair for pair in all_of_them if point in implemented(pair[0]))
        for point in POINTS
    }


_LONGEST = 300
#: The answers assumed for a plugin that raises, for all points except those of an order.
_REFUSALS: dict[str, Callable[[Verdict], Any]] = {
    "preEnqueue": lambda verdict: [verdict],
    "admissible": lambda verdict: [verdict],
    "permit": lambda verdict: [verdict],
    "predicate": lambda verdict: verdict,
    "score": lambda verdict: 0,
    "groupReady": lambda verdict: False,
    "preemptable": lambda verdict: False,
    "reclaimable": lambda verdict: False,
}


def is_of_others(plugin: Plugin) -> bool:
    """Return whether a plugin comes from another package."""
    return type(plugin).__module__.partition(".")[0] != "batchq"


def guarded(
    plugin: Plugin, point: str, function: Callable[..., Any], failures: dict[str, str]
) -> Callable[..., Any]:
    """Return the plugin's function wrapped so that it refuses instead of raising, and records the
    error in `failures`.

    At the points of an order, the wrapped function raises PluginFailed.
    """

    def asked(*arguments: Any) -> Any:
        try:
            return _in_form(point, function(*arguments))
        except Exception as error:  # third-party code may raise anything
            message = f"plugin {plugin.name} failed at {point}: {_shown(error)}"
            if point not in _REFUSALS:
                raise PluginFailed(
                    message,
                    hint=f"take {plugin.name} off {point} in scheduler.yaml, or correct it",
                ) from error
            failures.setdefault(f"{plugin.name} at {point}", _shown(error))
            return _REFUSALS[point](
                Verdict(plugin=plugin.name, reason=Waiting.MISCONFIGURED, detail=message)
            )

    return asked


def _in_form(point: str, answer: Any) -> Any:
    """Return the answer. Raise TypeError if the point does not allow it."""
    match point:
        case "preEnqueue" | "admissible" | "permit":
            answer = list(answer)
            fits = all(isinstance(one, Verdict) for one in answer)
            wanted = "a list of Verdict"
        case "predicate":
            fits, wanted = answer is None or isinstance(answer, Verdict), "a Verdict or None"
        case "score":
            fits, wanted = isinstance(answer, int), "an integer"
        case _:
            return answer
    if not fits:
        raise TypeError(f"expected {wanted}, found {answer!r}")
    return answer


def guarded_clock(
    plugin: Plugin, clock: Callable[..., Iterable[int]], failures: dict[str, str]
) -> Callable[..., Iterable[int]]:
    """Return the plugin's `due_at` wrapped so that it yields no instants instead of raising."""

    def asked(*arguments: Any) -> Iterable[int]:
        try:
            return [int(at) for at in clock(*arguments)]
        except Exception as error:  # third-party code may raise anything
            failures.setdefault(f"{plugin.name} at due_at", _shown(error))
            return []

    return asked


def _shown(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:_LONGEST] if text else type(error).__name__
