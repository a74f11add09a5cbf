"""Read requests given as plain data, and check many similar ones quickly."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct, structs

from batchq.api import manifest, validation
from batchq.api.manifest import MOST_ARGUMENT_BYTES, argument_bytes
from batchq.api.node_features import gpu_request
from batchq.api.notation import label_problem, parse_duration, resource_problem, shown, suggestion
from batchq.api.objects import Dependency, Metadata, Pod, PodGroup, PodTemplate, full_name, kind_of
from batchq.api.resources import GPU, doubtful_memory, parse_quantity
from batchq.api.views import Applied
from batchq.client.changes.object_writes import name_hint
from batchq.client.request import (
    Request,
    Submitted,
    arguments_of,
    default_name,
    dependency_of,
    group_of,
    name_of,
    program_of,
)
from batchq.errors import BatchqError, Conflict, InvalidInput, NotFound, UsageError
from batchq.ports import Reader


def pod_named(reader: Reader, key: str) -> Pod:
    """Return the pod with this name or uid, from the latest admission if there are several.

    Raises NotFound, with the nearest existing name as a hint.
    """
    space, _, bare = key.partition("/")
    pods = [pod for pod in reader.list("Pod", namespace=space) if isinstance(pod, Pod)]
    named = [pod for pod in pods if bare in (pod.metadata.name, pod.metadata.uid)]
    if not named:
        existing = [f"{space}/{pod.metadata.name}" for pod in pods]
        raise NotFound(f"Pod {space}/{bare[:80]} does not exist", hint=name_hint(key, existing))
    return max(named, key=lambda pod: (pod.status.admission, pod.metadata.uid))


#: Returns a value as a Request stores it, or raises ValueError with the expected and found value.
Reading: TypeAlias = Callable[[object], object]

#: Fields in which a request's entries are added to the default entries and override them.
_MERGED = ("labels", "annotations", "env", "resources", "node_selector")
#: Fields that exclude each other: a request that sets one does not inherit the default of another.
_RUNS = {"command": ("function", "args", "kwargs"), "function": ("command",)}


def read_fields(data: Mapping[str, object], defaults: Mapping[str, Any]) -> Request:
    """Return the request that `data` describes, completed by `defaults`.

    A field that is None counts as missing. Raises InvalidInput.
    """
    found: dict[str, Any] = {}
    for written, value in data.items():
        name = _known(written)
        if value is None:
            continue
        if name in found:
            raise InvalidInput(f"{shown(written)[1:-1]}: this field is given twice; keep one")
        try:
            found[name] = _READ[name](value)
        except ValueError as error:
            raise InvalidInput(f"{name}: {error}") from None
    request = Request(**merged(found, defaults))
    _refuse_other_namespaces(data.get("after"), request.namespace)
    return request


def merged(found: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request over the defaults."""
    dropped = {name for own in found for name in _RUNS.get(own, ())}
    both = {name: value for name, value in defaults.items() if name not in dropped}
    for name, value in found.items():
        both[name] = {**defaults.get(name, {}), **value} if name in _MERGED else value
    return both


#: What fields are called by RQ and Celery.
_OF_OTHERS = {
    "job_id": "name",
    "task_id": "name",
    "description": "annotations",
    "meta": "annotations",
    "timeout": "walltime",
    "job_timeout": "walltime",
    "time_limit": "walltime",
    "depends_on": "after",
    "retry": "retries",
    "max_retries": "retries",
    "at_front": "priority_class",
    "priority": "priority_class",
}


def _known(written: object) -> str:
    if not isinstance(written, str):
        raise InvalidInput(f"expected text as the name of a field, found {shown(written)}")
    name = written.replace("-", "_")
    if name not in _READ:
        known = [*_READ, *(["spec", "metadata"] if name in ("spec", "metadata") else ())]
        if len(known) > len(_READ):
            raise InvalidInput(
                f"{name}: this is a field of a manifest, which also needs apiVersion and kind"
            )
        ours = _OF_OTHERS.get(name)
        hint = suggestion(name, known) if ours is None else f"did you mean {ours!r}?"
        raise InvalidInput(f"{shown(written)[1:-1]}: there is no such field; {hint}")
    return name


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, found {shown(value)}")
    return value


