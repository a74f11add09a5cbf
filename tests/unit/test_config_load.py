"""scheduler.yaml becomes a configuration, or an error that names the line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from batchq.config import PluginEntry, SchedulerConfig
from batchq.config.load import as_written, load_config, read_config
from batchq.core.session.snapshot import Settings
from batchq.errors import InvalidInput
from tests.yaml_text import text_of

CONF = Path(__file__).resolve().parents[2] / "conf"


def test_without_a_file_everything_is_at_its_default() -> None:
    assert load_config(None) == SchedulerConfig()
    assert read_config("", "scheduler.yaml") == SchedulerConfig()
    assert SchedulerConfig().actions == ("enqueue", "allocate", "reclaim", "preempt", "backfill")
    assert [entry.name for entry in SchedulerConfig().plugins] == [
        "gates",
        "dependencies",
        "quota",
        "capacity",
        "checks",
        "gang",
        "priority",
        "proportion",
        "predicates",
        "leastAllocated",
        "binpack",
        "conformance",
    ]


def test_the_file_in_conf_is_the_default() -> None:
    assert load_config(CONF / "scheduler.yaml") == SchedulerConfig()


def test_the_file_in_conf_shows_every_setting() -> None:
    shown = yaml.safe_load((CONF / "scheduler.yaml").read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(as_written(SchedulerConfig()))


def test_every_setting_arrives() -> None:
    text = """
    actions: enqueue, allocate
    schedulePeriod: 500ms
    minSessionInterval: 0s
    inQueueTimeout: 1m
    recoveryTimeout: 2m
    nodeTimeout: 30
    podLease: 15s
    backoffFirst: 1s
    backoffMost: 1h
    nodeMemory: 2h
    overcommit: 1.25
    minRuntime: 3m
    evictionBudget: {pods: 10, window: 1h}
    maxPodGroupsPerNamespace: 500
    plugins: [gang, {name: binpack, weight: 5}]
    pluginConfig: {binpack: {resource: gpu}}
    """
    assert read_config(text, "scheduler.yaml") == SchedulerConfig(
        actions=("enqueue", "allocate"),
        plugins=(PluginEntry(name="gang"), PluginEntry(name="binpack", weight=5)),
        plugin_config={"binpack": {"resource": "gpu"}},
        settings=Settings(
            schedule_period_ms=500,
            min_session_interval_ms=0,
            in_queue_timeout_ms=60_000,
            recovery_timeout_ms=120_000,
            node_timeout_ms=30_000,
            pod_lease_ms=15_000,
            backoff_first_ms=1_000,
            backoff_most_ms=3_600_000,
            node_memory_ms=7_200_000,
            overcommit=1250,
            min_runtime_ms=180_000,
            eviction_budget=10,
            eviction_window_ms=3_600_000,
            max_pod_groups_per_namespace=500,
        ),
    )


def test_a_budget_is_printed_with_its_window_and_none_as_null() -> None:
    budget = read_config("evictionBudget: {pods: 10}", "scheduler.yaml")
    assert as_written(budget)["evictionBudget"] == {"pods": 10, "window": "10m"}
    assert as_written(SchedulerConfig())["evictionBudget"] is None
    assert read_config("evictionBudget: null", "scheduler.yaml") == SchedulerConfig()


def test_a_printed_configuration_reads_as_the_same() -> None:
    text = (
        "overcommit: 1.5\nfairness: {order: usage}\n"
        "plugins: [gang, {name: binpack, weight: 5}]\nschedulePeriod: 250ms\n"
    )
    config = read_config(text, "scheduler.yaml")
    assert read_config(text_of(as_written(config)), "printed.yaml") == config


def test_a_half_life_without_a_unit_is_in_seconds() -> None:
    config = read_config("fairness: {halfLife: 3600}\n", "scheduler.yaml")
    assert config.settings.half_life_ms == 3_600_000
    assert read_config(text_of(as_written(config)), "printed.yaml") == config


WRONG = {
    "an unknown setting": (
        "actions: [enqueue]\nshedulePeriod: 1s\n",
        (
            "scheduler.yaml, line 2: shedulePeriod: there is no such setting;"
            " did you mean 'schedulePeriod'?"
        ),
    ),
    "a duration that is none": (
        "nodeTimeout: soon\n",
        (
            "scheduler.yaml, line 1: nodeTimeout: expected a duration such as 90s, 2h or 1d,"
            " found 'soon'"
        ),
    ),
    "a period at which the daemon would spin": (
        "schedulePeriod: 0\n",
        "scheduler.yaml, line 1: schedulePeriod: expected at least 10ms, found 0",
    ),
    "a back-off that ends before it begins": (
        "backoffFirst: 10s\nbackoffMost: 1s\n",
        (
            "scheduler.yaml, line 2: backoffMost: expected backoffMost to be at least backoffFirst,"
            " found 1s and 10s"
        ),
    ),
    "a negative factor": (
        "overcommit: -1\n",
        (
            "scheduler.yaml, line 1: overcommit: expected a number from 0 to 1000 with at most"
            " three"
            " decimals, found -1"
        ),
    ),
    "an order by usage that does not count": (
        "fairness: {halfLife: off, order: usage}\n",
        ("scheduler.yaml, line 1: fairness.order: usage needs a half-life, found halfLife: off"),
    ),
    "a half-life of nothing": (
        "fairness: {halfLife: 0}\n",
        (
            "scheduler.yaml, line 1: fairness.halfLife: expected at least 1s, found 0;"
            " off means that past usage does not count"
        ),
    ),
    "a half-life that is no duration": (
        "fairness: {halfLife: soon}\n",
        (
            "scheduler.yaml, line 1: fairness.halfLife: expected a duration such as 90s, 2h or 1d,"
            " found 'soon'; off means that past usage does not count"
        ),
    ),
    "an unknown order": (
        "fairness: {order: fair}\n",
        "scheduler.yaml, line 1: fairness.order: expected one of current, usage, found 'fair'",
    ),
    "a namespace that may have nothing": (
        "maxPodGroupsPerNamespace: 0\n",
        "scheduler.yaml, line 1: maxPodGroupsPerNamespace: expected 1 to 1000000000, found 0",
    ),
    "a number of groups in words": (
        "maxPodGroupsPerNamespace: many\n",
        ("scheduler.yaml, line 1: maxPodGroupsPerNamespace: expected a whole number, found 'many'"),
    ),
    "a budget that allows no eviction": (
        "evictionBudget:\n  pods: 0\n",
        (
            "scheduler.yaml, line 2: evictionBudget.pods: expected at least 1, or no"
            " evictionBudget at all, found 0"
        ),
    ),
    "a budget without its number": (
        "evictionBudget: {window: 1m}\n",
        "scheduler.yaml, line 1: evictionBudget.pods: this field is required",
    ),
    "a budget's window that is none": (
        "evictionBudget: {pods: 1, window: 0s}\n",
        "scheduler.yaml, line 1: evictionBudget.window: expected at least 1s, found 0s",
    ),
    "a budget that is a number": (
        "evictionBudget: 10\n",
        "scheduler.yaml, line 1: evictionBudget: expected a mapping, found 10",
    ),
    "no action": (
        "actions: []\n",
        "scheduler.yaml, line 1: actions: expected at least one action, found none",
    ),
    "actions that are a number": (
        "actions: 5\n",
        (
            "scheduler.yaml, line 1: actions: expected a list such as [enqueue, allocate], or"
            " one text, found 5"
        ),
    ),
    "an empty action": (
        "actions: enqueue,,allocate\n",
        "scheduler.yaml, line 1: actions[1]: expected the name of an action, found ''",
    ),
    "an action twice": (
        "actions:\n- enqueue\n- allocate\n- enqueue\n",
        "scheduler.yaml, line 4: actions[2]: enqueue is named twice",
    ),
    "a plugin twice": (
        "plugins:\n- gang\n- {name: gang}\n",
        "scheduler.yaml, line 3: plugins[1]: gang is named twice",
    ),
    "a plugin without a name": (
        "plugins:\n- weight: 3\n",
        "scheduler.yaml, line 2: plugins[0].name: this field is required",
    ),
    "a plugin without weight": (
        "plugins:\n- {name: gang, weight: 0}\n",
        "scheduler.yaml, line 2: plugins[0].weight: expected a weight from 1 to 1000, found 0",
    ),
    "a plugin's settings that are none": (
        "pluginConfig:\n  gang: yes\n",
        "scheduler.yaml, line 2: pluginConfig.gang: expected a mapping, found 'yes'",
    ),
    "two documents": (
        "overcommit: 1\n---\novercommit: 2\n",
        "scheduler.yaml: expected one document, found 2",
    ),
    "a list": (
        "- enqueue\n",
        "scheduler.yaml, line 1: expected a mapping of fields, found a list",
    ),
    "no YAML": (
        "actions: [enqueue\n",
        "scheduler.yaml, line 2: this is not YAML: did not find expected ',' or ']'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_refused_with_its_line(case: str) -> None:
    text, message = WRONG[case]
    with pytest.raises(InvalidInput) as caught:
        read_config(text, "scheduler.yaml")
    assert caught.value.message == message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    with pytest.raises(InvalidInput) as caught:
        load_config(path)
    assert caught.value.message == (
        f"{path}: the configuration cannot be read: No such file or directory"
    )
