"""Build a group from a request: a command or a Python function, and its resources.

Only the function's name and JSON arguments are stored. A worker imports the function itself, so
the function must be defined in a module that the worker can import.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeAlias, cast, get_args, get_type_hints

import msgspec
from msgspec import Struct, structs

from batchq.api import manifest
from batchq.api.node_features import (
    exceeds_nodes,
    gpu_request,
    parse_toleration,
    with_runtime_label,
)
from batchq.api.notation import (
    LABEL_MOST,
    NotJson,
    as_json,
    counted,
    label_problem,
    parse_duration,
    resource_problem,
    shown,
    subdomain_problem,
    suggestion,
)
from batchq.api.objects import (
    DEFAULT,
    KINDS,
    NAMESPACED,
    Container,
    Dependency,
    Launch,
    LaunchStyle,
    Metadata,
    Node,
    Object,
    PodGroup,
    PodGroupSpec,
    PodTemplate,
    Queue,
    ResourceQuota,
    Retry,
    SchedulingGate,
    StopWarning,
    Task,
    full_name,
    key_of,
)
from batchq.api.resources import CPU, MEMORY, describe_quantity, parse_quantity, times, with_untyped
from batchq.errors import InvalidInput, UsageError

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
#: A warning lists at most this many names of nodes.
_MOST_NAMES = 5
_LOCAL, _LAMBDA = "<locals>", "<lambda>"
_IN_A_MODULE = "define it by its own name in a module that the workers can import"


def name_of(function: str | Callable[..., Any]) -> str:
    """Return `package.module:name`. Raises InvalidInput if a worker could not find it by that."""
    if isinstance(function, str):
        if _DOTTED.fullmatch(function):
            home, _, name = function.rpartition(".")
            raise InvalidInput(
                f"function: expected package.module:name, found {function!r}",
                hint=f"write a colon between the module and the function: {home}:{name}",
            )
        return function
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    kind = f"{type(function).__module__}.{type(function).__qualname__}"
    if not module or not path:
        raise InvalidInput(
            f"function: expected a function of a module, found a {kind}",
            hint="pass the function itself, and its arguments as args and kwargs",
        )
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, ModuleType | type):
        raise InvalidInput(
            f"function: {path} is bound to an object of this process, which no worker has",
            hint="make it a function of a module, and pass the data it needs as args",
        )
    if _LAMBDA in path:
        raise InvalidInput(
            f"function: the lambda in {module} has no name by which a worker could find it",
            hint=_IN_A_MODULE,
        )
    if _LOCAL in path:
        raise InvalidInput(
            f"function: {path.rpartition('.')[2]} is local to another function of {module}, where"
            " no worker can find it",
            hint=_IN_A_MODULE,
        )
    if module == "__main__":
        raise InvalidInput(
            f"function: {path} is defined in the script that runs (__main__), which no worker can"
            " import",
            hint="move it to a module, and import it from there",
        )
    if _found(module, path) != function:
        raise InvalidInput(
            f"function: {module}:{path} is not what was passed, so a worker would call something"
            " else",
            hint="it may be decorated; pass its name as a string if you mean that one",
        )
    return f"{module}:{path}"


def arguments_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return `args` and `kwargs` of a pod template. Raises InvalidInput, naming the argument."""
    if not isinstance(args, list | tuple):
        raise InvalidInput(f"args: expected a list, found {shown(args)}")
    if not isinstance(kwargs, Mapping):
        raise InvalidInput(f"kwargs: expected a mapping, found {shown(kwargs)}")
    for name in kwargs:
        if not isinstance(name, str):
            raise InvalidInput(f"kwargs: expected names as keys, found {shown(name)}")
    return {
        "args": tuple(_json(f"args[{place}]", value) for place, value in enumerate(args)),
        "kwargs": {name: _json(f"kwargs.{name}", value) for name, value in kwargs.items()},
    }


def _json(path: str, value: object) -> msgspec.Raw:
    try:
        return as_json(value)
    except NotJson as wrong:
        raise InvalidInput(
            f"{path}{wrong.place}: expected a value that JSON can hold, found {wrong.found}",
            hint="pass numbers, strings, lists and maps, or the path of a file",
        ) from None


