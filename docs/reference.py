"""Write the reference pages of the site from the code: `python docs/reference.py FOLDER`.

Commands come from click's command tree, fields from the msgspec structs, reasons and metrics from
their closed lists, and the Python API from docstrings. The meaning of a field is its cell in
conf/README.md, which a test compares with the structs; `tests/tidy/test_reference.py` checks that
nothing is left out.
"""

from __future__ import annotations

import inspect as reflection
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from msgspec import NODEFAULT, Struct, inspect

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.notation import default_of, write_form
from batchq.api.objects import KINDS, Metadata
from batchq.api.reasons import Finish, Leaving, Waiting
from batchq.cli.main import COMMANDS, main
from batchq.config import SchedulerFile
from batchq.daemon.metrics import MEASURES

ROOT = Path(__file__).resolve().parents[1]
FORMS = {
    "amounts": "map of quantities",
    "duration": "duration",
    "instant": "time",
    "factor": "number, up to three decimals",
}
SCALARS = {
    inspect.StrType: "text",
    inspect.IntType: "whole number",
    inspect.BoolType: "true or false",
    inspect.RawType: "any",
}
#: Path, type and default of a field.
Row = tuple[str, str, str]

#: Modules of the Python API, in the order of the page, and what a heading calls them.
API = {
    "batchq.client": "Client",
    "batchq.client.request": "Requests",
    "batchq.client.checks": "Admission checks and scheduling gates",
    "batchq.client.external": "External groups",
    "batchq.api.views": "Results",
    "batchq.errors": "Errors",
}
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml"}
LEAVING = {
    Leaving.PREEMPTED: "A group of higher priority in the same queue needed the capacity.",
    Leaving.RECLAIMED: "Another queue reclaimed capacity that it deserves.",
    Leaving.SUSPENDED: "The group was suspended.",
    Leaving.QUEUE_STOPPED: "The queue, or one above it, has `stopPolicy: HoldAndDrain`.",
    Leaving.NODE_LOST: "The node stopped reporting, or was drained.",
    Leaving.CAPACITY_CUT: "A limit was reduced, and the reservation no longer fits.",
    Leaving.IN_QUEUE_TIMEOUT: "The group did not run within `inQueueTimeout`.",
    Leaving.RECOVERY_TIMEOUT: "Fewer than `minMember` pods ran for `recoveryTimeout`.",
    Leaving.UNSCHEDULABLE: "No ready node could take the pods, even if it were empty.",
    Leaving.CHECK_RETRY: "An admission check answered False with Retry.",
    Leaving.CHECK_REJECTED: "An admission check answered False with Reject.",
    Leaving.CLAIM_LAPSED: "The consumer of the external group did not renew its claim.",
    Leaving.GANG_RESTART: (
        "A pod of a gang with `spec.launch` failed or was lost, so all of its pods start again."
    ),
}
FINISH = {
    Finish.SUCCEEDED: "Every pod succeeded.",
    Finish.RETRIES_SPENT: "A pod failed more often than `retry.limit` permits.",
    Finish.WALLTIME_EXCEEDED: "The group reached its walltime.",
    Finish.CHECK_REJECTED: "An admission check answered False with Reject.",
    Finish.DEPENDENCY_NEVER_MET: "A group that it depends on ended with another result.",
    Finish.CANCELLED: "A user cancelled the group.",
}


def rows(kind: type[Struct], prefix: str = "") -> Iterator[Row]:
    """Return path, type and default of every field that a manifest may hold, nested ones too."""
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        path = f"{prefix}{field.encode_name}"
        inner, many = struct_in(field.type)
        if inner is not None:
            yield from rows(inner, f"{path}[]." if many else f"{path}.")
        else:
            yield path, type_words(field.type), default_words(field)


def struct_in(kind: inspect.Type) -> tuple[type[Struct] | None, bool]:
    """Return the struct in a type, if any, and whether the type is a list of it."""
    match kind:
        case inspect.StructType(cls=cls):
            return cls, False
        case inspect.VarTupleType(item_type=inspect.StructType(cls=cls)):
            return cls, True
        case inspect.UnionType(types=(inspect.StructType(cls=cls), inspect.NoneType())):
            return cls, False
        case _:
            return None, False


def type_words(kind: inspect.Type) -> str:
    """Return a type in the words of the reference."""
    match kind:
        case inspect.Metadata(type=inner, extra=extra):
            return FORMS[extra["form"]] if extra else type_words(inner)
        case inspect.UnionType(types=types):
            members = [each for each in types if not isinstance(each, inspect.NoneType)]
            return " or ".join(sorted((type_words(each) for each in members), reverse=True))
        case inspect.LiteralType(values=values):
            # The empty word is the default of some: it stands for none of them.
            return ", ".join(f"`{value}`" for value in values if value)
        case inspect.EnumType(cls=cls):
            return ", ".join(f"`{member.value}`" for member in cls)
        case inspect.VarTupleType(item_type=item):
            return f"list of {type_words(item)}"
        case inspect.DictType(value_type=value):
            return f"map of {type_words(value)}"
        case _:
            return SCALARS[type(kind)]


