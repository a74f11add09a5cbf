"""conf/README.md says of every field what it is: held against the structs, in both directions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import NODEFAULT, Struct, inspect

from batchq.api.notation import default_of, write_form
from batchq.api.objects import KINDS, NAMESPACED, Metadata
from batchq.config.load import as_written
from batchq.config.model import PluginEntry, SchedulerConfig, SchedulerFile
from batchq.core.extension.points import POINTS

README = Path(__file__).resolve().parents[2] / "conf" / "README.md"
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
Row = tuple[str, str, str]


def rows(kind: type[Struct], prefix: str = "") -> Iterator[Row]:
    """Path, type and default of every field that a manifest may hold, parts of parts included."""
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


def documented(heading: str) -> list[Row]:
    """The first three cells of every row of the table under a heading."""
    text = README.read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    found = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `"):
            path, kind, default, meaning = cells
            assert meaning, f"{heading}: {path} says nothing about its meaning"
            found.append((path.strip("`"), kind, default))
    return found


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_field_of_a_kind_is_documented_with_its_type_and_default(kind: str) -> None:
    parts = {
        field.name: field.type.cls
        for field in inspect.type_info(KINDS[kind]).fields
        if field.name in ("spec", "status")
    }
    expected = [row for part, cls in parts.items() for row in rows(cls, f"{part}.")]
    assert documented(kind) == expected


def test_the_metadata_of_all_kinds_is_documented() -> None:
    assert documented("metadata") == list(rows(Metadata, "metadata."))


def test_every_setting_of_the_scheduler_is_documented() -> None:
    found = {path: (kind, default) for path, kind, default in documented("scheduler.yaml")}
    for path, kind, default in [
        *rows(SchedulerFile),
        *rows(PluginEntry, "plugins.multiPoint.enabled[]."),
    ]:
        assert found.pop(path) == (kind, default)
    written = as_written(SchedulerConfig())
    assert found.pop("actions")[1] == f"`{', '.join(written['actions'])}`"
    assert found.pop("plugins.multiPoint.disabled") == ("list of text", "–")
    assert found.pop("plugins.<point>.disabled") == ("list of text", "–")
    fields = ", ".join(PluginEntry.__struct_encode_fields__)
    assert found.pop("plugins.<point>.enabled[]") == (
        f"list of text, or of {{{fields}}}",
        "–",
    )
    assert found.pop("pluginConfig")[1] == "–"
    assert not found


def test_the_default_plugins_and_the_points_are_named() -> None:
    text = README.read_text(encoding="utf-8")
    default = ", ".join(entry.name for entry in SchedulerConfig().plugins)
    assert f"The default ones are on anyway: `{default}`." in text
    assert f"The points: {', '.join(f'`{point}`' for point in POINTS)}." in text


def test_namespaced_kinds_are_named() -> None:
    text = README.read_text(encoding="utf-8")
    for kind in KINDS:
        assert (f"## {kind}\n\nNamespaced" in text) is (kind in NAMESPACED), kind