def _found(module: str, path: str) -> object:
    found: object = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


#: The cpus of a pod whose request does not name any.
USUAL_CPUS = "1"
MOST_OF_ARRAY = 1_000_000
_ARRAY = re.compile(r"([0-9]{1,20})-([0-9]{1,20})")

#: A quantity in the usual notation: `4`, `1.5`, `500m`, `64Gi`.
Quantity = str | int | float


class Request(Struct, frozen=True, kw_only=True):
    """The keywords of `Client.submit` for a command or a function, which documents them."""

    command: Sequence[str] = ()
    function: str | Callable[..., Any] = ""
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    name: str = ""
    generate_name: str = ""
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    namespace: str = DEFAULT
    queue: str = DEFAULT
    cpus: Quantity | None = None
    mem: Quantity | None = None
    gpus: Quantity | None = None
    resources: Mapping[str, Quantity] = {}
    node_selector: Mapping[str, str] = {}
    nodes: Sequence[str] = ()
    exclude_nodes: Sequence[str] = ()
    tolerations: Sequence[str] = ()
    topology: Mapping[str, Any] = {}
    exclusive: bool = False
    max_pods_per_node: int | None = None
    pack: bool = False
    replicas: int | None = None
    min_member: int | None = None
    array: str | int | None = None
    walltime: Quantity | None = None
    grace: Quantity | None = None
    priority_class: str = ""
    env: Mapping[str, str] = {}
    after: Sequence[str] = ()
    gates: Sequence[str] = ()
    suspend: bool = False
    retries: int = 0
    external: bool = False
    api_token: bool = False
    share: bool = False
    launch: str | None = None
    ports: int | None = None
    processes: int | None = None
    dialect: str | None = None
    restart: str | None = None
    warn: str | None = None
    working_dir: str | os.PathLike[str] | None = None
    env_activate: str | os.PathLike[str] = ""
    stdin: bool = False
    image: str = ""
    runtime: str = "auto"
    mounts: Sequence[str] = ()
    isolate: Sequence[str] = ()


#: The first argument of `Client.submit`: a group, its manifest, or what its pods run.
Submitted: TypeAlias = (
    PodGroup | Mapping[str, object] | Request | Callable[..., Any] | str | Sequence[str] | None
)


def group_of(request: Request, *, suffix: str) -> PodGroup:
    """Return the group that a request describes. The default name is `<command>-<suffix>`,
    `<function>-<suffix>` or `<generate_name>-<suffix>`.

    Raises InvalidInput for a malformed value, UsageError for a contradiction.
    """
    template = _template(request)
    replicas, min_member = _size(request)
    spec = PodGroupSpec(
        queue=request.queue,
        min_member=min_member,
        priority_class_name=request.priority_class,
        scheduling_gates=tuple(SchedulingGate(name=gate) for gate in one_or_more(request.gates)),
        suspend=request.suspend,
        walltime=_walltime(request.walltime),
        retry=structs.replace(Retry(), limit=request.retries),
        depends_on=tuple(dependency_of(text) for text in one_or_more(request.after)),
        token="self" if request.api_token or request.launch == "mpi" else "",
        share="namespace" if request.share else "",
        launch=_launch(request),
        topology=_topology(request),
        exclusive=request.exclusive,
        max_pods_per_node=request.max_pods_per_node,
        pack=request.pack,
        tasks=(Task(name="main", replicas=replicas, template=template),),
    )
    if request.external:
        spec = _as_external(spec)
    if request.name and request.generate_name:
        raise UsageError("name and generate_name are both given", hint="keep one")
    name = request.name or default_name(program_of(request, template), suffix)
    metadata = Metadata(
        name=name,
        namespace=request.namespace,
        labels=dict(request.labels),
        annotations=dict(request.annotations),
    )
    return PodGroup(metadata=metadata, spec=spec)


