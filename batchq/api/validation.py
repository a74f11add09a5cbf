"""Validation of a single object: bounds, contradictions, and unavailable features.

There are three sorts of problems. *Contradictions* of a PodGroup (a gang of five with four pods)
are errors at submission, and keep a group waiting as Misconfigured in a simulated cluster. What is
*not available* in this version is refused everywhere: it must not be ignored silently. The rest (a
negative count, a name twice, a megabyte of environment) is refused everywhere, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from batchq.api.manifest import MOST_ARGUMENT_BYTES, argument_bytes, check_names, function_problem
from batchq.api.node_features import MIG, WHOLE, container_problems
from batchq.api.notation import SECOND, counted, format_duration, qualified_problem, shown
from batchq.api.objects import (
    AdmissionCheck,
    Launch,
    Node,
    Object,
    Pod,
    PodGroup,
    PodGroupSpec,
    PodGroupStatus,
    PodTemplate,
    PriorityClass,
    Queue,
    ResourceQuota,
    SchedulingGate,
    full_name,
    gates_of,
    kind_of,
    pod_gates_problem,
)
from batchq.api.resources import (
    LARGEST,
    ONE_POD,
    PODS,
    describe_quantity,
    format_quantity,
    times,
    units_per_whole,
    untyped_lacking,
)
from batchq.api.transaction import POD_GROUPS
from batchq.errors import InvalidInput

MOST_REPLICAS = 1_000_000
#: A group's required pods are made, and bound, in one step of the server.
MOST_GANG = 50_000
MOST_TASKS = 1_000
#: The digits of an instant or of a pod's ordinal.
_MOST_DIGITS = 17
MOST_GATES = 64
#: The gates of a group and its tasks together: one record notes who opened which.
MOST_GATES_IN_ALL = 1_000
MOST_DEPENDENCIES = 256
MOST_TAINTS = 64
MOST_NODE_NAMES = 1_000
MOST_TOPOLOGY = 4
MOST_RETRIES = 1_000
MOST_LABELS = 64
MOST_VARIABLES = 1_000
MOST_RESOURCES = 64
MOST_WEIGHT = 1_000_000
MOST_PRIORITY = 1_000_000_000
MOST_CHECKS = 64
MOST_NAMESPACES = 256
#: The ports of one pod, and the pods that are told each other's addresses.
MOST_PORTS = 32
MOST_LAUNCHED = 4_096
MOST_PROCESSES = 1_024
MOST_PARAMETERS = 64
MOST_PARAMETER_BYTES = 64 * 1024
#: A year.
MOST_RETRY_DELAY_MINUTES = 525_600
#: The longest argument of a program on Linux; here the bound for all of them together.
MOST_COMMAND_BYTES = 128 * 1024
MOST_ENV_BYTES = 128 * 1024
MOST_ANNOTATION_BYTES = 256 * 1024
MOST_OBJECT_BYTES = 2**20


def check(obj: Object, *, described: bool = False) -> None:
    """Raise InvalidInput, with the first problem, unless the object can be accepted.

    In a `described` (simulated) cluster, contradictions show as Misconfigured instead, and a task
    needs no command, since nothing is started.
    """
    check_names(obj)
    title = f"{kind_of(obj)} {full_name(obj)}"
    try:
        for problem in _problems(obj, described):
            raise InvalidInput(f"{title}: {problem}")
    except UnicodeEncodeError as error:
        # Python represents bytes that are not UTF-8 as surrogates.
        found = shown(error.object)
        raise InvalidInput(f"{title}: expected text in UTF-8, found {found}") from None


def contradictions(group: PodGroup) -> list[str]:
    """Return what no scheduler could satisfy: numbers of the group that exclude each other."""
    spec = group.spec
    replicas = sum(task.replicas for task in spec.tasks)
    external = spec.controller == "external"
    found = []
    if not external and not replicas:
        found.append("expected at least one task with at least one replica, found none")
    if external and not spec.min_resources:
        found.append("spec.minResources: an external group must state what it needs")
    least = replicas if spec.min_member is None else spec.min_member
    if spec.min_member is not None and least < 1:
        found.append(f"spec.minMember: expected at least 1, found {least}")
    if not external and spec.min_member is not None and replicas and least > replicas:
        found.append(
            f"spec.minMember: expected at most the {counted(replicas, 'replica')} of all tasks,"
            f" found {least}"
        )
    if not external and least > MOST_GANG:
        found.append(
            f"spec.minMember: expected at most {MOST_GANG:,} pods that start together, found"
            f" {least:,}; for independent pods, state minMember: 1, or submit an --array"
        )
    available = sum(task.min_available for task in spec.tasks)
    if available > least:
        found.append(f"minAvailable adds up to {available}, which is more than minMember {least}")
    for place, task in enumerate(spec.tasks):
        if task.min_available > task.replicas:
            found.append(
                f"spec.tasks[{place}].minAvailable: expected at most its"
                f" {counted(task.replicas, 'replica')},"
                f" found {task.min_available}"
            )
    return found


def disorder_of(group: PodGroup) -> str:
    """Return which part of a stored group no scheduler writes or could process; "" if none.
    It is called for every group that is read, so it is cheap.
    """
    return disorder_of_status(group.status) or disorder_of_spec(group.spec)


def disorder_of_status(status: PodGroupStatus) -> str:
    """Return what `disorder_of` finds in a group's status."""
    for numbered in (status.spent, status.evictions.recent, status.evictions.longest_pod_runs):
        for number in numbered:
            if not number.isdecimal() or len(number) > _MOST_DIGITS:
                return f"its status has {shown(number)} in place of a number"
    return ""


