"""The wheel contains two packages, their Lua scripts and type marker, and nothing else."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

import batchq
from tests.tidy.source import LIBRARY, ROOT, files


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    folder = tmp_path_factory.mktemp("wheel")
    (built,) = WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return zipfile.Path(built)


def names_in(wheel: zipfile.Path) -> set[str]:
    return set(wheel.root.namelist())


def installed_as(path: Path) -> str:
    """Return the path of a file of the repository in the wheel."""
    return str(path.relative_to(ROOT)).removeprefix("actions/")


def test_two_packages_and_their_metadata(wheel: zipfile.Path) -> None:
    assert {name.partition("/")[0] for name in names_in(wheel)} == {
        "batchq",
        "batchq_actions",
        f"batchq-{batchq.__version__}.dist-info",
    }


def test_every_module_and_script_of_the_packages(wheel: zipfile.Path) -> None:
    sources = [*files(LIBRARY, ".py"), *files(LIBRARY, ".lua"), ROOT / "batchq" / "py.typed"]
    assert {installed_as(path) for path in sources} <= names_in(wheel)


def test_no_tests_and_no_leftovers(wheel: zipfile.Path) -> None:
    parts = {part for name in names_in(wheel) for part in name.split("/")}
    assert parts.isdisjoint({"tests", "conftest.py", "__pycache__", "benchmarks"})


def test_the_licence_and_the_command(wheel: zipfile.Path) -> None:
    metadata = f"batchq-{batchq.__version__}.dist-info"
    licence = (wheel / metadata / "licenses" / "LICENSE").read_text(encoding="utf-8")
    commands = (wheel / metadata / "entry_points.txt").read_text(encoding="utf-8")
    assert "Apache License" in licence
    assert "batchq = batchq.cli.main:main" in commands