def program_of(request: Request, template: PodTemplate) -> str:
    """Return the base of a generated name, to which a suffix is added."""
    program = template.command[0] if template.command else _last_word(template.function)
    return request.generate_name or program or "external"


def _as_external(spec: PodGroupSpec) -> PodGroupSpec:
    """Return the spec for a consumer, with the pods' requests summed up in `minResources`.

    An external program that runs the group may have no pods.
    """
    [task] = spec.tasks
    least = spec.min_member or task.replicas
    template = structs.replace(task.template, requests={})
    return structs.replace(
        spec,
        controller="external",
        min_resources=times(task.template.requests, least),
        tasks=(structs.replace(task, template=template),),
    )


def default_name(program: str, suffix: str) -> str:
    """Return e.g. `my-prog-py-k3x9q` for `/usr/bin/My_Prog.py` and the suffix k3x9q."""
    base = re.sub(r"[^a-z0-9]+", "-", program.rpartition("/")[2].lower()).strip("-")
    base = base[: LABEL_MOST - len(suffix) - 1].strip("-") or "run"
    return f"{base}-{suffix}"


def _last_word(function: str) -> str:
    """Return e.g. `fit` for `package.module:Model.fit`."""
    return function.rpartition(":")[2].rpartition(".")[2]


def array_size(written: str | int) -> int:
    """Return the number of pods in `0-99`, or the number itself.

    Raises UsageError: the pods of an array are numbered from 0.
    """
    if isinstance(written, int):
        if 1 <= written <= MOST_OF_ARRAY:
            return written
        raise UsageError(f"array: expected 1 to {MOST_OF_ARRAY:,} pods, found {written:,}")
    match = _ARRAY.fullmatch(written.strip())
    if match is None:
        raise UsageError(
            f"array: expected a range such as 0-99, found {shown(written, 40)}",
            hint=_hint_of_array(written),
        )
    first, last = int(match[1]), int(match[2])
    if last < first:
        raise UsageError(
            f"array: the range {written!r} is reversed: expected the smaller number first",
            hint=f"as in 0-{first}",
        )
    if first != 0:
        raise UsageError(
            f"array: expected a range that starts at 0, found {written!r}",
            hint=f"use 0-{last - first} and add {first} to $BATCHQ_INDEX in the command",
        )
    return array_size(last + 1)


def _hint_of_array(written: str) -> str:
    """Return what to do instead of a notation that Slurm has and batchq has not."""
    if "%" in written:
        return "submit the whole range to a queue with a capability, which bounds what runs at once"
    if ":" in written:
        return "leave out the step, and multiply $BATCHQ_INDEX by it in the command"
    if "," in written:
        return (
            "use a whole range, and let the command look up its value by $BATCHQ_INDEX; or submit"
            " a group for each with --from-file"
        )
    if written.isdecimal() and 1 <= int(written) <= MOST_OF_ARRAY:
        return f"for {counted(int(written), 'pod')}: 0-{int(written) - 1}"
    return ""


def _size(request: Request) -> tuple[int, int | None]:
    """Return replicas and minMember."""
    if request.array is None:
        return (1 if request.replicas is None else request.replicas), request.min_member
    if request.replicas is not None or request.min_member is not None:
        raise UsageError(
            "an array sets the number of pods, and needs only one of them to start",
            hint="leave out --replicas and --min-member, or --array",
        )
    return array_size(request.array), 1