def default_words(field: inspect.Field) -> str:
    """Return a default in the notation of manifests, `required`, or a dash."""
    if field.required:
        return "required"
    default, kind = default_of(field), field.type
    if default is NODEFAULT or default is None or default in ("", {}, ()):
        return "–"
    if isinstance(kind, inspect.Metadata) and kind.extra:
        default = write_form(kind.extra["form"], default)
    if isinstance(default, bool):
        default = str(default).lower()
    return f"`{getattr(default, 'value', default)}`"


def fields_of(kind: str) -> list[Row]:
    """Return every field of `spec` and `status` of a kind."""
    info = inspect.type_info(KINDS[kind])
    assert isinstance(info, inspect.StructType)
    parts = {
        field.name: field.type.cls
        for field in info.fields
        if field.name in ("spec", "status") and isinstance(field.type, inspect.StructType)
    }
    return [row for part, cls in parts.items() for row in rows(cls, f"{part}.")]


def _sections() -> dict[str, str]:
    """Return conf/README.md by heading, with links as seen from the folder of the reference."""
    text = (ROOT / "conf" / "README.md").read_text(encoding="utf-8")
    text = text.replace("](../docs/", "](../").replace("](examples/", "](../../conf/examples/")
    _, *parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def _rewritten(section: str, code: list[Row]) -> str:
    """Return a section with the types and defaults of the code in its table of fields."""
    known = {path: (kind, default) for path, kind, default in code}
    lines = []
    for line in section.splitlines():
        path = re.match(r"\| `([^`]+)` \|", line)
        if path and path[1] in known:
            meaning = line.split(" | ", 3)[3]
            line = f"| `{path[1]}` | {' | '.join(known.pop(path[1]))} | {meaning}"
        lines.append(line)
    assert not known, f"conf/README.md does not describe {sorted(known)}"
    return "\n".join(lines)


def objects_page() -> str:
    """Return the page of all kinds."""
    sections = _sections()
    parts = ["# Objects", "", "## Notation", sections["Notation"], "## metadata"]
    parts.append(_rewritten(sections["metadata"], list(rows(Metadata, "metadata."))))
    for kind in KINDS:
        parts += [f"\n## {kind}", _rewritten(sections[kind], fields_of(kind))]
    parts += ["\n## Phases", "", "A group is in one of these phases:", ""]
    parts += [f"- `{phase}`" for phase in PodGroupPhase]
    parts += ["", "A pod is in one of these phases:", "", *(f"- `{phase}`" for phase in PodPhase)]
    return "\n".join(parts) + "\n"


def configuration_page() -> str:
    """Return the page of `scheduler.yaml`."""
    section = _rewritten(_sections()["scheduler.yaml"], list(rows(SchedulerFile)))
    return f"# Configuration: scheduler.yaml\n{section}\n"


def commands() -> Iterator[tuple[tuple[str, ...], click.Context]]:
    """Return every command with its words, in the order of the help; hidden ones are left out."""
    top = click.Context(main, info_name="batchq", max_content_width=96, terminal_width=96)
    for names in COMMANDS.values():
        for name in names:
            yield from _below(top, name)


def _below(parent: click.Context, name: str) -> Iterator[tuple[tuple[str, ...], click.Context]]:
    assert isinstance(parent.command, click.Group)
    command = parent.command.get_command(parent, name)
    assert command is not None, name
    if command.hidden:
        return
    context = click.Context(
        command, info_name=name, parent=parent, max_content_width=96, terminal_width=96
    )
    yield tuple(context.command_path.split()[1:]), context
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            yield from _below(context, child)


def cli_page() -> str:
    """Return the page of all commands, each with its help."""
    parts = [
        "# Command line",
        "",
        "The options of all commands, `batchq [OPTIONS] COMMAND`:",
        "",
        *_help(click.Context(main, info_name="batchq", terminal_width=96)),
    ]
    sections = {name: section for section, names in COMMANDS.items() for name in names}
    last = ""
    for words, context in commands():
        if sections[words[0]] != last:
            last = sections[words[0]]
            parts += ["", f"## {last}"]
        parts += ["", f"### batchq {' '.join(words)}", "", *_help(context)]
    return "\n".join(parts) + "\n"


def _help(context: click.Context) -> list[str]:
    return ["```text", *context.get_help().splitlines(), "```"]


def reasons_page() -> str:
    """Return the page of the three lists of reasons."""
    why = (ROOT / "docs" / "why.md").read_text(encoding="utf-8")
    parts = ["# Reasons", "", "Conditions, lists, metrics and the Python client use these names."]
    parts += ["", "## Why a group waits", ""]
    parts += [
        "The most fundamental reason comes first. [Why a group waits](../why.md) has examples."
    ]
    parts += ["", "| reason | meaning |", "|---|---|"]
    for reason in Waiting:
        section = re.search(rf"^### {reason}\n\n(.+?)\n\n", why + "\n\n", re.S | re.MULTILINE)
        assert section, f"docs/why.md has no section about {reason}"
        parts.append(f"| [`{reason}`](../why.md#{reason.lower()}) | {_line(section[1])} |")
    for title, meanings in (
        ("Why an admitted group or a pod was evicted", LEAVING),
        ("How a group ended", FINISH),
    ):
        parts += ["", f"## {title}", "", "| reason | meaning |", "|---|---|"]
        parts += [f"| `{reason}` | {meaning} |" for reason, meaning in meanings.items()]
    return "\n".join(parts) + "\n"