def _word(value: object) -> str:
    """Return a word; a number is written as text: `["--lr", 0.1]`, `{"SEED": 7}`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return _text(value)


def _words(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        raise ValueError(
            f"expected a list of words, found {shown(value)}; write the words as a list, or for a"
            ' shell line ["sh", "-c", "…"]'
        )
    return tuple(_word(one) for one in _list(value))


def _names(value: object) -> tuple[str, ...]:
    """Return a single name, or a list of names, as a tuple."""
    return (value,) if isinstance(value, str) else tuple(_text(one) for one in _list(value))


def _groups(value: object) -> tuple[str, ...]:
    """Return names of groups of the same namespace; submitted groups stand for their names."""
    found = []
    for one in [value] if isinstance(value, str | PodGroup) else _list(value):
        if not isinstance(one, str | PodGroup):
            raise ValueError(f"expected names of groups or PodGroups, found {shown(one)}")
        found.append(one if isinstance(one, str) else one.metadata.name)
    return tuple(found)


def _refuse_other_namespaces(after: object, namespace: str) -> None:
    """Raise InvalidInput if a group of another namespace is to end first: of a dependency, only the
    name is stored, and another group may have it here.
    """
    for one in after if isinstance(after, list | tuple) else (after,):
        if isinstance(one, PodGroup) and one.metadata.namespace != namespace:
            raise InvalidInput(
                f"after: expected groups of namespace {namespace}, found {full_name(one)}",
                hint="a group can depend only on groups of its own namespace",
            )


def _list(value: object) -> list[object] | tuple[object, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"expected a list, found {shown(value)}")
    return value


def _map(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise ValueError(f"expected a mapping, found {shown(value)}")
    for key in value:
        if not isinstance(key, str):
            raise ValueError(f"expected names as keys, found {shown(key)}")
    return value


def _texts(of: Callable[[object], str]) -> Reading:
    def read(value: object) -> dict[str, str]:
        found = {}
        for key, one in _map(value).items():
            try:
                found[key] = of(one)
            except ValueError as error:
                raise ValueError(f"{shown(key)}: {error}") from None
        return found

    return read


def _quantity(resource: str) -> Reading:
    def read(value: object) -> object:
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise ValueError(f"expected a quantity such as 500m, 2 or 64Gi, found {shown(value)}")
        parse_quantity(resource, value)
        return value

    return read


def _gpus(value: object) -> object:
    if isinstance(value, str):
        name, quantity = gpu_request(value)
        if problem := resource_problem(name):
            raise ValueError(problem)
        _quantity(name)(quantity)
        return value
    return _quantity(GPU)(value)


def _quantities(value: object) -> dict[str, object]:
    found = {}
    for name, one in _map(value).items():
        try:
            found[name] = _quantity(name)(one)
        except ValueError as error:
            raise ValueError(f"{shown(name)}: {error}") from None
    return found


def _duration(value: object) -> object:
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise ValueError(f"expected a duration such as 90s, 2h or 1d, found {shown(value)}")
    parse_duration(value)
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"expected a whole number, found {shown(value)}")
    return value


def _array(value: object) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"expected a range such as 0-99, found {shown(value)}")
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"expected true or false, found {shown(value)}")
    return value


def _function(value: object) -> object:
    if not isinstance(value, str) and not callable(value):
        raise ValueError(f"expected package.module:name, found {shown(value)}")
    return value


def _path(value: object) -> str:
    return os.fspath(value) if isinstance(value, os.PathLike) else _text(value)


_READ: dict[str, Reading] = {
    "command": _words,
    "function": _function,
    "args": _list,
    "kwargs": _map,
    "name": _text,
    "generate_name": _text,
    "labels": _texts(_text),
    "annotations": _texts(_word),
    "namespace": _text,
    "queue": _text,
    "cpus": _quantity("cpu"),
    "mem": _quantity("memory"),
    "gpus": _gpus,
    "resources": _quantities,
    "node_selector": _texts(_text),
    "nodes": _names,
    "exclude_nodes": _names,
    "tolerations": _names,
    "topology": _texts(_text),
    "exclusive": _truth,
    "max_pods_per_node": _whole,
    "pack": _truth,
    "replicas": _whole,
    "min_member": _whole,
    "array": _array,
    "walltime": _duration,
    "grace": _duration,
    "priority_class": _text,
    "env": _texts(_word),
    "after": _groups,
    "gates": _names,
    "suspend": _truth,
    "retries": _whole,
    "external": _truth,
    "api_token": _truth,
    "share": _truth,
    "launch": _text,
    "ports": _whole,
    "processes": _whole,
    "dialect": _text,
    "restart": _text,
    "warn": _text,
    "working_dir": _path,
    "env_activate": _path,
    "stdin": _truth,
    "image": _text,
    "runtime": _text,
    "mounts": _names,
    "isolate": _names,
}


#: The fields in which requests of one prototype may differ, each with its bit.
_VARYING = {"name": 1, "command": 2, "args": 4, "kwargs": 8, "env": 16, "after": 32}
#: At most this many prototypes are kept; further kinds of requests are checked in full.
_MOST_PROTOTYPES = 256
#: Longer texts are checked in full. A character has at most four bytes.
_MOST_TEXT = validation.MOST_COMMAND_BYTES // 8
_MOST_VARIABLES = 64
_MOST_DEPENDENCIES = 64

#: A function starts where the caller is, and a virtual environment may be relative to that.
_OF_A_FOLDER = frozenset({"function", "env_activate"})

_TEXT = {str}
_encode = msgspec.json.Encoder().encode


def warn_of_memory(fields: Mapping[str, Any]) -> None:
    """Warn the caller of `Client.submit` if the unit of `mem` was probably forgotten."""
    if doubt := doubtful_memory(fields.get("mem")):
        warnings.warn(f"mem={fields['mem']!r} is {doubt}", stacklevel=3)


def requested(
    what: Submitted, fields: Mapping[str, Any], more: Sequence[object] = ()
) -> PodGroup | Mapping[str, object] | Request:
    """Return what to submit: a string names a function, a list is a command.

    Raises InvalidInput for another type or a wrong field, UsageError if the fields repeat the first
    argument, or if more arguments follow that.
    """
    if more:
        raise UsageError(
            f"submit: expected one argument before the keywords, found {1 + len(more)}",
            hint="the function's own arguments are args=[…] and kwargs={…}",
        )
    if isinstance(what, PodGroup | Request | Mapping):
        return what
    return read_fields(_with_first(what, fields), {})


def _with_first(what: object, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a request with what its pods run, if that is the first argument."""
    match what:
        case None:
            return fields
        case list() | tuple():
            place = "command"
        case str():
            place = "function"
        case _ if callable(what):
            place = "function"
        case _:
            raise InvalidInput(
                "expected a group, a function, its name or a command to submit, found"
                f" {shown(what)}",
                hint='as in submit(["python3", "train.py"]) or submit("package.module:name")',
            )
    if place in fields:
        raise UsageError(f"{place} is given twice, once as the first argument", hint="keep one")
    return {place: what, **fields}


