"""docs/plugins.md lists the extension points and arguments of every built-in plugin."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from msgspec import inspect

from batchq.api.notation import default_of
from batchq.assembly import BUILTIN_PLUGINS
from batchq.config import DEFAULT_PLUGINS
from batchq.core.extension import POINTS

_GUIDE = (Path(__file__).parents[2] / "docs" / "plugins.md").read_text(encoding="utf-8")


def table(heading: str) -> list[list[str]]:
    """Return the rows of the table whose first line starts with this."""
    lines = _GUIDE.splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith(heading))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    return rows


def test_every_extension_point_is_listed_with_its_method() -> None:
    listed = {row[0]: re.findall(r"`(\w+)\(", row[1])[0] for row in table("| point |")}
    assert listed == POINTS


def test_every_plugin_is_listed_with_its_points_and_the_default_ones_first() -> None:
    listed = {row[0]: row[1].split(", ") for row in table("| plugin | points |")}
    implemented = {
        name: [point for point, method in POINTS.items() if hasattr(maker, method)]
        for name, maker in BUILTIN_PLUGINS.items()
    }
    assert {name: sorted(points) for name, points in listed.items()} == {
        name: sorted(points) for name, points in implemented.items()
    }
    default = [entry.name for entry in DEFAULT_PLUGINS]
    assert list(listed)[: len(default)] == default


def test_every_plugin_states_its_purpose_and_its_wake_up_events() -> None:
    rows = table("| plugin | after |")
    assert sorted(row[0] for row in rows) == sorted(BUILTIN_PLUGINS)
    assert all(source and wakes for _, source, wakes in rows)


def test_every_argument_is_listed_with_its_default() -> None:
    rows = table("| `pluginConfig` of |")
    listed = [(plugin, argument.strip("`"), default) for plugin, argument, default, _ in rows]
    taken = []
    for name, maker in BUILTIN_PLUGINS.items():
        form = getattr(maker, "arguments", None)
        if form is None:
            continue
        info = inspect.type_info(form)
        assert isinstance(info, inspect.StructType)
        for field in info.fields:
            default = default_of(field)
            written = f"`{', '.join(default)}`" if isinstance(default, tuple) else "–"
            taken.append((name, field.encode_name, written))
    assert sorted(listed) == sorted(taken)


def test_every_plugins_docstring_begins_with_its_name_and_its_points() -> None:
    """The score plugins are described together, by their module."""
    for name, maker in BUILTIN_PLUGINS.items():
        points = [point for point, method in POINTS.items() if hasattr(maker, method)]
        if points == ["score"]:
            text = sys.modules[maker.__module__].__doc__ or ""
            assert re.search(rf"^{name}: ", text, re.MULTILINE), name
            continue
        text = maker.__doc__ or ""
        first = re.match(rf"{name} \(([\w, ]+)\): ", text)
        assert first is not None, name
        assert sorted(first[1].split(", ")) == sorted(points), name
        assert re.search(r"unpark|lifts|vote\s+changes", text), name
