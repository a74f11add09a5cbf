"""`batchq config`: what it accepts, what it prints, and that it can read its own output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from batchq.cli.config import checked_config
from batchq.cli.main import main
from batchq.config import DEFAULT_PLUGINS
from batchq.config.load import load_config
from batchq.core.extension import POINTS
from batchq.errors import InvalidInput
from tests.cli.conftest import Ran, run

SHIPPED = Path(__file__).parents[2] / "conf" / "scheduler.yaml"


def test_the_shipped_file_is_valid_and_says_the_defaults() -> None:
    assert checked_config(SHIPPED) == checked_config(None)
    done = CliRunner().invoke(main, ["config", "check", str(SHIPPED)])
    assert done.output == (
        f"{SHIPPED} is a valid configuration\n"
        "actions: enqueue, allocate, reclaim, preempt, backfill\n"
        "plugins: gates, dependencies, quota, capacity, checks, gang, priority, proportion,"
        " predicates, leastAllocated, binpack, conformance\n"
    )


def test_settings_of_a_plugin_that_is_not_on_are_noted(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text("pluginConfig: {sla: {waitingTime: 1h}, binpack: {resource: cpu}}\n")
    done = CliRunner().invoke(main, ["config", "check", str(file)])
    assert done.exit_code == 0
    assert done.stderr == "note: pluginConfig.sla has no effect: plugins does not name sla\n"
    assert "sla" not in done.stdout.splitlines()[2]


PREEMPT = (
    "warning: preempt will evict no groups: no plugin in plugins consents to its victims;"
    " add priority, or leave preempt out of actions\n"
)
RECLAIM = (
    "warning: reclaim will evict no groups: no plugin in plugins consents to its victims;"
    " add proportion, or leave reclaim out of actions\n"
)

NOBODY_PAST = (
    "warning: backfill lets no group past a head: enqueue, which finds the heads, does not come"
    " before it in actions; put backfill last\n"
)
A_SESSION_LATER = (
    "warning: groups that enqueue admits wait for the next session: allocate comes before it in"
    " actions; put enqueue first\n"
)
WITHOUT_ENQUEUE = (
    "note: without enqueue in actions, groups get pods before resources are free for all of them;"
    " put enqueue first\n"
)
WITHOUT_ALLOCATE = (
    "note: without allocate in actions, admitted groups get no pods, and only consumers start"
    " groups; put allocate after enqueue\n"
)
SHORTER_THAN_A_SESSION = (
    "warning: nodeTimeout 1s is less than twice the usual heartbeat interval of 5s: nodes are not"
    " ready between two heartbeats, unless their agents have a shorter --beat\n"
    "warning: podLease 1s is shorter than schedulePeriod 10s; expected several times its length\n"
    "warning: nodeTimeout 1s is shorter than schedulePeriod 10s; expected several times its"
    " length\n"
)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("plugins: [gates, gang, sla, conformance]\n", RECLAIM + PREEMPT),
        ("plugins: []\nactions: [preempt]\n", PREEMPT + WITHOUT_ALLOCATE),
        ("plugins: [gang, proportion]\n", PREEMPT),
        ("plugins: [drf]\n", RECLAIM),
        ("plugins: [priority]\n", ""),
        ("plugins: [proportion, drf]\n", ""),
        ("plugins: [gang]\nactions: [enqueue, allocate]\n", ""),
        ("plugins: [gang]\nactions: [allocate, enqueue]\n", A_SESSION_LATER),
        ("plugins: [gang]\nactions: [allocate]\n", WITHOUT_ENQUEUE),
        (
            (
                "plugins: [gang]\nactions: [enqueue, allocate]\n"
                "podLease: 1s\nnodeTimeout: 1s\nschedulePeriod: 10s\n"
            ),
            SHORTER_THAN_A_SESSION,
        ),
        ("plugins: [gang]\nactions: [backfill, enqueue, allocate]\n", NOBODY_PAST),
        ("plugins: [gang]\nactions: [backfill]\n", NOBODY_PAST + WITHOUT_ALLOCATE),
        ("plugins: [gang]\nactions: [enqueue]\n", WITHOUT_ALLOCATE),
        (
            "overcommit: 0\n",
            "warning: overcommit 0 admits no pods; expected a factor such as 1\n",
        ),
    ],
)
def test_actions_without_effect_cause_warnings(tmp_path: Path, text: str, wanted: str) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(text)
    done = CliRunner().invoke(main, ["config", "check", str(file)])
    lines = done.stderr.splitlines(keepends=True)
    warnings = [line for line in lines if not line.startswith("note: plugin ")]
    assert (done.exit_code, "".join(warnings)) == (0, wanted)


def test_warnings_leave_the_json_on_stdout_whole(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text("plugins: [gang]\nactions: [preempt]\n")
    done = CliRunner().invoke(main, ["config", "check", str(file), "-o", "json"])
    assert done.exit_code == 0
    assert done.stderr.endswith(PREEMPT + WITHOUT_ALLOCATE)
    assert json.loads(done.stdout) == {
        "file": str(file),
        "actions": ["preempt"],
        "plugins": ["gang"],
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "actions: enqueue, allocate\n",
        "schedulePeriod: 250ms\novercommit: 1.25\nnodeTimeout: 90s\n",
        "plugins: [gates, {name: leastAllocated, weight: 3}]\n",
        "plugins: [gates, binpack]\npluginConfig:\n  binpack: {resource: 'gpu'}\n",
        "minRuntime: 90s\nevictionBudget: {pods: 10, window: 1h}\n",
        "evictionBudget: {pods: 3}\n",
    ],
)
def test_a_printed_configuration_is_read_as_the_same(tmp_path: Path, text: str) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(text)
    printed = CliRunner().invoke(main, ["config", "print", "--config", str(file)])
    again = tmp_path / "again.yaml"
    again.write_text(printed.output)
    assert printed.exit_code == 0
    assert load_config(again) == load_config(file)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "actions:\n- enqueue\n- alocate\n",
            (
                "line 3: actions[1]: there is no action 'alocate'; known: allocate, backfill,"
                " enqueue, preempt, reclaim; did you mean 'allocate'?"
            ),
        ),
        (
            "plugins: [gates]\nactions: enqueue,zzz\n",
            (
                "line 2: actions[1]: there is no action 'zzz'; known: allocate, backfill,"
                " enqueue, preempt, reclaim"
            ),
        ),
        (
            "schedulePeriod: 1s\nplugins:\n- gates\n- gangs\n",
            (
                "line 4: plugins[1]: there is no plugin 'gangs'; known: balancedAllocation,"
                " binpack, capacity, checks, conformance, dependencies, drf, gang, gates,"
                " leastAllocated, mostAllocated, overcommit, predicates, priority, proportion,"
                " quota, sla; did you mean 'gang'?"
            ),
        ),
        (
            "plugins: [gates]\npluginConfig:\n  sla:\n    waitTime: 1h\n",
            (
                "line 4: pluginConfig.sla.waitTime: there is no such field;"
                " did you mean 'waitingTime'?"
            ),
        ),
        (
            "pluginConfig:\n  sla:\n    waitingTime: soon\n",
            (
                "line 3: pluginConfig.sla.waitingTime: expected a duration such as 90s, 2h or 1d,"
                " found 'soon'"
            ),
        ),
        (
            "pluginConfig:\n  gangs: {}\n",
            "line 2: pluginConfig.gangs: there is no such plugin; did you mean 'gang'?",
        ),
        (
            "shedulePeriod: 1s\n",
            "line 1: shedulePeriod: there is no such setting; did you mean 'schedulePeriod'?",
        ),
    ],
)
def test_a_wrong_name_is_reported_with_its_line_and_the_nearest(
    tmp_path: Path, text: str, wanted: str
) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(text)
    with pytest.raises(InvalidInput) as refused:
        checked_config(file)
    assert refused.value.message == f"{file}, {wanted}"
    assert refused.value.exit_code == 1


def config(*words: object) -> Ran:
    return run("config", *map(str, words))


@pytest.fixture
def files(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_the_defaults_are_printed_with_multi_point() -> None:
    printed = yaml.safe_load(config("print").out)["plugins"]
    assert printed == {
        "multiPoint": {
            "enabled": [entry.name for entry in DEFAULT_PLUGINS],
            "disabled": ["*"],
        }
    }
    assert json.loads(config("print", "-o", "json").out)["plugins"] == printed


def test_expanded_lists_every_plugin_at_each_point(files: Callable[..., Path]) -> None:
    file = files("s.yaml", "plugins: {groupOrder: {enabled: [{name: sla, weight: 2}]}}\n")
    printed = yaml.safe_load(config("print", "--expanded", "--config", file).out)["plugins"]
    assert list(printed) == ["multiPoint", *POINTS]
    assert printed["multiPoint"] == {"disabled": ["*"]}
    assert printed["groupOrder"] == {"enabled": [{"name": "sla", "weight": 2}, "priority"]}
    assert printed["permit"] == {"enabled": ["checks"]}
    as_json = json.loads(config("print", "--expanded", "--config", file, "-o", "json").out)
    assert as_json["plugins"] == printed


def test_both_forms_are_files_without_a_difference(files: Callable[..., Path]) -> None:
    short = files("short.yaml", config("print").out)
    long = files("long.yaml", config("print", "--expanded").out)
    assert config("diff", short, long) == Ran(0, "", "")
    assert json.loads(config("diff", short, long, "-o", "json").out) == {
        "equal": True,
        "differences": [],
    }


def test_a_difference_is_shown_as_by_diff_and_ends_with_1(files: Callable[..., Path]) -> None:
    a = files("a.yaml", "overcommit: 1.5\nactions: enqueue, allocate\n")
    b = files(
        "b.yaml",
        "actions: allocate, enqueue\n"
        "plugins:\n  multiPoint: {enabled: [sla], disabled: [binpack, conformance]}\n"
        "  groupOrder: {enabled: [sla]}\n"
        "  score: {enabled: [{name: leastAllocated, weight: 3}]}\n"
        "pluginConfig: {sla: {waitingTime: 60m}}\n",
    )
    done = config("diff", a, b)
    assert (done.code, done.err) == (1, "")
    assert done.lines == [
        f"--- {a}",
        f"+++ {b}",
        "-actions: enqueue, allocate",
        "+actions: allocate, enqueue",
        "-overcommit: 1.5",
        "+overcommit: 1",
        "-plugins.preEnqueue: gates, dependencies, checks",
        "+plugins.preEnqueue: gates, dependencies, checks, sla",
        "-plugins.groupOrder: priority",
        "+plugins.groupOrder: sla, priority",
        "-plugins.score: binpack, leastAllocated",
        "+plugins.score: {name: leastAllocated, weight: 3}",
        "-plugins.preemptable: conformance, gang, priority",
        "+plugins.preemptable: gang, priority, sla",
        "-plugins.reclaimable: conformance, gang, priority, proportion",
        "+plugins.reclaimable: gang, priority, proportion",
        "+pluginConfig.sla.waitingTime: 1h",
    ]
    wanted = json.loads(config("diff", a, b, "-o", "json").out)
    assert wanted["equal"] is False
    assert wanted["differences"][1] == {"what": "overcommit", "a": 1.5, "b": 1}


SAME = {
    "another notation": ("schedulePeriod: 60s\n", "schedulePeriod: 1m\n"),
    "actions in one text": ("actions: enqueue, allocate\n", "actions: [enqueue, allocate]\n"),
    "another order where no order counts": (
        "plugins: [gang, priority, conformance, leastAllocated, binpack]\n",
        "plugins: [binpack, conformance, leastAllocated, gang, priority]\n",
    ),
    "a weight where nothing is scored": (
        "plugins: [gang]\n",
        "plugins: [{name: gang, weight: 9}]\n",
    ),
    "tiers that order as written": (
        "plugins: [gates, dependencies]\n",
        "plugins: [{name: gates, tier: 0}, dependencies]\n",
    ),
    "settings of a plugin that is off": (
        "plugins: [gang]\n",
        "plugins: [gang]\npluginConfig: {sla: {waitingTime: 1h}}\n",
    ),
    "a setting at its default": (
        "",
        "pluginConfig: {conformance: {namespaces: [system, kube-system]}}\n",
    ),
}


@pytest.mark.parametrize("case", SAME)
def test_equivalent_configurations_have_no_difference(
    files: Callable[..., Path], case: str
) -> None:
    a, b = SAME[case]
    assert config("diff", files("a.yaml", a), files("b.yaml", b)) == Ran(0, "", "")


@pytest.mark.parametrize(
    ("a", "b", "line"),
    [
        (
            "plugins: [sla, priority]\n",
            "plugins: [priority, sla]\n",
            "+plugins.groupOrder: priority, sla",
        ),
        (
            "plugins: [{name: binpack, weight: 2}]\n",
            "plugins: [binpack]\n",
            "+plugins.score: binpack",
        ),
        ("", "plugins: {permit: {disabled: [checks]}}\n", "+plugins.permit: none"),
        ("", "evictionBudget: {pods: 3}\n", "+evictionBudget: {pods: 3, window: 10m}"),
    ],
)
def test_a_setting_that_affects_decisions_is_a_difference(
    files: Callable[..., Path], a: str, b: str, line: str
) -> None:
    done = config("diff", files("a.yaml", a), files("b.yaml", b))
    assert done.code == 1
    assert line in done.lines


def test_a_wrong_file_has_no_difference_but_is_wrong(files: Callable[..., Path]) -> None:
    good, wrong = files("good.yaml", ""), files("wrong.yaml", "plugins: [gangs]\n")
    done = CliRunner().invoke(main, ["config", "diff", str(good), str(wrong)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{wrong}, line 1: plugins[0]: there is no plugin 'gangs'" in done.stderr


def test_a_kube_batch_file_is_converted_to_a_valid_one(files: Callable[..., Path]) -> None:
    theirs = files(
        "kb.yaml",
        'actions: "allocate, preempt"\n'
        "tiers:\n- plugins: [{name: gang}, {name: predicates, arguments: {a: b}}]\n",
    )
    done = config("convert", theirs)
    assert done.code == 0
    assert "note: line 3: predicates's argument a is left out: it has no meaning here" in done.err
    assert done.err.endswith(PREEMPT)
    ours = files("ours.yaml", done.out)
    assert config("check", ours) == Ran(
        0,
        f"{ours} is a valid configuration\nactions: allocate, preempt\n"
        "plugins: gates, dependencies, quota, capacity, checks, gang, predicates\n",
        f"{PREEMPT}note: without enqueue in actions, groups get pods before resources are free for"
        " all of them; put enqueue first\n",
    )


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("actions: allocate\n", "line 1: this is not a kube-batch configuration"),
        ("", "expected one document, found 0"),
    ],
)
def test_a_file_that_is_not_kube_batchs_is_not_converted(
    files: Callable[..., Path], text: str, wanted: str
) -> None:
    file = files("kb.yaml", text)
    done = CliRunner().invoke(main, ["config", "convert", str(file)])
    assert (done.exit_code, done.stdout) == (1, "")
    assert wanted in done.stderr


def test_misplaced_arguments_get_a_hint(files: Callable[..., Path]) -> None:
    theirs = files(
        "volcano.yaml",
        "tiers:\n- plugins:\n  - name: sla\n    arguments: {sla-waiting-time: 1h}\n",
    )
    assert (
        "note: line 4: sla's argument sla-waiting-time is left out: set pluginConfig.sla instead\n"
    ) in config("convert", theirs).err


def test_a_plugin_disabled_without_effect_is_noted(files: Callable[..., Path]) -> None:
    file = files(
        "s.yaml",
        "plugins:\n  multiPoint: {disabled: [dependencies]}\n"
        "  preEnqueue: {disabled: [dependencies, gates]}\n  score: {disabled: [gang]}\n",
    )
    assert config("check", file).err.splitlines() == [
        "note: plugin gates has no effect: it is disabled at each of its points",
        "note: plugins.preEnqueue.disabled: dependencies would not be called there anyway",
        "note: plugins.score.disabled: gang would not be called there anyway",
        "note: plugin gates is off at preEnqueue: scheduling gates are kept and ignored",
        "note: plugin dependencies is off at preEnqueue: groups do not wait for those in dependsOn",
    ]


UNKEPT = {
    "quota": (
        "note: plugin quota is off at admissible: quotas of namespaces still hold, but groups"
        " that can never fit one wait like others"
    ),
    "capacity": (
        "note: plugin capacity is off at admissible: limits of queues and the cluster still hold,"
        " but guarantees are not left to siblings, and groups that can never fit wait like others"
    ),
    "gang": (
        "note: plugin gang is off at groupReady: groups run with fewer pods than minMember and"
        " minAvailable"
    ),
    "checks": (
        "note: plugin checks is off at permit: groups start without an answer of their queue's"
        " admission checks"
    ),
    "predicates": (
        "note: plugin predicates is off at predicate: nodeSelectors, taints and cordons are"
        " ignored, and nodes that are full are tried"
    ),
    "idle predicates": (
        "note: plugin predicates has no effect: it is disabled at each of its points"
    ),
}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("multiPoint: {disabled: [gang, quota, capacity]}", ["quota", "capacity", "gang"]),
        (
            "permit: {disabled: [checks]}, predicate: {disabled: ['*']}",
            ["idle predicates", "checks", "predicates"],
        ),
        ("score: {disabled: ['*']}", []),
        # Disabled at all points, and enabled again at the one that counts.
        ("multiPoint: {disabled: [gates]}, preEnqueue: {enabled: [gates]}", []),
    ],
)
def test_a_promise_broken_by_disabled_plugins_is_noted(
    files: Callable[..., Path], text: str, wanted: list[str]
) -> None:
    lines = config("check", files("s.yaml", f"plugins: {{{text}}}\n")).err.splitlines()
    # Scores guarantee nothing.
    rest = [line for line in lines if "leastAllocated" not in line and "binpack" not in line]
    assert rest == [UNKEPT[name] for name in wanted]