#: How many more names are generated if one is taken.
_NAMES = 3


def submit_one(
    what: PodGroup | Mapping[str, object] | Request,
    group_of: Callable[[Request], PodGroup],
    submit: Callable[[Sequence[PodGroup | Mapping[str, object]]], Sequence[Applied]],
) -> PodGroup:
    """Submit one request, under another name if a generated one is taken; return the group."""
    is_named = not isinstance(what, Request) or bool(what.name)
    for tries_left in range(0 if is_named else _NAMES, -1, -1):
        new = group_of(what) if isinstance(what, Request) else what
        try:
            [applied] = submit([new])
            break
        except Conflict:
            # Of 10,000 groups of one program, each generated name is taken once in 6,000 times.
            if not tries_left:
                raise
    assert isinstance(applied.object, PodGroup)
    return applied.object


class Draft(Struct, frozen=True):
    """A valid group. `program` is the base of its generated name, "" if the name was given;
    `size_bytes` estimates the size of its JSON.
    """

    group: PodGroup
    program: str
    size_bytes: int


class _Prototype(Struct, frozen=True):
    """A checked group, from which the groups of similar requests are derived."""

    group: PodGroup
    #: The base of generated names that do not depend on the command, and the default variables.
    program: str
    env: dict[str, str]
    size_bytes: int