def false_amount(field: str, amounts: Mapping[str, int]) -> str:
    """Return the first amount of a field that is negative or has no proper name; "" if none."""
    for name, units in amounts.items():
        if units < 0 or not name or " " in name:
            return f"in its {field}, {shown(name)} is {units}"
    return ""


def disorder_of_spec(spec: PodGroupSpec) -> str:
    """Return what `disorder_of` finds in a group's spec."""
    if why := false_amount("minResources", spec.min_resources):
        return why
    if spec.min_member is not None and spec.min_member < 0:
        return f"its minMember is {spec.min_member}"
    if not spec.tasks:
        return ""
    names = set()
    pods = 0
    for task in spec.tasks:
        if not 0 <= task.replicas <= MOST_REPLICAS:
            return f"task {task.name} has {task.replicas} replicas; expected 0 to {MOST_REPLICAS:,}"
        if why := false_amount(f"task {task.name}", task.template.requests):
            return why
        names.add(task.name)
        pods += task.replicas
    if len(names) < len(spec.tasks):
        return "two of its tasks have the same name"
    gang = pods if spec.min_member is None else min(pods, spec.min_member)
    if gang > MOST_REPLICAS:
        return f"{gang:,} of its pods are to start together, more than {MOST_REPLICAS:,}"
    return ""


def _problems(obj: Object, described: bool) -> Iterator[str]:
    yield from _metadata_problems(obj)
    match obj:
        case Queue():
            yield from _queue_problems(obj)
        case Node():
            yield from _at_most("spec.taints", len(obj.spec.taints), MOST_TAINTS)
            yield from _at_most("spec.resources", len(obj.spec.resources), MOST_RESOURCES)
        case ResourceQuota():
            yield from _quota_problems(obj.spec.hard)
        case PriorityClass():
            yield from _within("spec.value", obj.spec.value, -MOST_PRIORITY, MOST_PRIORITY)
        case AdmissionCheck():
            yield from _check_problems(obj, described)
        case PodGroup():
            yield from _group_problems(obj, described)
            if not described:
                yield from contradictions(obj)
        case Pod():
            yield from _within("spec.index", obj.spec.index, 0, MOST_REPLICAS - 1)
            yield from _within("status.attempt", obj.status.attempt, 0, LARGEST)
            yield from _request_problems(obj.spec.requests, 1, "spec.requests")
            yield from _gate_problems(obj.spec.scheduling_gates, "spec.schedulingGates")
            if problem := pod_gates_problem(obj):
                yield f"spec.schedulingGates: {problem}"
    # Last: fields that are too long have been reported by then.
    yield from _at_most("its size in bytes", len(msgspec.json.encode(obj)), MOST_OBJECT_BYTES)


def _metadata_problems(obj: Object) -> Iterator[str]:
    meta = obj.metadata
    yield from _at_most("metadata.labels", len(meta.labels), MOST_LABELS)
    yield from _at_most("metadata.annotations", _bytes_of(meta.annotations), MOST_ANNOTATION_BYTES)