def _template(request: Request) -> PodTemplate:
    if not request.command and not request.function and not request.external:
        raise UsageError("there is no command to run", hint="put it after `--`, or name a file")
    if request.command and request.function:
        raise UsageError(
            "command and function are both given, but a pod runs one of them", hint="keep one"
        )
    if request.function and request.external:
        raise UsageError(
            "function and external are both given, but batchq's own agents run a function",
            hint="leave out external, or give a command or nothing for your consumer to run",
        )
    if isinstance(request.command, str):
        raise InvalidInput(
            f"command: expected a list of words, found the string {request.command[:80]!r}",
            hint='as in ["python3", "train.py"]; for a shell: ["sh", "-c", "…"]',
        )
    template = PodTemplate(
        command=tuple(request.command),
        function=name_of(request.function),
        **arguments_of(request.args, request.kwargs),
        env=dict(request.env),
        working_dir=_working_dir(request),
        env_activate=str(Path(request.env_activate).absolute()) if request.env_activate else "",
        container=_container(request),
        stdin=request.stdin,
        termination_grace=(
            PodTemplate().termination_grace
            if request.grace is None
            else duration_of("grace", request.grace)
        ),
        requests=_requests(request),
        node_selector=dict(request.node_selector),
        nodes=one_or_more(request.nodes),
        exclude_nodes=one_or_more(request.exclude_nodes),
        tolerations=tuple(parse_toleration(one) for one in one_or_more(request.tolerations)),
    )
    return with_runtime_label(template)


def _container(request: Request) -> Container | None:
    mounts, isolate = one_or_more(request.mounts), one_or_more(request.isolate)
    if not (request.image or mounts or isolate or request.runtime != "auto"):
        return None
    given = {
        "image": request.image,
        "runtime": request.runtime,
        "mounts": mounts,
        "isolate": isolate,
    }
    try:
        return msgspec.convert(given, Container)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"runtime or isolate: {error}") from None


#: What --launch accepts, and the style that it means.
_STYLES: tuple[LaunchStyle, ...] = get_args(LaunchStyle)
LAUNCHES: Mapping[str, LaunchStyle] = {"torch": "node", **{one: one for one in _STYLES}}


def _topology(request: Request) -> dict[str, Literal["required", "preferred"]]:
    for label, mode in request.topology.items():
        if mode not in ("required", "preferred"):
            raise InvalidInput(
                f"topology, {label}: expected required or preferred, found {str(mode)[:40]!r}",
                hint=f"for nodes with one certain value, use the selector {label}={mode}"
                if mode
                else "leave the value out for required",
            )
    return dict(request.topology)


def _launch(request: Request) -> Launch | None:
    if request.launch is None:
        for name in ("ports", "processes", "dialect", "restart", "warn"):
            if getattr(request, name) is not None:
                hint = f"give launch, too, as in launch=torch, or leave {name} out"
                message = f"{name}: it applies to a group with launch, and there is no launch"
                raise UsageError(message, hint=hint)
        return None
    style = LAUNCHES.get(request.launch)
    if style is None:
        known = ", ".join(LAUNCHES)
        raise InvalidInput(f"launch: expected one of {known}, found {request.launch[:40]!r}")
    if request.dialect not in (None, "none", "slurm"):
        raise InvalidInput(f"dialect: expected slurm, found {request.dialect[:40]!r}")
    if request.restart not in (None, "group", "pod"):
        raise InvalidInput(f"restart: expected group or pod, found {request.restart[:40]!r}")
    return Launch(
        style=style,
        ports=1 if request.ports is None else request.ports,
        processes="gpu" if request.processes is None else request.processes,
        dialect="slurm" if request.dialect == "slurm" else "none",
        restart="pod" if request.restart == "pod" else "group",
        warn=None if request.warn is None else _warning(request.warn),
    )


_SIGNALS = get_args(get_type_hints(StopWarning)["signal"])


def _warning(written: str) -> StopWarning:
    """Parse `SIGNAL` or `SIGNAL@DURATION`."""
    name, at, before = written.partition("@")
    signal = next((one for one in _SIGNALS if one == name.removeprefix("SIG")), None)
    if signal is None:
        raise InvalidInput(
            f"warn: expected one of {', '.join(_SIGNALS)}, and after an @ how long before the"
            f" walltime, found {written[:40]!r}",
            hint="as in USR2@90s",
        )
    usual = StopWarning(signal=signal)
    return structs.replace(usual, before=duration_of("warn", before)) if at else usual


def _working_dir(request: Request) -> str:
    """Return the folder in which a pod starts; "" leaves it to the agent.

    A function is imported by the pod, so it starts where the caller's own import worked.
    """
    if request.working_dir is None and request.function:
        return present_folder(hint="change to a folder that exists, or give working_dir")
    return os.fspath(request.working_dir or "")