class Drafts:
    """Builds drafts. `defaults` are keywords of `Client.submit`, for requests given as keywords."""

    def __init__(self, defaults: Mapping[str, Any]) -> None:
        """Raises InvalidInput for invalid defaults."""
        self._defaults = _set_fields(read_fields(defaults, {}))
        self._is_of_a_folder = not _OF_A_FOLDER.isdisjoint(self._defaults)
        self._prototypes: dict[bytes, _Prototype] = {}

    def draft(self, what: Submitted, suffix: str) -> Draft:
        """Check one request and return its group, with a generated name if it has none.

        Raises InvalidInput, UsageError.
        """
        if what is None:
            raise UsageError(
                "there is nothing to run", hint="give a command, a function or a group"
            )
        if isinstance(what, Mapping) and not ("apiVersion" in what or "kind" in what):
            return self._of_fields(what, suffix)
        return self.draft_of(what, {}, suffix)

    def draft_of(self, what: Submitted, fields: Mapping[str, Any], suffix: str) -> Draft:
        """As `draft` for the arguments of `Client.submit`. Raises InvalidInput, UsageError."""
        match what:
            case PodGroup():
                return _checked(what)
            case Request():
                return self._of_request(what, suffix)
            case Mapping():
                return self._of_manifest(what)
        return self._of_fields(_with_first(what, fields), suffix)

    def _of_fields(self, data: Mapping[str, Any], suffix: str) -> Draft:
        data = _as_plain(data)
        shape = _shape(data, "fields", is_of_a_folder=self._is_of_a_folder)
        draft = self._derive(shape, data, suffix)
        if draft is not None:
            return draft
        request = read_fields(data, self._defaults)
        return self._first(shape, request, self._defaults.get("env", {}), suffix)

    def _of_manifest(self, data: Mapping[str, Any]) -> Draft:
        own, shape = _split(data)
        draft = self._derive(shape, own, "")
        if draft is not None:
            return draft
        draft = _checked(_decoded(data))
        self._keep(shape, _Prototype(draft.group, "", {}, draft.size_bytes))
        return draft

    def _of_request(self, request: Request, suffix: str) -> Draft:
        data = _as_plain(_set_fields(request))
        shape = _shape(data, "request")
        return self._derive(shape, data, suffix) or self._first(shape, request, {}, suffix)

    def _derive(self, shape: bytes, data: Mapping[str, Any], suffix: str) -> Draft | None:
        prototype = self._prototypes.get(shape) if shape else None
        return None if prototype is None else _derive(prototype, data, suffix)

    def _first(self, shape: bytes, request: Request, env: Mapping[str, str], suffix: str) -> Draft:
        group = group_of(request, suffix=suffix)
        program = program_of(request, group.spec.tasks[0].template)
        draft = _checked(group, "" if request.name else program)
        # A group that is named after its command is named after each request's own.
        of_all = program if request.generate_name or not request.command else ""
        self._keep(shape, _Prototype(group, of_all, dict(env), draft.size_bytes))
        return draft

    def _keep(self, shape: bytes, prototype: _Prototype) -> None:
        # A large group is no prototype: with another request's fields it could exceed a limit.
        if shape and prototype.size_bytes <= validation.MOST_OBJECT_BYTES // 4:
            if len(self._prototypes) >= _MOST_PROTOTYPES:
                self._prototypes.clear()
            self._prototypes[shape] = prototype


_DEFAULTS = dict(zip(Request.__struct_fields__, structs.astuple(Request()), strict=True))


def _set_fields(request: Request) -> dict[str, Any]:
    """Return the fields of a request that differ from their defaults."""
    return {
        name: value
        for name, default in _DEFAULTS.items()
        if (value := getattr(request, name)) != default
    }


