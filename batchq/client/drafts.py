"""From what is to be submitted to a group that is right by itself, cheaply where many are alike.

Of many requests most share everything but the name and what runs: the first of them goes through
all checks and is kept as a mould, the others are cast from it, and only what differs is looked at.
Whatever is not plainly right goes the long way, so that there is one sentence for each mistake.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, structs

from batchq.api import manifest, validate
from batchq.api.functions import MOST_ARGUMENT_BYTES, argument_bytes
from batchq.api.names import label_problem
from batchq.api.objects import Dependency, Metadata, PodGroup, PodTemplate, kind_of
from batchq.client.fields import read_fields
from batchq.client.functions import arguments_of, name_of
from batchq.client.groups import (
    Request,
    Submitted,
    default_name,
    dependency_of,
    group_of,
    program_of,
    requested,
)
from batchq.errors import BatchqError, InvalidInput, UsageError

#: What may differ among requests of one mould, and a bit for each.
_VARYING = {"name": 1, "command": 2, "args": 4, "kwargs": 8, "env": 16, "after": 32}
#: So many moulds are kept; whoever has more kinds of requests pays for the checks of each.
_MOST_MOULDS = 256
#: Larger ones are checked in full. No character has more than four bytes.
_MOST_TEXT = validate.MOST_COMMAND_BYTES // 8
_MOST_VARIABLES = 64
_MOST_DEPENDENCIES = 64

_TEXT = {str}
_encode = msgspec.json.Encoder().encode


class Draft(Struct, frozen=True):
    """A group that is right by itself. `program` is what its name was made from, "" if it was
    given; `size_bytes` about how large it is.
    """

    group: PodGroup
    program: str
    size_bytes: int


class _Mould(Struct, frozen=True):
    """A group that stands for all requests like it."""

    group: PodGroup
    #: What a request that says nothing of it is named after; and its variables.
    program: str
    env: dict[str, str]
    size_bytes: int


class Drafts:
    """Makes drafts. `defaults` are keywords of `Client.submit`, for requests given as keywords."""

    def __init__(self, defaults: Mapping[str, Any]) -> None:
        """Raises InvalidInput for what is wrong with the defaults by themselves."""
        self._defaults = _said(read_fields(defaults, {}))
        self._moulds: dict[bytes, _Mould] = {}

    def draft(self, what: Submitted, suffix: str) -> Draft:
        """Check one request; a nameless one gets its name here.

        Raises InvalidInput, UsageError.
        """
        match what:
            case Request():
                return self._of_request(what, suffix)
            case Mapping() if "apiVersion" in what or "kind" in what:
                return _checked(_decoded(what))
            case Mapping():
                return self._of_fields(what, suffix)
            case PodGroup():
                return _checked(what)
            case list() | tuple():
                return self._of_fields({"command": what}, suffix)
            case str():
                return self._of_fields({"function": what}, suffix)
            case _ if callable(what):
                return self._of_fields({"function": what}, suffix)
        requested(what, {})
        raise UsageError("there is nothing to run", hint="give a command, a function or a group")

    def _of_fields(self, data: Mapping[str, Any], suffix: str) -> Draft:
        data = _as_plain(data)
        shape = _shape(data, "fields")
        draft = self._cast(shape, data, suffix)
        if draft is not None:
            return draft
        request = read_fields(data, self._defaults)
        return self._first(shape, request, self._defaults.get("env", {}), suffix)

    def _of_request(self, request: Request, suffix: str) -> Draft:
        data = _as_plain(_said(request))
        shape = _shape(data, "request")
        return self._cast(shape, data, suffix) or self._first(shape, request, {}, suffix)

    def _cast(self, shape: bytes, data: Mapping[str, Any], suffix: str) -> Draft | None:
        mould = self._moulds.get(shape) if shape else None
        return None if mould is None else _cast(mould, data, suffix)

    def _first(self, shape: bytes, request: Request, env: Mapping[str, str], suffix: str) -> Draft:
        group = group_of(request, suffix=suffix)
        program = program_of(request, group.spec.tasks[0].template)
        draft = _checked(group, "" if request.name else program)
        # A large one is no measure for others: with theirs they could pass a limit of the whole.
        if shape and draft.size_bytes <= validate.MOST_OBJECT_BYTES // 4:
            if len(self._moulds) >= _MOST_MOULDS:
                self._moulds.clear()
            # What is named after its command is named after its own.
            of_all = program if request.generate_name or not request.command else ""
            self._moulds[shape] = _Mould(group, of_all, dict(env), draft.size_bytes)
        return draft


_USUAL = dict(zip(Request.__struct_fields__, structs.astuple(Request()), strict=True))


def _said(request: Request) -> dict[str, Any]:
    """What a request says beyond what is usual."""
    return {
        name: value
        for name, default in _USUAL.items()
        if (value := getattr(request, name)) != default
    }


def _as_plain(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The same with a function and a folder as texts, if they can be."""
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


def _shape(data: Mapping[str, Any], sort: str) -> bytes:
    """What requests of one mould have in common; empty if it cannot be told."""
    own, rest = 0, {}
    for name, value in data.items():
        bit = _VARYING.get(name)
        if bit is None:
            rest[name] = value
        elif value is not None:
            own |= bit
    try:
        return _encode((sort, own, rest))
    except (TypeError, ValueError, RecursionError):
        # A function, a path, what no request has: the long way knows.
        return b""


def _checked(group: PodGroup, program: str = "") -> Draft:
    validate.check(group)
    return Draft(group, program, len(_encode(group)))


def _decoded(data: Mapping[str, Any]) -> PodGroup:
    item = manifest.decode(data)
    if isinstance(item, PodGroup):
        return item
    raise InvalidInput(
        f"kind: expected PodGroup, found {kind_of(item)}",
        hint="other objects are applied: `batchq apply -f FILE`, client.apply in Python",
    )


# --- casting --------------------------------------------------------------------------------------


def _cast(mould: _Mould, data: Mapping[str, Any], suffix: str) -> Draft | None:
    """The draft of a request that differs from the mould's in what varies; None if it is not
    plainly right.
    """
    group = mould.group
    [task] = group.spec.tasks
    template = _template(task.template, mould, data)
    depends_on = _dependencies(data.get("after"))
    if template is None or depends_on is None:
        return None
    name, program = data.get("name"), ""
    if not name:
        program = mould.program or template.command[0]
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
    # Twice what others were, since what varies is small here.
    return Draft(PodGroup(metadata=metadata, spec=spec), program, 2 * mould.size_bytes)


def _template(template: PodTemplate, mould: _Mould, data: Mapping[str, Any]) -> PodTemplate | None:
    changes: dict[str, Any] = {}
    if (command := data.get("command")) is not None:
        if not _is_plain_command(command):
            return None
        changes["command"] = tuple(command)
    if (env := data.get("env")) is not None:
        if type(env) is not dict or not _are_plain_variables(both := {**mould.env, **env}):
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
    """Whether it can be passed to a process, and is within every limit. Of other than ASCII not
    all can be encoded.
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