def _queue_problems(queue: Queue) -> Iterator[str]:
    spec, name = queue.spec, queue.metadata.name
    if name == "root" and spec.parent:
        yield "spec.parent: the root queue has no parent; leave it out"
    if spec.parent == name:
        yield "spec.parent: a queue cannot be its own parent; name another one, or leave it out"
    yield from _within("spec.weight", spec.weight, 0, MOST_WEIGHT)
    if spec.max_pod_groups is not None:
        yield from _within("spec.maxPodGroups", spec.max_pod_groups, 0, 1_000_000_000)
    yield from _at_most("spec.admissionChecks", len(spec.admission_checks), MOST_CHECKS)
    yield from _once("spec.admissionChecks", spec.admission_checks)
    yield from _at_most("spec.namespaces", len(spec.namespaces), MOST_NAMESPACES)
    yield from _once("spec.namespaces", spec.namespaces)
    borrowing = spec.preemption.borrowing
    if isinstance(borrowing, int):
        yield from _within("spec.preemption.borrowing", borrowing, -MOST_PRIORITY, MOST_PRIORITY)
    for field, amounts in (
        ("guarantee", spec.guarantee),
        ("deserved", spec.deserved),
        ("capability", spec.capability),
    ):
        yield from _at_most(f"spec.{field}", len(amounts), MOST_RESOURCES)
        if POD_GROUPS in amounts and field != "capability":
            yield f"spec.{field}.podgroups: groups are no resource; spec.maxPodGroups limits them"
    for lower, low, upper, high in (
        ("guarantee", spec.guarantee, "deserved", spec.deserved),
        ("guarantee", spec.guarantee, "capability", spec.capability),
        ("deserved", spec.deserved, "capability", spec.capability),
    ):
        for resource in low:
            if resource in high and low[resource] > high[resource]:
                yield (
                    f"spec.{lower}.{resource}: expected at most its {upper} of"
                    f" {describe_quantity(resource, high[resource])},"
                    f" found {describe_quantity(resource, low[resource])}"
                )


def _quota_problems(hard: Mapping[str, int]) -> Iterator[str]:
    for resource in (PODS, POD_GROUPS):
        units = hard.get(resource, 0)
        if units % units_per_whole(resource):
            found = format_quantity(resource, units)
            yield f"spec.hard.{resource}: expected a whole number, found {found}"


def _check_problems(check: AdmissionCheck, described: bool) -> Iterator[str]:
    spec = check.spec
    # A simulated cluster needs no controller: its steps state the check's answers.
    if not (described and not spec.controller_name) and qualified_problem(spec.controller_name):
        yield (
            "spec.controllerName: expected the name of its controller, such as"
            f" budget or example.com/budget, found {shown(spec.controller_name)}"
        )
    yield from _within(
        "spec.retryDelayMinutes", spec.retry_delay_minutes, 0, MOST_RETRY_DELAY_MINUTES
    )
    if spec.unknown_timeout < SECOND:
        yield (
            "spec.unknownTimeout: expected at least 1s, found"
            f" {format_duration(spec.unknown_timeout)}"
        )
    yield from _at_most("spec.parameters", len(spec.parameters), MOST_PARAMETERS)
    yield from _at_most(
        "spec.parameters, in bytes", _bytes_of(spec.parameters), MOST_PARAMETER_BYTES
    )


