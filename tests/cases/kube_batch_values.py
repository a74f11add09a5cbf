"""kube-batch's unit tables of resources, pods, nodes, jobs, cache and configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from batchq.api.resources import Amounts, larger, minus, named, parse_quantity, plus, smaller
from batchq.assembly import BUILTIN_PLUGINS, assemble
from batchq.config.load import read_config
from batchq.core.extension import POINTS
from batchq.core.quota.fair_shares import share_of
from batchq.errors import InvalidInput
from batchq.lab.simulation import WorldRun, play
from batchq.lab.simulation.world import read_world
from tests.cases.kube_batch_entry import DIFFERS, NOT_APPLICABLE, SAME, Entry, File, Play
from tests.sim.worlds import Manifest, group, manifest, node, pod, queue, timeline
from tests.yaml_text import text_of_all

NO_EPSILON = (
    "resources are integers, without an epsilon (rule: objects); kube-batch lets 9 milli-cores "
    "or 10 MiB too much pass, repeatedly on one node"
)
NO_STRICT_LESS = (
    "vectors are not ordered: the deserved amount of a queue is capped by its demand for each "
    "resource separately (rule: deserved and share), after complaints 665, 666 and 729"
)
ONE_PROCESS = "a pod is one process with one request: containers and init containers do not exist"
NO_STRAY_PODS = (
    "a pod belongs to an existing group, and does not exist before the group is InQueue (rules: "
    "objects, lifecycle): groups generated for stray pods had no status and no events "
    "(complaints 588 and 596)"
)
STRICT_CONFIG = (
    "an invalid value prevents the daemon from starting, and the message names it (rule: "
    "configuration); kube-batch logs a warning and uses the default"
)


def amounts(written: Mapping[str, Any]) -> Amounts:
    """Return integer amounts; the tables use batchq's units: milli-cores, bytes, thousandths."""
    plain = {"cpu_m": "cpu", "mem": "memory"}
    found = {plain[name]: units for name, units in written.items() if name in plain}
    return {**found, **written.get("scalars", {})}


def _parsed(row: Any, file: File) -> object:
    return {name: parse_quantity(name, written) for name, written in row["in"].items()}


def _added(row: Any, file: File) -> object:
    return plus(amounts(row["r"]), {row["name"]: row["qty"]})


def _largest(row: Any, file: File) -> object:
    return larger(amounts(row["a"]), amounts(row["b"]))


def _is_zero(row: Any, file: File) -> object:
    return row["name"] not in named(amounts(row["r"]))


def _summed(row: Any, file: File) -> object:
    return plus(amounts(row["a"]), amounts(row["b"]))


def _rest(row: Any, file: File) -> object:
    return minus(amounts(row["a"]), amounts(row["b"]))


def _fits(row: Any, file: File) -> object:
    return not minus(named(amounts(row["a"])), amounts(row["b"]))


def _fits_less_a_byte(row: Any, file: File) -> object:
    memory = 2**30
    return not minus({"memory": memory + 10 * 2**20 - 1}, {"memory": memory})


def _is_empty(row: Any, file: File) -> object:
    stated = {**row["a"], "mem": 10 * 2**20 - 1} if "mem" in row["a"] else row["a"]
    return not named(amounts(stated))


def _smallest(row: Any, file: File) -> object:
    return smaller(amounts(row["a"]), amounts(row["b"]))


def _shares(row: Any, file: File) -> object:
    return [share_of({"cpu": held}, {"cpu": right}).rounded() for held, right, _ in row["l_r"]]


def _stage(*manifests: Manifest, config: str = "", cycles: int = 5) -> tuple[WorldRun, Any]:
    scheduler = assemble(read_config(config, "config"))
    stage = WorldRun(read_world(text_of_all(list(manifests)), "case"), scheduler)
    stage.run(cycles, bounded=False)
    return stage, scheduler.open(stage.store.snapshot(), 10_000)


def _sized(name: str, *sizes: tuple[str, str], **spec: Any) -> Manifest:
    """Return a group with a task t1, t2 ... of one pod for each (cpu, memory)."""
    tasks = [
        {"name": f"t{place}", "template": {"requests": {"cpu": cpu, "memory": memory}}}
        for place, (cpu, memory) in enumerate(sizes, start=1)
    ]
    return group(name, tasks=tasks, minMember=1, **spec)