def present_folder(*, hint: str = "change to another folder") -> str:
    """Return the folder that this process runs in, for pods to start there.

    Raises UsageError, with the hint, if it is gone or its name is not text.
    """
    try:
        folder = str(Path.cwd())
        folder.encode()
    except FileNotFoundError:
        problem = "is gone"
    except UnicodeEncodeError:
        problem = "has a name that is not in UTF-8"
    else:
        return folder
    raise UsageError(
        f"the folder that this process runs in {problem}, and pods start there", hint=hint
    )


def _requests(request: Request) -> dict[str, int]:
    wanted: dict[str, Quantity] = {CPU: USUAL_CPUS if request.cpus is None else request.cpus}
    if request.mem is not None:
        wanted[MEMORY] = request.mem
    if request.gpus is not None:
        try:
            name, quantity = gpu_request(request.gpus)
        except ValueError as error:
            raise UsageError(f"gpus: {error}") from None
        if problem := resource_problem(name):
            raise UsageError(f"gpus: {problem}", hint="as in 2, or h100:2")
        wanted[name] = quantity
    for name, quantity in request.resources.items():
        if name in wanted and not (name == CPU and request.cpus is None):
            raise UsageError(f"{name} is given twice, once by its own option")
        wanted[name] = quantity
    return with_untyped(amounts_of(wanted))


def amounts_of(written: Mapping[str, Quantity]) -> dict[str, int]:
    """Return quantities in integer units. Raises InvalidInput, naming the resource."""
    if not isinstance(written, Mapping):
        raise InvalidInput(f'expected a mapping such as {{"cpu": 8}}, found {shown(written)}')
    amounts: dict[str, int] = {}
    for name, quantity in written.items():
        try:
            amounts[name] = parse_quantity(name, quantity)
        except ValueError as error:
            raise InvalidInput(f"{name}: {error}") from None
    return amounts


def _walltime(written: Quantity | None) -> int | None:
    return None if written is None else duration_of("walltime", written)


def duration_of(field: str, written: str | float) -> int:
    """Return a duration ("1d", or seconds) in milliseconds. Raises InvalidInput with the field."""
    try:
        return parse_duration(written)
    except ValueError as error:
        raise InvalidInput(f"{field}: {error}") from None


def dependency_of(written: str) -> Dependency:
    """Parse `NAME`, `ok:NAME`, `any:NAME` or `failed:NAME`. Raises UsageError."""
    condition, _, name = written.rpartition(":")
    match condition:
        case "":
            return Dependency(name=name)
        case "ok" | "any" | "failed":
            return Dependency(name=name, condition=condition)
        case _:
            raise UsageError(
                f"after: expected NAME, ok:NAME, any:NAME or failed:NAME, found {written[:80]!r}"
            )


def marked(group: PodGroup, labels: Mapping[str, str], annotations: Mapping[str, str]) -> PodGroup:
    """Return the group with these labels and annotations added; they override its own."""
    meta = group.metadata
    return structs.replace(
        group,
        metadata=structs.replace(
            meta,
            labels={**meta.labels, **labels},
            annotations={**meta.annotations, **annotations},
        ),
    )


def with_working_dir(groups: Iterable[PodGroup], folder: str) -> list[PodGroup]:
    """Return the groups with `folder` (absolute) as their pods' default working directory.

    A relative workingDir is resolved against `folder`.
    """
    return [
        structs.replace(
            group,
            spec=structs.replace(
                group.spec, tasks=tuple(_task_in(task, folder) for task in group.spec.tasks)
            ),
        )
        for group in groups
    ]


def _task_in(task: Task, folder: str) -> Task:
    own_folder = task.template.working_dir
    if own_folder.startswith("/"):
        return task
    path = f"{folder.rstrip('/')}/{own_folder}" if own_folder not in ("", ".") else folder
    return structs.replace(task, template=structs.replace(task.template, working_dir=path))


#: The objects of a request, or their manifests as plain data.
Objects: TypeAlias = Iterable[Object | Mapping[str, object]]