def _group_problems(group: PodGroup, described: bool) -> Iterator[str]:
    spec = group.spec
    yield from _gate_problems(spec.scheduling_gates, "spec.schedulingGates")
    yield from _at_most("spec.dependsOn", len(spec.depends_on), MOST_DEPENDENCIES)
    yield from _at_most("spec.tasks", len(spec.tasks), MOST_TASKS)
    yield from _once("spec.dependsOn", (dependency.name for dependency in spec.depends_on))
    yield from _once("spec.tasks", (task.name for task in spec.tasks))
    yield from _within("spec.retry.limit", spec.retry.limit, 0, MOST_RETRIES)
    if spec.walltime == 0:
        yield "spec.walltime: expected more than 0s; leave it out for no limit"
    if POD_GROUPS in spec.min_resources:
        yield "spec.minResources.podgroups: groups are counted by batchq; leave it out"
    for place, task in enumerate(spec.tasks):
        path = f"spec.tasks[{place}]"
        yield from _within(f"{path}.replicas", task.replicas, 0, MOST_REPLICAS)
        yield from _within(f"{path}.minAvailable", task.min_available, 0, MOST_REPLICAS)
        yield from _template_problems(task.template, f"{path}.template")
        yield from _request_problems(
            task.template.requests, task.replicas, f"{path}.template.requests"
        )
        if not described and spec.controller == "batchq" and not _runs(task.template):
            yield (
                f"{path}.template.command: expected a command or a function for its pods to run,"
                " found none"
            )
    if spec.controller == "external" and spec.min_member is not None:
        # It states the number of pods of a group without tasks.
        yield from _at_most("spec.minMember", spec.min_member, MOST_REPLICAS)
    replicas = sum(task.replicas for task in spec.tasks)
    yield from _at_most("the replicas of all tasks", replicas, MOST_REPLICAS)
    yield from _launch_problems(spec, replicas)
    yield from _at_most("spec.topology", len(spec.topology), MOST_TOPOLOGY)
    if spec.topology and spec.controller == "external":
        yield "spec.topology: batchq does not place the pods of an external group; leave it out"
    yield from _sharing_problems(spec)
    yield from _at_most("the gates of all tasks", len(gates_of(spec)), MOST_GATES_IN_ALL)


def _sharing_problems(spec: PodGroupSpec) -> Iterator[str]:
    most = spec.max_pods_per_node
    if most is not None:
        yield from _within("spec.maxPodsPerNode", most, 1, MOST_REPLICAS)
    stated = {"exclusive": spec.exclusive, "maxPodsPerNode": most is not None, "pack": spec.pack}
    if spec.controller == "external":
        for field in [name for name, is_stated in stated.items() if is_stated]:
            yield f"spec.{field}: batchq does not place the pods of an external group; leave it out"


def _launch_problems(spec: PodGroupSpec, replicas: int) -> Iterator[str]:
    launch = spec.launch
    if launch is None:
        return
    if spec.controller == "external":
        yield "spec.launch: batchq does not start the pods of an external group; leave it out"
        return
    least = replicas if spec.min_member is None else spec.min_member
    if 1 < least < replicas:
        if (launch.style, launch.restart) != ("node", "pod"):
            yield (
                "spec.launch: expected style node and restart pod, since pods beyond minMember join"
                f" later, found style {launch.style} and restart {launch.restart}; change them, or"
                " leave minMember out"
            )
        if len(spec.tasks) > 1:
            yield (
                "spec.tasks: expected one task, since pods beyond minMember join later, found"
                f" {len(spec.tasks)}; leave minMember or launch out"
            )
    elif least < replicas:
        yield (
            f"spec.launch: expected all {counted(replicas, 'pod')} to start together, since each is"
            f" told where the others are, found minMember {spec.min_member}; leave minMember out,"
            " or launch for an array"
        )
    yield from _at_most("the pods of a group with spec.launch", replicas, MOST_LAUNCHED)
    yield from _within("spec.launch.ports", launch.ports, 1, MOST_PORTS)
    if launch.style == "mpi":
        yield from _mpi_problems(spec, launch)
    if isinstance(launch.processes, int):
        yield from _within("spec.launch.processes", launch.processes, 1, MOST_PROCESSES)
    warn, walltime = launch.warn, spec.walltime
    if warn is not None and walltime is not None and warn.before >= walltime:
        yield (
            "spec.launch.warn.before: expected less than the walltime of"
            f" {format_duration(walltime)}, found {format_duration(warn.before)}"
        )
    if launch.style == "rank" and launch.processes not in ("gpu", 1):
        yield (
            "spec.launch.processes: a pod of style rank is one process, found"
            f" {launch.processes}; leave it out, or use style node"
        )


def _mpi_problems(spec: PodGroupSpec, launch: Launch) -> Iterator[str]:
    if not spec.token:
        yield "spec.token: expected self, since pod 0 starts commands in the others by its token"
    if launch.restart == "pod":
        yield "spec.launch.restart: expected group, since MPI cannot lose a process, found pod"
    for place, task in enumerate(spec.tasks):
        container = task.template.container
        if container is not None and container.image:
            yield (
                f"spec.tasks[{place}].template.container.image: expected none, since an MPI gang"
                " needs the node's batchq in its pods; leave it out, or use mpirun within an"
                " allocation"
            )


def _gate_problems(gates: Sequence[SchedulingGate], path: str) -> Iterator[str]:
    yield from _at_most(path, len(gates), MOST_GATES)
    yield from _once(path, (gate.name for gate in gates))