def _runs(of: str, place: int, on: str = "n1", phase: str = "Running") -> Manifest:
    return pod(f"{of}-t{place}-0", of, task=f"t{place}", phase=phase, node=on)


def _idle(*manifests: Manifest, cycles: int = 5) -> Amounts:
    """Return the free resources of node n1 at the end, without `pods`."""
    _, session = _stage(*manifests, cycles=cycles)
    return {
        name: units for name, units in session.nodes.by_name["n1"].free.items() if name != "pods"
    }


RUNNING: Manifest = {"phase": "Running"}
HELD = [("1000m", "1G"), ("2000m", "2G"), ("3000m", "3G")]


def _two_pods_added(row: Any, file: File) -> object:
    world = (node("n1", "8000m", memory="10G"), _sized("j", *HELD[:2], status=RUNNING))
    return _idle(*world, _runs("j", 1), _runs("j", 2))


def _one_too_large(row: Any, file: File) -> object:
    return _idle(node("n1", "2000m", memory="1G"), _sized("j", ("1000m", "2G")))


def _one_removed(row: Any, file: File) -> object:
    world = [node("n1", "8000m", memory="10G"), _sized("j", *HELD, status=RUNNING)]
    world += [_runs("j", place) for place in (1, 2, 3)]
    return _idle(*world, timeline({"at": 0, "finishPod": "default/j-t2-0"}))


def _job(*world: Manifest) -> object:
    """Return the usage of the only group's queue, and its total request."""
    stage, _ = _stage(node("n1", 20, memory="20G"), *world, config="actions: [enqueue]")
    stood = stage.run(6, bounded=False).outcome.queues["default"]
    return {
        "allocated": [stood.allocated["cpu"], stood.allocated["memory"]],
        "asked": [stood.deserved["cpu"], stood.deserved["memory"]],
    }


def _job_added(row: Any, file: File) -> object:
    sizes = (("1000m", "1G"), ("2000m", "2G"), ("1000m", "1G"), ("1000m", "1G"))
    pods = [_runs("j", 2), _runs("j", 3, phase="Bound"), _runs("j", 4, phase="Bound")]
    return _job(_sized("j", *sizes, status=RUNNING), *pods)


def _job_less(phase: str) -> Play:
    def played(row: Any, file: File) -> object:
        pods = [_runs("j", 2, phase=phase), _runs("j", 3)]
        gone = timeline({"at": 0, "finishPod": "default/j-t2-0"})
        return _job(_sized("j", *HELD, status=RUNNING), *pods, gone)

    return played


def _refused_pod(row: Any, file: File) -> object:
    stray = manifest("Pod", "p1", {"podGroup": "j1", "task": "t"}, metadata={"namespace": "c1"})
    return _refusal(lambda: play(text_of_all([stray]), "case", config=read_config("", "config")))


def _pods_before_their_node(row: Any, file: File) -> object:
    first = _sized("j1", ("1000m", "1G"), suspend=True)
    second = _sized("j2", ("1000m", "1G"), status=RUNNING)
    return _idle(first, second, _runs("j2", 1), node("n1", "2000m", memory="10G"))


def _bound(cpu: str, memory: str) -> Play:
    return lambda row, file: _idle(node("n1", "2000m", memory="10G"), _sized("j", (cpu, memory)))


def _refusal(action: Callable[[], object]) -> str:
    with pytest.raises(InvalidInput) as caught:
        action()
    return caught.value.message


def _weight(written: str | None) -> int:
    entry = "leastAllocated" if written is None else f"{{name: leastAllocated, weight: {written}}}"
    (plugin,) = read_config(f"plugins: [{entry}]", "config").plugins
    return plugin.weight


def _weight_refused(written: str) -> Play:
    return lambda row, file: _refusal(lambda: _weight(written))


def _everything_on(row: Any, file: File) -> object:
    """Return the plugins of the shipped list that are disabled at a point that they implement."""
    names = ["priority", "gang", "conformance", "drf", "predicates", "proportion", "leastAllocated"]
    config = read_config(f"{{actions: 'allocate, preempt', plugins: {names}}}", "config")
    scheduler = assemble(config)
    stage = WorldRun(read_world(text_of_all([queue("q")]), "case"), scheduler)
    session = scheduler.open(stage.store.snapshot(), 0)
    missing = [
        f"{name} at {point}"
        for name in names
        for point, method in POINTS.items()
        if hasattr(BUILTIN_PLUGINS[name], method)
        and all(entry.plugin != name for entry in session.plugins.points[point])
    ]
    return {"actions": list(config.actions), "missing": missing}


