"""A third-party package: a plugin and an action from a wheel, enabled by name in `multiPoint`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).resolve().parents[2]

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "curfew"
version = "1.0"
dependencies = ["batchq"]

[project.entry-points."batchq.plugins"]
curfew = "curfew:Curfew"

[project.entry-points."batchq.actions"]
rollcall = "curfew:RollCall"

[tool.hatch.build.targets.wheel]
packages = ["curfew"]
"""

MODULE = """
import sys

from batchq.api.objects import Value
from batchq.api.reasons import Verdict, Waiting


class Arguments(Value, frozen=True):
    namespaces: tuple[str, ...] = ()


class Curfew:
    name = "curfew"
    arguments = Arguments

    def __init__(self, arguments):
        self._namespaces = arguments.namespaces

    def pre_enqueue(self, session, group):
        if group.record.metadata.namespace not in self._namespaces:
            return []
        detail = "its namespace stays at home"
        return [Verdict(plugin=self.name, reason=Waiting.SCHEDULING_GATED, detail=detail)]


class RollCall:
    name = "rollcall"

    def execute(self, session):
        print("roll call:", len(session.groups), "groups", file=sys.stderr)
"""

WORLD = """
{apiVersion: batchq/v1, kind: Node, metadata: {name: n1}, spec: {resources: {cpu: 4}}}
---
apiVersion: batchq/v1
kind: PodGroup
metadata: {name: out, namespace: night}
spec: {tasks: [{name: t, template: {requests: {cpu: 1}}}]}
---
apiVersion: batchq/v1
kind: PodGroup
metadata: {name: free}
spec: {tasks: [{name: t, template: {requests: {cpu: 1}}}]}
"""

ENABLED = """
actions: [enqueue, allocate, rollcall]
plugins:
  multiPoint:
    enabled:
      - curfew
pluginConfig:
  curfew: {namespaces: [night]}
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of packages with the third-party one in it, unpacked from the built wheel."""
    source = tmp_path_factory.mktemp("curfew")
    (source / "pyproject.toml").write_text(PROJECT)
    (source / "curfew").mkdir()
    (source / "curfew" / "__init__.py").write_text(MODULE)
    folder = str(tmp_path_factory.mktemp("wheel"))
    (wheel,) = WheelBuilder(str(source)).build(directory=folder, versions=["standard"])
    packages = tmp_path_factory.mktemp("packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    return packages


def batchq(*words: str, packages: Path | None) -> subprocess.CompletedProcess[str]:
    paths = [ROOT, ROOT / "actions", *([packages] if packages else [])]
    return subprocess.run(
        [sys.executable, "-m", "batchq.cli", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def simulated(tmp_path: Path, config: str, packages: Path) -> tuple[dict[str, Any], str]:
    """Return the groups at the end, and the output on stderr."""
    (tmp_path / "world.yaml").write_text(WORLD)
    (tmp_path / "scheduler.yaml").write_text(config)
    world, settings = str(tmp_path / "world.yaml"), str(tmp_path / "scheduler.yaml")
    done = batchq("simulate", world, "--config", settings, "-o", "json", packages=packages)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["podgroups"], done.stderr


def test_both_run_once_they_are_named(installed: Path, tmp_path: Path) -> None:
    groups, said = simulated(tmp_path, ENABLED, installed)
    assert groups["default/free"]["phase"] == "Running"
    assert groups["night/out"]["phase"] == "Pending"
    (reason,) = groups["night/out"]["reasons"]
    assert reason["reason"] == "SchedulingGated"
    assert "its namespace stays at home" in reason["message"]
    assert said.splitlines()[0] == "roll call: 2 groups"


def test_installed_but_not_configured_they_do_nothing(installed: Path, tmp_path: Path) -> None:
    groups, said = simulated(tmp_path, "", installed)
    assert {name: group["phase"] for name, group in groups.items()} == {
        "default/free": "Running",
        "night/out": "Running",
    }
    assert said == ""


def test_a_plugin_disabled_at_its_point_is_not_called(installed: Path, tmp_path: Path) -> None:
    off = ENABLED.replace("pluginConfig:", "  preEnqueue: {disabled: [curfew]}\npluginConfig:")
    groups, _ = simulated(tmp_path, off, installed)
    assert groups["night/out"]["phase"] == "Running"


def test_its_settings_are_checked_against_its_own_struct(installed: Path, tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(ENABLED.replace("namespaces:", "namespace:"))
    done = batchq("config", "check", str(file), packages=installed)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"error: {file}, line 8: pluginConfig.curfew.namespace: there is no such field;"
        " did you mean 'namespaces'?\n"
    )


def test_without_the_package_its_names_are_unknown(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(ENABLED)
    done = batchq("config", "check", str(file), packages=None)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(
        f"error: {file}, line 2: actions[2]: there is no action 'rollcall'; known: "
    )
