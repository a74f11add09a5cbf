"""From a seed to a scenario: a small cluster, its users' requests, and its faults.

The groups are gangs, arrays and pairs with retries, cancels, dependencies, suspensions, priorities,
limits and walltimes; they preempt each other, and queues reclaim the capacity that they lent. For
each group the possible ends are known, whatever faults occur.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from msgspec import Struct, structs

from batchq.api.node_features import with_runtime_label
from batchq.api.objects import (
    Container,
    Dependency,
    Launch,
    Object,
    PodGroup,
    QueuePreemption,
    Retry,
)
from batchq.api.resources import CPU, GPU
from batchq.api.transaction import Transaction
from batchq.client.changes import cancel, create, resume, suspend
from batchq.config import SchedulerConfig
from batchq.core.session.snapshot import Settings
from batchq.ports import Reader
from tests.builders import a_group, a_priority, a_queue, a_quota, a_task, amounts
from tests.faults.machines import Script
from tests.faults.processes import Request
from tests.faults.scenario import (
    AnyFault,
    CrashNode,
    Cut,
    DropDeliveries,
    KillAgent,
    KillHorse,
    KillScheduler,
    Outage,
    PauseAgent,
    PauseHorse,
    PauseNode,
    PauseScheduler,
    PauseServer,
    RepeatDeliveries,
    RestartServer,
    Scenario,
    StopAgent,
)
from tests.faults.store_faults import Chance, Mode, never

SETTINGS = Settings(
    in_queue_timeout_ms=60_000,
    recovery_timeout_ms=60_000,
    node_timeout_ms=16_000,
    pod_lease_ms=12_000,
    backoff_first_ms=2_000,
    backoff_most_ms=20_000,
)
CONFIG = SchedulerConfig(settings=SETTINGS)

CHAOS_MS = 90_000
#: The pods of a group either go anywhere, or all compete for one node.
_QUEUES = (
    ("default", "default", "capped", "strict"),
    ("default", "capped", "strict", "lender", "borrower"),
    ("lender", "borrower"),
)
COMPLETED, FAILED, CANCELLED = "Completed", "Failed", "Cancelled"


class Meant(Struct, frozen=True):
    """A group as its author intended it, and its possible ends once it has run."""

    group: PodGroup
    script: Script
    ends: frozenset[str]


def scenario_of(
    seed: int,
    *,
    restores: bool = True,
    launches: bool = False,
    devices: bool = False,
    beside: bool = False,
) -> tuple[Scenario, dict[str, frozenset[str]]]:
    """Return the scenario of a seed, and the possible ends of each of its groups.

    With `launches`, each gang of several pods is a distributed job, which restarts whole, or
    pod by pod if it is elastic, and every second group has an image, which is pulled. With
    `devices`, every pod requests GPUs. With `beside`, the agents run on the server's machine, and
    nothing but the server and the schedulers fails.
    """
    dice = random.Random(seed)
    offer = amounts(cpu=4, gpu=4) if devices else amounts(cpu=4)
    nodes = {f"n{k}": offer for k in range(1, dice.randint(2, 4) + 1)}
    lost_for_good = dice.random() < 0.2
    room = 4 * (len(nodes) - (1 if lost_for_good else 0))
    meant: list[Meant] = []
    queues = dice.choice(_QUEUES)
    crowd = 4 if "default" not in queues else 0
    for k in range(dice.randint(3, 7) + crowd):
        one = _group(dice, f"g{k}", room, meant, queues)
        one = _launched(one, f"registry.example/{k}" if k % 2 else "") if launches else one
        meant.append(_with_devices(one) if devices else one)
    forgets = restores and dice.random() < 0.3
    requests, ends = _requests(dice, meant, forgets=forgets)
    faults = _faults(dice, sorted(nodes), lost_for_good=lost_for_good, forgets=forgets)
    scenario = Scenario(
        nodes=nodes,
        objects=_objects(dice),
        scripts={one.group.metadata.name: one.script for one in meant},
        requests=tuple(requests),
        config=CONFIG,
        faults=tuple(faults),
        chaos_ends_at=CHAOS_MS,
        chance=_chances(dice),
        delay_ms=lambda: dice.choice((50, 500, 3_000, 10_000, 25_000)),
        copies_every_ms=10_000 if forgets else None,
    )
    return (_beside_server(scenario, seed) if beside else scenario), ends


#: Pauses of a server: up to somewhat longer than a lease, and much longer.
_PAUSES_MS = (1_000, 5_000, 11_000, 12_500, 14_000, 20_000, 40_000)


def _beside_server(scenario: Scenario, seed: int) -> Scenario:
    """Return the scenario with its agents on the server's machine, and with the faults of servers
    and schedulers only: no pod that has started is lost by these.
    """
    dice = random.Random(f"beside {seed}")
    # Often as early as the first pod, before its agent has renewed any lease.
    times = [dice.choice((dice.randint(1_000, 6_000), _when(dice))) for _ in range(3)]
    faults: list[AnyFault] = [
        PauseServer(at=at, lasts_ms=dice.choice(_PAUSES_MS))
        for at in times[: dice.randint(1, len(times))]
    ]
    faults += [
        fault
        for fault in scenario.faults
        if isinstance(fault, KillScheduler | PauseScheduler | RestartServer | DropDeliveries)
        and getattr(fault, "forgets_ms", 0) == 0
    ]
    chances = scenario.chance

    def chance_of(caller: str) -> Chance:
        return never if caller.startswith(("agent", "horses")) else chances(caller)

    return structs.replace(
        scenario,
        faults=tuple(faults),
        chance=chance_of,
        copies_every_ms=None,
        beside_server=True,
    )


def _objects(dice: random.Random) -> tuple[Object, ...]:
    takes = QueuePreemption(reclaim="Any")
    capability = {"cpu": dice.choice((4, 6))}
    capped = a_queue("capped", capability=capability, max_pod_groups=3, preemption=takes)
    lender = a_queue("lender", deserved=amounts(cpu=dice.choice((4, 6))), preemption=takes)
    # More important groups preempt even while their queue borrows.
    preemption = QueuePreemption(reclaim="Any", borrowing=dice.choice(("Never", 50)))
    borrower = a_queue("borrower", deserved=amounts(cpu=2), preemption=preemption)
    found: list[Object] = [
        capped,
        a_queue("strict", strict=True, preemption=takes),
        lender,
        borrower,
    ]
    found += [a_priority("high", 100), a_priority("middle", 50)]
    if dice.random() < 0.5:
        found.append(a_quota(cpu=dice.choice((4, 8))))
    return tuple(found)


def _group(
    dice: random.Random, name: str, room: int, before: list[Meant], queues: Sequence[str]
) -> Meant:
    cpu = dice.choice((1, 1, 2))
    pods = dice.randint(1, min(4, room // cpu, 4 // cpu))
    spec: dict[str, object] = {"queue": dice.choice(queues)}
    shape = dice.choice(("gang", "gang", "array", "elastic"))
    if shape == "array":
        spec["min_member"] = 1
        pods = dice.randint(2, 5)
    elif shape == "elastic" and pods > 1:
        spec["min_member"] = dice.randint(1, pods - 1)
    runtime = dice.choice((500, 3_000, 8_000, 20_000, 40_000))
    fails, ends = 0, frozenset({COMPLETED})
    luck = dice.random()
    if luck < 0.2:
        fails = dice.randint(1, 2)
        spec["retry"] = Retry(limit=fails, backoff=dice.choice((0, 1_000, 5_000)))
    elif luck < 0.3:
        fails, ends = 10_000, frozenset({FAILED})
        spec["retry"] = Retry(limit=dice.randint(0, 2), backoff=1_000)
    elif luck < 0.4:
        runtime, ends = 10_000_000, frozenset({FAILED})
        spec["walltime"] = dice.choice((2_000, 10_000))
    if before and dice.random() < 0.25:
        other = dice.choice(before)
        condition = dice.choice(("ok", "any", "failed"))
        spec["depends_on"] = (Dependency(name=other.group.metadata.name, condition=condition),)
    if dice.random() < 0.4:
        spec["priority_class_name"] = dice.choice(("high", "middle"))
    if spec.get("min_member", pods) == pods:
        spec.pop("min_member", None)
    grace = dice.choice((0, 1_000, 5_000))
    command = ("run", name)
    task = a_task("w", pods, requests={"cpu": cpu}, termination_grace=grace, command=command)
    script = Script(runtime_ms=runtime, fails=fails, stops_in_ms=dice.choice((0, 500, 60_000)))
    return Meant(a_group(name, tasks=(task,), **spec), script, ends)


def _launched(meant: Meant, image: str) -> Meant:
    """Return a gang of several pods with `spec.launch`, and any other group as it is; with an
    image if one is given.
    """
    group = meant.group
    [task] = group.spec.tasks
    if image:
        template = structs.replace(task.template, container=Container(image=image))
        tasks = (structs.replace(task, template=with_runtime_label(template)),)
        group = structs.replace(group, spec=structs.replace(group.spec, tasks=tasks))
        meant = structs.replace(meant, group=group)
    least = group.spec.min_member
    if task.replicas == 1 or least == 1:
        return meant
    launch = Launch(ports=2) if least is None else Launch(ports=2, restart="pod")
    launched = structs.replace(group, spec=structs.replace(group.spec, launch=launch))
    if launch.restart == "pod":
        return Meant(launched, structs.replace(meant.script, rejoins=True), meant.ends)
    # Each pod fails as often as the script says, and the rounds of all pods count together.
    ends = meant.ends | {FAILED} if meant.script.fails else meant.ends
    return Meant(launched, meant.script, ends)


def _with_devices(meant: Meant) -> Meant:
    """Return a group whose pods request as many GPUs as cpus."""
    spec = meant.group.spec
    tasks = tuple(
        structs.replace(
            task,
            template=structs.replace(
                task.template,
                requests={**task.template.requests, GPU: task.template.requests[CPU]},
            ),
        )
        for task in spec.tasks
    )
    group = structs.replace(meant.group, spec=structs.replace(spec, tasks=tasks))
    return Meant(group, meant.script, meant.ends)


def _after(other: frozenset[str], condition: str, own: frozenset[str]) -> frozenset[str]:
    """Return the possible ends of a group that depends on one with these possible ends."""
    met = {
        "ok": {COMPLETED},
        "failed": {FAILED, CANCELLED},
        "any": {COMPLETED, FAILED, CANCELLED},
    }[condition]
    found: set[str] = set()
    if other & met:
        found |= own
    if other - met:
        found.add(FAILED)
    return frozenset(found)


def _requests(
    dice: random.Random, meant: list[Meant], *, forgets: bool
) -> tuple[list[Request], dict[str, frozenset[str]]]:
    """A server that loses writes may lose a resume, so such scenarios suspend no group."""
    requests: list[Request] = []
    ends: dict[str, frozenset[str]] = {}
    at = 1_000
    for one in meant:
        name, found = one.group.metadata.name, one.ends
        at += dice.choice((0, 200, 2_000, 10_000))
        requests.append(submission(at, one.group))
        for dependency in one.group.spec.depends_on:
            found = _after(ends[dependency.name], dependency.condition, found)
            if forgets:
                found |= {FAILED}
        luck = dice.random()
        if luck < 0.15:
            requests.append(cancelling(at + dice.choice((0, 3_000, 30_000)), name))
            found |= {CANCELLED}
        elif luck < 0.3 and not forgets:
            since = at + dice.choice((0, 3_000, 15_000))
            requests.append(suspending(since, name))
            requests.append(resuming(since + dice.choice((1_000, 20_000)), name))
        ends[name] = found
    return requests, ends


def submission(at: int, group: PodGroup) -> Request:
    """Submit a group."""
    name = group.metadata.name

    def build(reader: Reader, now_ms: int) -> Transaction:
        return create(reader, group, now_ms=now_ms, uid=group.metadata.uid)

    return Request(at=at, what=f"submit {name}", build=build, happened=_exists(name))


def cancelling(at: int, name: str) -> Request:
    """Cancel a group."""
    return _verb(at, "cancel", name, cancel)


def suspending(at: int, name: str) -> Request:
    """Suspend a group."""
    return _verb(at, "suspend", name, suspend)


def resuming(at: int, name: str) -> Request:
    """Resume a group."""
    return _verb(at, "resume", name, resume)


def _verb(at: int, verb: str, name: str, change: Callable[..., Transaction | None]) -> Request:
    def build(reader: Reader, now_ms: int) -> Transaction | None:
        return change(reader, f"default/{name}", now_ms=now_ms)

    return Request(at=at, what=f"{verb} {name}", build=build)


def _exists(name: str) -> Callable[[Reader], bool]:
    return lambda reader: reader.get("PodGroup", f"default/{name}") is not None


def _chances(dice: random.Random) -> Callable[[str], Chance]:
    """Give each line its own chances; some lines are worse than others."""
    often = dice.choice((0.0, 0.01, 0.03, 0.1))
    modes = tuple(Mode)

    def chance_of(caller: str) -> Chance:
        own = random.Random(f"{caller} {dice.random()}")
        return lambda: own.choice(modes) if own.random() < often else None

    return chance_of


def _faults(
    dice: random.Random, nodes: list[str], *, lost_for_good: bool, forgets: bool
) -> list[AnyFault]:
    found = [_fault(dice, nodes) for _ in range(dice.randint(0, 10))]
    if lost_for_good:
        node = nodes[-1]
        # A node that is to be lost for good must not return through another fault.
        found = [fault for fault in found if getattr(fault, "node", "") != node]
        kind = dice.choice((KillAgent, CrashNode))
        found.append(kind(at=_when(dice), node=node, back_after_ms=None))
    if forgets:
        found.append(
            RestartServer(
                at=dice.randint(20_000, CHAOS_MS - 10_000),
                lasts_ms=dice.choice((0, 5_000)),
                forgets_ms=dice.choice((1, 10_000, 30_000)),
            )
        )
    return found


def _fault(dice: random.Random, nodes: list[str]) -> AnyFault:
    at, node = _when(dice), dice.choice(nodes)
    scheduler = dice.choice(("scheduler a", "scheduler b"))
    lasts_ms = dice.choice((1_000, 5_000, 15_000, 40_000))
    match dice.randrange(18):
        case 5:
            return PauseScheduler(
                at=at, name=scheduler, lasts_ms=lasts_ms, in_calls=dice.randint(1, 6)
            )
        case 6:
            return KillScheduler(at=at, name=scheduler, back_after_ms=lasts_ms)
        case 7 | 12 | 13:
            alone = dice.choice((f"agent {node}", f"horses {node}", "client"))
            return Cut(at=at, caller=dice.choice((node, scheduler, alone)), lasts_ms=lasts_ms)
        case 8:
            return Outage(at=at, lasts_ms=lasts_ms)
        case 9:
            return RestartServer(at=at, lasts_ms=dice.choice((0, 2_000)))
        case 10:
            return DropDeliveries(at=at, node=node)
        case 11:
            return RepeatDeliveries(at=at, node=node)
        case number:
            return _fault_of_processes(number, dice, at=at, node=node, lasts_ms=lasts_ms)


def _fault_of_processes(
    number: int, dice: random.Random, *, at: int, node: str, lasts_ms: int
) -> AnyFault:
    match number:
        case 0 | 1:
            return KillHorse(at=at, which=dice.randrange(10))
        case 2:
            return KillAgent(at=at, node=node, back_after_ms=lasts_ms)
        case 3:
            return CrashNode(at=at, node=node, back_after_ms=lasts_ms)
        case 4:
            return PauseNode(at=at, node=node, lasts_ms=lasts_ms)
        case 14:
            return StopAgent(at=at, node=node, back_after_ms=lasts_ms)
        case 15:
            return PauseHorse(at=at, which=dice.randrange(10), lasts_ms=lasts_ms)
        case _:
            return PauseAgent(at=at, node=node, lasts_ms=lasts_ms)


def _when(dice: random.Random) -> int:
    return dice.randint(1_000, CHAOS_MS - 1_000)