def _best_node(**loads: int) -> Play:
    """Return the node of one more pod, given the cpus of 8 that are in use on each node."""

    def played(row: Any, file: File) -> object:
        world: list[Manifest] = []
        for name, load in loads.items():
            world.append(node(name, 8, memory="8Gi"))
            if load:
                holds = _sized(f"on-{name}", (f"{load}", f"{load}Gi"), status=RUNNING)
                world += [holds, _runs(f"on-{name}", 1, on=name)]
        outcome = play(
            text_of_all([*world, _sized("new", ("1", "1Gi"))]),
            "case",
            config=read_config("", "config"),
        ).outcome
        return outcome.cycles[0].bound["default/new-t1-0"]

    return played


ENTRIES = (
    Entry("resource.NewResource 1", SAME, "", {}, _parsed),
    Entry(
        "resource.NewResource 2",
        SAME,
        "",
        {"cpu": 4, "memory": 2000, "scalar.test/scalar1": 1000, "hugepages-test": 2000},
        _parsed,
    ),
    Entry("resource.AddScalar 1", SAME, "", {"scalar1": 100}, _added),
    Entry(
        "resource.AddScalar 2",
        SAME,
        "",
        {"cpu": 4000, "memory": 8000, "hugepages-test": 2, "scalar2": 200},
        _added,
    ),
    Entry(
        "resource.SetMaxResource 1",
        SAME,
        "",
        {"cpu": 4000, "memory": 2000, "s1": 1, "hp": 2},
        _largest,
    ),
    Entry(
        "resource.SetMaxResource 2",
        SAME,
        "",
        {"cpu": 4000, "memory": 4000, "s1": 4, "hp": 5},
        _largest,
    ),
    Entry("resource.IsZero 1", SAME, "", True, _is_zero),
    Entry("resource.IsZero 2", SAME, "", False, _is_zero),
    Entry("resource.IsZero 3", DIFFERS, NO_EPSILON, False, _is_zero),
    Entry("resource.Add 1", SAME, "", {"cpu": 4000, "memory": 2000, "s1": 1, "hp": 2}, _summed),
    Entry("resource.Add 2", SAME, "", {"cpu": 8000, "memory": 6000, "s1": 5, "hp": 7}, _summed),
    Entry("resource.Add 3", SAME, "", {"cpu": 8000, "memory": 6000, "s1": 5, "hp": 5}, _summed),
    Entry("resource.LessEqual 1", SAME, "", True, _fits),
    Entry("resource.LessEqual 2", SAME, "", False, _fits),
    Entry("resource.LessEqual 3", DIFFERS, NO_EPSILON, False, _fits),
    Entry("resource.LessEqual 4", SAME, "", True, _fits),
    Entry("resource.Sub 1", SAME, "", {"cpu": 4000, "memory": 2000, "s1": 1, "hp": 2}, _rest),
    Entry("resource.Sub 2", SAME, "", {"cpu": 1000, "memory": 2000, "s1": 500, "hp": 1000}, _rest),
    *(Entry(f"resource.Less {row}", NOT_APPLICABLE, NO_STRICT_LESS) for row in range(1, 6)),
    Entry("resource_extra_not_in_suite 1", DIFFERS, NO_EPSILON, False, _fits),
    Entry("resource_extra_not_in_suite 2", SAME, "", False, _fits),
    Entry("resource_extra_not_in_suite 3", DIFFERS, NO_EPSILON, False, _fits_less_a_byte),
    Entry("resource_extra_not_in_suite 4", DIFFERS, NO_EPSILON, False, _fits),
    Entry("resource_extra_not_in_suite 5", SAME, "", False, _fits),
    *(
        Entry(f"resource_extra_not_in_suite {row}", NOT_APPLICABLE, NO_STRICT_LESS)
        for row in (6, 7, 8)
    ),
    Entry("resource_extra_not_in_suite 9", DIFFERS, NO_EPSILON, False, _is_empty),
    Entry("resource_extra_not_in_suite 10", SAME, "", False, _is_empty),
    Entry("resource_extra_not_in_suite 11", SAME, "", {"cpu": 2, "memory": 5}, _smallest),
    Entry(
        "resource_extra_not_in_suite 12",
        DIFFERS,
        "x/0 is infinite, and 0/0 is 1 (rule: deserved and share): a queue that uses undeserved "
        "resources is served after all others",
        [1.0, "inf", 0.75],
        _shares,
    ),
    Entry("resource_extra_not_in_suite 13", DIFFERS, NO_EPSILON, {"cpu": 3000}, _rest),
    Entry("pod.GetPodResourceRequest 1", NOT_APPLICABLE, ONE_PROCESS),
    Entry("pod.GetPodResourceRequest 2", NOT_APPLICABLE, ONE_PROCESS),
    Entry("node.AddTask 1", SAME, "", {"cpu": 5000, "memory": 7 * 10**9}, _two_pods_added),
    Entry("node.AddTask 2", SAME, "", {"cpu": 2000, "memory": 10**9}, _one_too_large),
    Entry("node.RemoveTask 1", SAME, "", {"cpu": 4000, "memory": 6 * 10**9}, _one_removed),
    Entry(
        "job.AddTaskInfo 1",
        SAME,
        "",
        {"allocated": ["4", "4000000000"], "asked": ["5", "5000000000"]},
        _job_added,
    ),
    Entry(
        "job.DeleteTaskInfo 1",
        SAME,
        "",
        {"allocated": ["3", "3000000000"], "asked": ["4", "4000000000"]},
        _job_less("Running"),
    ),
    Entry(
        "job.DeleteTaskInfo 2",
        SAME,
        "",
        {"allocated": ["3", "3000000000"], "asked": ["4", "4000000000"]},
        _job_less("Bound"),
    ),
    Entry(
        "cache.AddPod 1",
        DIFFERS,
        NO_STRAY_PODS,
        "case: Pod c1/p1: its PodGroup c1/j1 is not described",
        _refused_pod,
    ),
    Entry("cache.AddPodWithoutPodGroup 1", NOT_APPLICABLE, NO_STRAY_PODS),
    Entry(
        "cache.AddNode 1",
        SAME,
        "",
        {"cpu": 1000, "memory": 9 * 10**9},
        _pods_before_their_node,
    ),
    *(
        Entry(
            f"cache.getOrCreateJob {row}",
            NOT_APPLICABLE,
            "pods do not choose a scheduler: batchq has one, and every pod belongs to a group",
        )
        for row in (1, 2, 3)
    ),
    Entry("cache.Bind 1", SAME, "", {"cpu": 1000, "memory": 9 * 10**9}, _bound("1000m", "1G")),
    Entry("cache.Bind 2", SAME, "", {"cpu": 2000, "memory": 10**10}, _bound("5000m", "50G")),
    Entry("arguments.GetInt 1", SAME, "", 1, lambda row, file: _weight(None)),
    Entry("arguments.GetInt 2", SAME, "", 15, lambda row, file: _weight("15")),
    Entry(
        "arguments.GetInt 3",
        DIFFERS,
        STRICT_CONFIG,
        "config, line 1: plugins[0].weight: expected a whole number, found 'errorvalue'",
        _weight_refused("errorvalue"),
    ),
    Entry(
        "arguments.GetInt 4",
        DIFFERS,
        STRICT_CONFIG,
        "config, line 1: plugins[0].weight: expected a whole number, found ''",
        _weight_refused("''"),
    ),
    Entry("arguments.GetInt 5", NOT_APPLICABLE, "a nil pointer in Go; batchq has no equivalent"),
    Entry(
        "conf.loadSchedulerConf 1",
        SAME,
        "",
        {"actions": ["allocate", "preempt"], "missing": []},
        _everything_on,
    ),
    Entry(
        "options.AddFlags 1",
        NOT_APPLICABLE,
        "Go's command line parsing; batchq sets these values in scheduler.yaml",
    ),
    Entry(
        "util.SelectBestNode 1",
        SAME,
        "",
        "node3",
        _best_node(node1=2, node2=2, node3=0, node4=0),
    ),
    Entry(
        "util.SelectBestNode 2",
        SAME,
        "",
        "node3",
        _best_node(node1=4, node2=4, node3=0, node4=2, node5=2),
    ),
)