#: Called with an object as stored (None if there is none) and as wanted; may raise.
Permit: TypeAlias = Callable[[Object | None, Object], None]

#: Functions of `batchq.client.changes` that change one object.
Act: TypeAlias = Literal[
    "cancel", "suspend", "resume", "cordon", "uncordon", "set_quota", "set_stop_policy"
]

#: A group as callers name it: `NAME`, `NAMESPACE/NAME`, or what a submission has returned.
GroupName: TypeAlias = str | PodGroup


def key_named(name: GroupName, namespace: str = DEFAULT) -> str:
    """Return the key of a namespaced object given as `NAME` or `NAMESPACE/NAME`, or of a group.

    Raises InvalidInput for anything else.
    """
    if isinstance(name, PodGroup):
        return key_of(name)
    if not isinstance(name, str):
        raise InvalidInput(f"name: expected text or a PodGroup, found {shown(name)}")
    space, slash, bare = name.rpartition("/")
    space = space if slash else namespace
    problem = label_problem(space)
    if problem:
        raise InvalidInput(f"namespace: {problem}")
    # The name of a pod may be longer than a label.
    problem = subdomain_problem(bare)
    if problem:
        raise InvalidInput(f"name: {problem}")
    return f"{space}/{bare}"


def one_or_more(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return a list of names, or a single name, as a tuple."""
    return (names,) if isinstance(names, str) else tuple(names)


def key_of_kind(kind: str, name: GroupName, namespace: str = DEFAULT) -> str:
    """Return the key of an object, which is its name unless its kind is namespaced.

    Raises InvalidInput.
    """
    if kind in NAMESPACED:
        return key_named(name, namespace)
    if not isinstance(name, str):
        raise InvalidInput(f"name: expected the name of a {kind}, found {shown(name)}")
    return name


def keys_named(groups: GroupName | Sequence[GroupName], namespace: str) -> list[str]:
    """Return the keys of several groups, or of a single one. Raises InvalidInput."""
    if isinstance(groups, str | PodGroup):
        return [key_named(groups, namespace)]
    if not isinstance(groups, Iterable):
        raise InvalidInput(f"groups: expected a list of names, found {shown(groups)}")
    return [key_named(group, namespace) for group in groups]


def class_of(kind: str) -> type[Object]:
    """Return the class of a kind. Raises InvalidInput, with the nearest kind."""
    found = KINDS.get(kind)
    if found is None:
        known = ", ".join(KINDS)
        raise InvalidInput(
            f"kind: expected one of {known}, found {shown(kind)}", hint=suggestion(kind, KINDS)
        )
    return found


_HINT_OF_OBJECTS = "`submit` and `submit_many` accept functions, commands and fields"


def decoded(objects: Objects) -> tuple[list[Object], set[str]]:
    """Return the objects, and the names of queues whose manifests do not set stopPolicy.

    Raises InvalidInput.
    """
    if isinstance(objects, Mapping | Struct):
        raise InvalidInput(
            "expected a list of objects, found a single one", hint="pass [object] instead of object"
        )
    given: object = objects
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidInput(
            f"expected a list of objects, found {shown(given)}", hint=_HINT_OF_OBJECTS
        )
    wanted: list[Object] = []
    without_policy: set[str] = set()
    for one in objects:
        item = _object_of(one)
        if isinstance(one, Mapping) and leaves_stop_policy(one):
            without_policy.add(item.metadata.name)
        wanted.append(item)
    return wanted, without_policy


def _object_of(one: object) -> Object:
    if isinstance(one, Mapping) and ("apiVersion" in one or "kind" in one):
        return manifest.decode(one)
    if isinstance(one, tuple(KINDS.values())):
        return cast(Object, one)
    raise InvalidInput(
        f"expected an object or its manifest, found {shown(one)}", hint=_HINT_OF_OBJECTS
    )


def leaves_stop_policy(data: Mapping[str, object]) -> bool:
    """Return whether a manifest is a queue's and does not set stopPolicy. Applying it must not
    resume a queue that was stopped after the file was written.
    """
    spec = data.get("spec")
    stated = spec.get("stopPolicy") if isinstance(spec, Mapping) else None
    return data.get("kind") == "Queue" and stated is None


def capacity_warnings(groups: Iterable[PodGroup], nodes: Sequence[Node]) -> Iterator[str]:
    """Return a sentence for each group that could not run even if all `nodes` were ready and empty,
    as far as amounts, selectors, names and taints tell.
    """
    for group in groups:
        if why := exceeds_nodes(group, nodes):
            yield f"PodGroup {full_name(group)} cannot start on the existing nodes: {why}"


def unknown_node_warnings(groups: Iterable[PodGroup], nodes: Sequence[Node]) -> Iterator[str]:
    """Return a sentence for each group that names or excludes a node that does not exist, unless
    `capacity_warnings` has one for it.
    """
    existing = {node.metadata.name for node in nodes}
    for group in groups if nodes else ():
        if exceeds_nodes(group, nodes):
            continue
        for verb, of in (("asks for", "nodes"), ("excludes", "exclude_nodes")):
            named = (name for task in group.spec.tasks for name in getattr(task.template, of))
            if unknown := [name for name in dict.fromkeys(named) if name not in existing]:
                names = " or ".join(unknown[:_MOST_NAMES])
                yield f"PodGroup {full_name(group)} {verb} a node that does not exist: {names}"


def limit_warnings(
    groups: Iterable[PodGroup], queues: Sequence[Queue], quotas: Sequence[ResourceQuota]
) -> Iterator[str]:
    """Return a sentence for each group that asks for more than a quota of its namespace, or the
    capability of its queue or of one above it, ever allows.
    """
    from batchq.core.session.specs import shape_of

    by_name = {queue.metadata.name: queue for queue in queues}
    for group in groups:
        limits = [
            (f"the quota of namespace {quota.metadata.namespace}", quota.spec.hard)
            for quota in quotas
            if quota.metadata.namespace == group.metadata.namespace
        ]
        limits += [
            (f"queue {queue.metadata.name}", queue.spec.capability)
            for queue in _chain_of(group, by_name)
        ]
        if why := _exceeded(shape_of(group.spec).counted, limits):
            yield f"PodGroup {full_name(group)} can never start: {why}"


def stopped_queue_warnings(groups: Iterable[PodGroup], queues: Sequence[Queue]) -> Iterator[str]:
    """Return a sentence for each group whose queue, or one above it, is stopped."""
    by_name = {queue.metadata.name: queue for queue in queues}
    for group in groups:
        for queue in _chain_of(group, by_name):
            if (policy := queue.spec.stop_policy) != "None":
                name = queue.metadata.name
                yield f"PodGroup {full_name(group)} waits: queue {name} is stopped ({policy})"
                break


def _chain_of(group: PodGroup, queues: Mapping[str, Queue]) -> list[Queue]:
    """Return the group's queue and those above it, as far as they are known."""
    chain: dict[str, Queue] = {}
    name = group.spec.queue
    while name in queues and name not in chain:
        chain[name] = queues[name]
        name = queues[name].spec.parent
    return list(chain.values())


def _exceeded(wanted: Mapping[str, int], limits: Iterable[tuple[str, Mapping[str, int]]]) -> str:
    for subject, most in limits:
        for name, need in wanted.items():
            if need > most.get(name, need):
                asked, allowed = (describe_quantity(name, units) for units in (need, most[name]))
                return f"it needs {name} {asked}, and {subject} allows at most {allowed}"
    return ""


def check_lines(tail: object, attempt: object) -> None:
    """Raise InvalidInput unless these are a number of lines and an attempt of `Client.logs`."""
    if tail is not None and not _is_whole(tail, 0):
        raise InvalidInput(f"tail: expected a whole number from 0, or None, found {shown(tail)}")
    if attempt not in (None, "all") and not _is_whole(attempt, 1):
        raise InvalidInput(
            f'attempt: expected a whole number from 1, "all" or None, found {shown(attempt)}'
        )


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
