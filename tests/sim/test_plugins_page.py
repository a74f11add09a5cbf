"""The programs on docs/plugins.md, exactly as shown, in a simulation and in the daemon's cycle."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from batchq.api.objects import PodGroup, PodTemplate
from batchq.assembly import assemble, known_names
from batchq.config import SchedulerConfig
from batchq.config.load import read_config
from batchq.lab.simulation import WorldRun
from batchq.lab.simulation.world import read_world
from batchq.store.memory import MemoryStore
from tests.builders import a_group, a_node, a_queue
from tests.scheduler.conftest import Stack

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "plugins.md").read_text()
PROGRAMS = dict(re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```", PAGE, re.S | re.M))
[CONFIG] = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.S | re.M)
[ENTRY_POINTS] = re.findall(r"^```toml\n(.*?)^```", PAGE, re.S | re.M)

NODE = """
{apiVersion: batchq/v1, kind: Node, metadata: {name: n1}, spec: {resources: {cpu: 8}}}
---
apiVersion: batchq/v1
kind: Queue
metadata: {name: fifo}
spec: {capability: {cpu: 4}, strategy: {type: StrictFIFO}}
---
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Return an installed package with the programs of the page, and its entry points."""
    for name, text in PROGRAMS.items():
        (tmp_path / f"{name}.py").write_text(text)
    info = tmp_path / "page-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: page\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        ENTRY_POINTS.replace('project.entry-points."', "").replace('"]', "]").replace('"', "")
    )
    monkeypatch.syspath_prepend(tmp_path)


def config() -> SchedulerConfig:
    """The page's own, read as the daemon reads it."""
    return read_config(CONFIG, "scheduler.yaml", known=known_names())


def described(name: str, queue: str, cpu: int, **labels: str) -> str:
    return f"""
apiVersion: batchq/v1
kind: PodGroup
metadata: {{name: {name}, labels: {labels}}}
spec:
  queue: {queue}
  tasks: [{{name: t, template: {{requests: {{cpu: {cpu}}}, annotations: {{batchq/runtime: 30s}}}}}}]
---
"""


def phases(*groups: str, sessions: int) -> dict[str, str]:
    """Return the phase of each group after this many sessions of a simulation."""
    stage = WorldRun(read_world(NODE + "".join(groups), "a world"), assemble(config()))
    stage.run(sessions, bounded=True)
    found = stage.store.list("PodGroup")
    return {one.metadata.name: str(one.status.phase) for one in found if isinstance(one, PodGroup)}


def licensed(name: str) -> PodGroup:
    group = a_group(name)
    [task] = group.spec.tasks
    template = PodTemplate(command=("true",), requests=task.template.requests)
    spec = replace(group.spec, tasks=(replace(task, template=template),))
    return replace(group, spec=spec, metadata=replace(group.metadata, labels={"license": "x"}))


def test_a_plugin_takes_thirty_lines_and_an_action_fifty_at_most() -> None:
    lines = {name: len(text.splitlines()) for name, text in PROGRAMS.items()}
    assert list(lines) == ["weekend", "licenses", "express", "census"]
    assert max(lines["weekend"], lines["licenses"]) <= 30
    assert max(lines["express"], lines["census"]) <= 50


def test_the_page_configures_everything_that_it_shows() -> None:
    assert config().plugin_config == {"licenses": {"perQueue": 1}}
    standing = assemble(config()).plugins
    assert [plugin.name for plugin, _ in standing["preEnqueue"]][-1] == "weekend"
    assert [plugin.name for plugin, _ in standing["admissible"]][-1] == "licenses"


def test_a_plugin_admits_one_licensed_group_of_each_queue_at_a_time() -> None:
    groups = (
        described("first", "default", 1, license="solver"),
        described("second", "default", 1, license="solver"),
        described("other", "fifo", 1, license="solver"),
        described("plain", "default", 1),
    )
    assert phases(*groups, sessions=2) == {
        "first": "Running",
        "second": "Pending",
        "other": "Running",
        "plain": "Running",
    }
    assert set(phases(*groups, sessions=50).values()) == {"Completed"}


def test_an_action_lets_one_labelled_group_past_the_head_of_its_queue() -> None:
    groups = (
        described("a-runs", "fifo", 2),
        described("b-head", "fifo", 4),
        described("c-plain", "fifo", 1),
        described("d-quick", "fifo", 1, express="yes"),
        described("e-quick", "fifo", 2, express="yes"),
    )
    assert phases(*groups, sessions=2) == {
        "a-runs": "Running",
        "b-head": "Pending",
        "c-plain": "Pending",
        "d-quick": "Running",
        "e-quick": "Pending",
    }
    assert set(phases(*groups, sessions=50).values()) == {"Completed"}


def test_the_daemons_cycle_stores_the_verdict_and_admits_the_next_group_later() -> None:
    stack = Stack(MemoryStore(), config())
    stack.apply(a_queue())
    stack.ready(a_node(cpu=4))
    stack.apply(licensed("first"), licensed("second"))
    stack.until_idle()
    assert stack.group("first").status.phase == "InQueue"
    waits = stack.group("second").status
    assert (waits.phase, [reason.plugin for reason in waits.reasons]) == ("Pending", ["licenses"])
    assert waits.reasons[0].detail == "all 1 licenses of queue default are in use"
    stack.start_pods()
    stack.until_idle()
    stack.end_pods()
    stack.until_idle()
    assert stack.group("first").status.phase == "Completed"
    assert stack.group("second").status.phase == "InQueue"