def metrics_page() -> str:
    """Return the page of all metrics."""
    parts = ["# Metrics", "", "[Observability](../metrics.md) explains how to use them.", ""]
    parts += ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for measure in MEASURES:
        labels = ", ".join(f"`{label}`" for label in measure.labels) or "–"
        parts.append(f"| `{measure.name}` | {measure.kind} | {labels} | {_line(measure.help)} |")
    return "\n".join(parts) + "\n"


def python_page() -> str:
    """Return the page of the Python API: public classes and functions with their docstrings."""
    parts = ["# Python API"]
    for name, title in API.items():
        module = import_module(name)
        parts += ["", f"## {title}", "", f"Module `{name}`.", "", *_text(module)]
        for label, member in public(module):
            parts += ["", f"### {name}.{label}", "", *_signature(label, member), *_text(member)]
            for inner, method in _methods(member):
                parts += ["", f"#### {label}.{inner}", "", *_signature(inner, method)]
                parts += _text(method)
    return "\n".join(parts) + "\n"


def public(module: Any) -> list[tuple[str, Any]]:
    """Return the public classes and functions that a module defines, in its order."""
    found = [
        (name, member)
        for name, member in vars(module).items()
        if not name.startswith("_")
        and (reflection.isclass(member) or reflection.isfunction(member))
        and member.__module__ == module.__name__
    ]
    return sorted(found, key=lambda each: _first_line(each[1]))


def _first_line(member: Any) -> int:
    return reflection.getsourcelines(member)[1]


def _methods(member: Any) -> Iterator[tuple[str, Any]]:
    if not reflection.isclass(member):
        return
    for base in reversed(member.__mro__):
        if not base.__module__.startswith("batchq."):
            continue
        for name, value in vars(base).items():
            function = getattr(value, "fget", None) or getattr(value, "func", None) or value
            if not name.startswith("_") and reflection.isfunction(function):
                yield name, function


def _signature(name: str, member: Any) -> list[str]:
    if reflection.isclass(member) and issubclass(member, Exception):
        return []
    try:
        signature = reflection.signature(member)
    except (TypeError, ValueError):
        return []
    text = re.sub(r"\bself, |\(self\)", lambda m: "()" if ")" in m[0] else "", str(signature))
    return ["```python", _wrapped(f"{name}{text}"), "```", ""]


def _wrapped(signature: str) -> str:
    """Return a long signature with one parameter per line."""
    signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", signature)
    signature = re.sub(r"<(?:function|object|class)[^>]*>+(?: at 0x\w+>)?", "...", signature)
    if len(signature) <= 96:
        return signature
    head, _, rest = signature.partition("(")
    inner, _, tail = rest.rpartition(")")
    if "->" in rest:
        inner, _, result = rest.rpartition(" -> ")
        inner, tail = inner.rstrip(")"), f" -> {result}"
    parts = re.split(r", (?![^\[\(]*[\]\)])", inner)
    return head + "(\n    " + ",\n    ".join(parts) + ",\n)" + tail


def _text(member: Any) -> list[str]:
    """Return a docstring as Markdown; indented blocks are code."""
    doc = reflection.getdoc(member) or ""
    if not member or doc == reflection.getdoc(Struct) or not doc:
        return []
    lines: list[str] = []
    for block in doc.split("\n\n"):
        if block.startswith("    "):
            lines += ["```text", *(line[4:] for line in block.splitlines()), "```", ""]
        else:
            lines += [_escaped(block), ""]
    return lines


def _escaped(text: str) -> str:
    """Escape what Markdown would take for markup, outside code spans."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_<\[\]|#])", r"\\\1", part) for part in parts
    )


def _line(text: str) -> str:
    return re.sub(r"\]\((?!\.\./|http|#)", "](../", " ".join(text.split())).replace("|", "\\|")


def examples_page() -> str:
    """Return the page of the example files, with their contents."""
    parts = ["# Examples", "", "The files of the folder `conf/examples`."]
    for path in sorted((ROOT / "conf" / "examples").iterdir()):
        if path.suffix in LANGUAGES:
            text = path.read_text(encoding="utf-8").rstrip()
            parts += ["", f"## {path.name}", "", f"```{LANGUAGES[path.suffix]}", text, "```"]
    return "\n".join(parts) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "cli": cli_page,
    "objects": objects_page,
    "configuration": configuration_page,
    "reasons": reasons_page,
    "metrics": metrics_page,
    "python": python_page,
    "examples": examples_page,
}


def write(folder: Path) -> None:
    """Write every page into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (folder / f"{name}.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python docs/reference.py FOLDER")
    write(Path(sys.argv[1]))
