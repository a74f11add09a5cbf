"""conf/README.md documents exactly the fields of the structs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from batchq.api.objects import KINDS, NAMESPACED, Metadata
from batchq.config import PluginEntry, SchedulerConfig, SchedulerFile
from batchq.config.load import as_written
from batchq.core.extension import POINTS
from docs.reference import Row, fields_of, rows

README = Path(__file__).resolve().parents[2] / "conf" / "README.md"


def documented(heading: str) -> list[Row]:
    """Return the first three cells of every row of the table under a heading."""
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
    assert documented(kind) == fields_of(kind)


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
    assert f"The default plugins are on anyway: `{default}`." in text
    assert f"The points: {', '.join(f'`{point}`' for point in POINTS)}." in text


def test_namespaced_kinds_are_named() -> None:
    text = README.read_text(encoding="utf-8")
    for kind in KINDS:
        assert (f"## {kind}\n\nNamespaced" in text) is (kind in NAMESPACED), kind