def _runs(template: PodTemplate) -> bool:
    return bool(template.function or (template.command and template.command[0]))


def _template_problems(template: PodTemplate, path: str) -> Iterator[str]:
    yield from _gate_problems(template.scheduling_gates, f"{path}.schedulingGates")
    yield from _at_most(f"{path}.labels", len(template.labels), MOST_LABELS)
    yield from _at_most(
        f"{path}.annotations, in bytes", _bytes_of(template.annotations), MOST_ANNOTATION_BYTES
    )
    command_bytes = sum(len(word.encode()) + 1 for word in template.command)
    yield from _at_most(f"{path}.command, in bytes", command_bytes, MOST_COMMAND_BYTES)
    yield from _function_problems(template, path)
    yield from _node_problems(template, path)
    yield from container_problems(template, path)
    yield from _at_most(f"{path}.env", len(template.env), MOST_VARIABLES)
    yield from _at_most(f"{path}.env, in bytes", _bytes_of(template.env), MOST_ENV_BYTES)
    for name in template.env:
        if not name or "=" in name:
            yield f"{path}.env: expected a name without '=' for a variable, found {shown(name)}"
    for field, texts in (
        ("command", template.command),
        ("env", (*template.env, *template.env.values())),
        ("workingDir", (template.working_dir,)),
    ):
        if any("\0" in text for text in texts):
            yield f"{path}.{field}: a NUL character cannot be passed to a process"


def _node_problems(template: PodTemplate, path: str) -> Iterator[str]:
    for field, names in (("nodes", template.nodes), ("excludeNodes", template.exclude_nodes)):
        yield from _at_most(f"{path}.{field}", len(names), MOST_NODE_NAMES)
    if template.nodes and set(template.nodes) <= set(template.exclude_nodes):
        yield f"{path}.nodes: excludeNodes excludes all of them, so no node is left"


def _function_problems(template: PodTemplate, path: str) -> Iterator[str]:
    if not template.function:
        for name, value in (("args", template.args), ("kwargs", template.kwargs)):
            if value:
                yield f"{path}.{name}: only a function has arguments; name one, or leave it out"
        return
    if template.command:
        yield f"{path}: expected a command or a function, found both; keep one of the two"
    if template.stdin:
        yield f"{path}.stdin: a function has no input; give a command instead"
    if problem := function_problem(template.function):
        yield f"{path}.function: {problem}"
    size = argument_bytes(template)
    if size > MOST_ARGUMENT_BYTES:
        yield (
            f"{path}.args and kwargs: expected at most {MOST_ARGUMENT_BYTES} bytes of JSON, found"
            f" {size}; pass the path of a file instead"
        )


def _request_problems(requests: Mapping[str, int], replicas: int, path: str) -> Iterator[str]:
    yield from _at_most(path, len(requests), MOST_RESOURCES)
    if POD_GROUPS in requests:
        yield f"{path}.podgroups: groups are counted by batchq; leave it out"
    if requests.get(PODS, ONE_POD) != ONE_POD:
        yield f"{path}.pods: every pod counts as one; leave it out"
    for base, units in untyped_lacking(requests):
        yield (
            f"{path}.{base}: expected at least {format_quantity(base, units)}, as much as of its"
            f" types together, found {format_quantity(base, requests.get(base, 0))}"
        )
    for resource, units in requests.items():
        if resource.startswith(MIG) and units % WHOLE:
            yield (
                f"{path}.{resource}: expected a whole number of MIG instances,"
                f" found {format_quantity(resource, units)}"
            )
    for resource, units in times(requests, replicas).items():
        if units > LARGEST:
            yield f"{path}.{resource}: the {replicas} replicas together ask for over 2^53 units"


def _within(path: str, value: int, least: int, most: int) -> Iterator[str]:
    if not least <= value <= most:
        yield f"{path}: expected a number from {least} to {most}, found {value}"


def _at_most(path: str, count: int, most: int) -> Iterator[str]:
    if count > most:
        yield f"{path}: expected at most {most}, found {count}"


def _once(path: str, names: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            yield f"{path}: {shown(name)} is named twice"
        seen.add(name)


def _bytes_of(table: Mapping[str, str]) -> int:
    return sum(len(key.encode()) + len(value.encode()) for key, value in table.items())