def _as_plain(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the data with the function and the working directory as strings, if possible."""
    function, folder = data.get("function"), data.get("working_dir")
    if function is None and folder is None:
        return data
    if callable(function):
        try:
            data = {**data, "function": name_of(function)}
        except InvalidInput:
            return data
    if isinstance(folder, os.PathLike):
        data = {**data, "working_dir": os.fspath(folder)}
    return data


def _shape(data: Mapping[str, Any], sort: str, *, is_of_a_folder: bool = False) -> bytes:
    """Return what the requests of one prototype have in common; empty if it cannot be encoded.

    `is_of_a_folder`: even without its own fields, a request depends on the present folder.
    """
    is_of_a_folder = is_of_a_folder or not _OF_A_FOLDER.isdisjoint(data)
    own, rest = 0, {}
    for name, value in data.items():
        bit = _VARYING.get(name)
        if bit is None:
            rest[name] = value
        elif value is not None:
            own |= bit
    try:
        folder = str(Path.cwd()) if is_of_a_folder else ""
        return _encode((sort, own, rest, folder))
    except (TypeError, ValueError, RecursionError, FileNotFoundError):
        # A function, a path, or an unknown type: the full check handles it.
        return b""


def _split(manifest: Mapping[str, Any]) -> tuple[Mapping[str, Any], bytes]:
    """Return the varying fields of a manifest as those of a request, and the shape of the rest;
    an empty shape if only the full check can tell them apart.
    """
    metadata, spec = manifest.get("metadata"), manifest.get("spec")
    if type(metadata) is not dict or type(spec) is not dict:
        return {}, b""
    # What a group depends on is found for each group.
    tasks = spec.get("tasks") if "dependsOn" not in spec else None
    if type(tasks) is not list or len(tasks) != 1 or type(tasks[0]) is not dict:
        return {}, b""
    template = tasks[0].get("template")
    if type(template) is not dict or type(template.get("command")) is not list:
        return {}, b""
    name, command = metadata.get("name"), template["command"]
    if not name:
        return {}, b""
    rest = (
        {**manifest, "metadata": None, "spec": None},
        {**metadata, "name": None},
        {**spec, "tasks": None},
        {**tasks[0], "template": None},
        {**template, "command": None},
    )
    try:
        return {"name": name, "command": command}, _encode(("manifest", rest))
    except (TypeError, ValueError, RecursionError):
        return {}, b""


def _checked(group: PodGroup, program: str = "") -> Draft:
    validation.check(group)
    return Draft(group, program, len(_encode(group)))


def _decoded(data: Mapping[str, Any]) -> PodGroup:
    item = manifest.decode(data)
    if isinstance(item, PodGroup):
        return item
    raise InvalidInput(
        f"kind: expected PodGroup, found {kind_of(item)}",
        hint="other objects are applied: `batchq apply -f FILE`, client.apply in Python",
    )


def _derive(prototype: _Prototype, data: Mapping[str, Any], suffix: str) -> Draft | None:
    """Return the draft of a request that differs from the prototype only in the varying fields.

    Returns None if a cheap check cannot tell that the draft is valid.
    """
    group = prototype.group
    [task] = group.spec.tasks
    template = _template_of_line(task.template, prototype, data)
    depends_on = _dependencies(data.get("after"))
    if template is None or depends_on is None:
        return None
    name, program = data.get("name"), ""
    if not name:
        program = prototype.program or template.command[0]
        name = default_name(program, suffix)
    if type(name) is not str or label_problem(name):
        return None
    spec = structs.replace(
        group.spec,
        depends_on=depends_on,
        tasks=(structs.replace(task, template=template),)
        if template is not task.template
        else group.spec.tasks,
    )
    meta = group.metadata
    metadata = Metadata(
        name=name, namespace=meta.namespace, labels=meta.labels, annotations=meta.annotations
    )
    # The varying fields are small here, so twice the prototype's size is a safe estimate.
    return Draft(PodGroup(metadata=metadata, spec=spec), program, 2 * prototype.size_bytes)


def _template_of_line(
    template: PodTemplate, prototype: _Prototype, data: Mapping[str, Any]
) -> PodTemplate | None:
    changes: dict[str, Any] = {}
    if (command := data.get("command")) is not None:
        if not _is_plain_command(command):
            return None
        changes["command"] = tuple(command)
    if (env := data.get("env")) is not None:
        if type(env) is not dict or not _are_plain_variables(both := {**prototype.env, **env}):
            return None
        changes["env"] = both
    args, kwargs = data.get("args"), data.get("kwargs")
    if args is not None or kwargs is not None:
        if not template.function:
            return None
        try:
            changes |= arguments_of(args or (), kwargs or {})
        except BatchqError:
            return None
        if args is None:
            changes["args"] = template.args
        if kwargs is None:
            changes["kwargs"] = template.kwargs
    if not changes:
        return template
    cast = structs.replace(template, **changes)
    if "args" in changes and argument_bytes(cast) > MOST_ARGUMENT_BYTES:
        return None
    return cast


def _is_plain_command(command: object) -> bool:
    if not isinstance(command, list | tuple) or not command or not command[0]:
        return False
    return set(map(type, command)) == _TEXT and _is_plain("\n".join(command))


def _are_plain_variables(env: Mapping[object, object]) -> bool:
    if len(env) > _MOST_VARIABLES:
        return False
    words: list[str] = []
    for name, value in env.items():
        if type(name) is not str or type(value) is not str or not name or "=" in name:
            return False
        words += (name, value)
    return _is_plain("\n".join(words))


def _is_plain(text: str) -> bool:
    """Return whether a process accepts the text and it is within every limit; ASCII only, because
    other characters may not be encodable.
    """
    return len(text) <= _MOST_TEXT and "\0" not in text and text.isascii()


def _dependencies(after: object) -> tuple[Dependency, ...] | None:
    if after is None:
        return ()
    written = (after,) if isinstance(after, str) else after
    if not isinstance(written, list | tuple) or len(written) > _MOST_DEPENDENCIES:
        return None
    found = []
    for one in written:
        if type(one) is not str:
            return None
        try:
            dependency = dependency_of(one)
        except BatchqError:
            return None
        if label_problem(dependency.name):
            return None
        found.append(dependency)
    if len({one.name for one in found}) < len(found):
        return None
    return tuple(found)


class GroupManifests:
    """The manifests of groups. Most differ from the one before only in the name and the command,
    and share the rest of their manifests with it.
    """

    def __init__(self) -> None:
        self._former: PodGroup | None = None
        self._manifest: dict[str, Any] = {}

    def of(self, group: PodGroup) -> dict[str, Any]:
        """Return the manifest of a group."""
        bare = _without_command(group)
        if bare is None:
            return manifest.encode(group)
        if bare != self._former:
            self._former, self._manifest = bare, manifest.encode(bare)
        former, [task] = self._manifest, self._manifest["spec"]["tasks"]
        template = {**task["template"], "command": list(group.spec.tasks[0].template.command)}
        return {
            **former,
            "metadata": {**former["metadata"], "name": group.metadata.name},
            "spec": {**former["spec"], "tasks": [{**task, "template": template}]},
        }


#: Any specification that is valid.
_A_SPEC = {"tasks": [{"name": "main", "template": {"command": ["true"]}}]}


def stored_group(group: PodGroup, sent: Mapping[str, Any], answer: Mapping[str, Any]) -> PodGroup:
    """Return a group as it is stored: `answer` is its manifest there, `sent` its own."""
    is_as_sent = answer.get("spec") == sent["spec"]
    found = _decoded({**answer, "spec": _A_SPEC} if is_as_sent else answer)
    if not is_as_sent:
        return found
    # Reading the specification again would take as long as everything else.
    return structs.replace(found, spec=group.spec)


def _without_command(group: PodGroup) -> PodGroup | None:
    """Return a group without name and command; None unless it has one task, with a command."""
    if len(group.spec.tasks) != 1 or not group.spec.tasks[0].template.command:
        return None
    [task] = group.spec.tasks
    # A template needs some field to be written.
    template = structs.replace(task.template, command=("",))
    spec = structs.replace(group.spec, tasks=(structs.replace(task, template=template),))
    return structs.replace(group, metadata=structs.replace(group.metadata, name=""), spec=spec)
