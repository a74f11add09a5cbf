"""Priority applies to every pod: to pods of arrays beyond the first, and to victims."""

from __future__ import annotations

from tests.sim.worlds import (
    Manifest,
    answers,
    applies,
    check,
    evicted,
    group,
    node,
    outcome,
    pod,
    priority,
    queue,
    starts,
    timeline,
)

CLASSES = (priority("low", 0), priority("high", 10))
#: No group is evicted, so that only the order of starts matters.
PLAIN = queue("q", preemption={"withinQueue": "Never"})


def test_all_pods_of_a_more_important_array_start_before_those_of_a_less_important_one() -> None:
    came = outcome(
        node("n1", 4),
        *CLASSES,
        PLAIN,
        group("low", 12, runtime="10s", queue="q", minMember=1, priorityClassName="low"),
        timeline(
            applies(5, group("high", 4, runtime="10s", queue="q", minMember=1,
                             priorityClassName="high"))
        ),
    )  # fmt: skip
    begun = starts(came)
    assert [begun[f"high-t-{k}"] for k in range(4)] == [10, 10, 10, 10]
    assert [begun[f"low-t-{k}"] for k in range(12)] == [0] * 4 + [20] * 4 + [30] * 4


def test_all_pods_of_a_more_important_array_start_before_a_less_important_gang() -> None:
    came = outcome(
        node("n1", 4),
        *CLASSES,
        PLAIN,
        group("first", 4, runtime="10s", queue="q", priorityClassName="high", created=0),
        group("gang", 3, runtime="10s", queue="q", priorityClassName="low", created=1),
        group("array", 4, runtime="10s", queue="q", minMember=1, priorityClassName="high",
              created=2),
    )  # fmt: skip
    begun = starts(came)
    assert [begun[f"array-t-{k}"] for k in range(4)] == [10, 10, 10, 10]
    assert [begun[f"gang-t-{k}"] for k in range(3)] == [20, 20, 20]


def test_a_less_important_group_starts_beside_an_array_that_yields_to_a_preemptor() -> None:
    """The array binds no pod before `urgent`, which counts on one of its pods and waits for its
    check: `small` takes what neither can use.
    """
    came = outcome(
        node("n1", 4),
        *CLASSES,
        priority("urgent", 20),
        check("license", preemptionPolicy="AfterCheckPassedOrOnDemand"),
        queue("q", admissionChecks=["license"]),
        *_running_since_zero("array", 4, replicas=6, queue="q", priorityClassName="high"),
        group("urgent", queue="q", priorityClassName="urgent"),
        group("small", queue="q", priorityClassName="low"),
        timeline(
            {"at": "10s", "finishPod": "default/array-t-2"},
            {"at": "10s", "finishPod": "default/array-t-3"},
            answers(20, "small", "license", True),
            answers(30, "urgent", "license", True),
        ),
    )
    assert starts(came) == {"small-t-0": 20, "urgent-t-0": 30}


def test_the_pod_with_the_highest_index_is_evicted_and_rank_zero_stays() -> None:
    came = outcome(
        node("n1", 3),
        *CLASSES,
        *_running_since_zero("elastic", 3, priorityClassName="low"),
        group("urgent", runtime="10s", grace="0s", priorityClassName="high"),
    )
    assert evicted(came)[0] == (0, [("default/elastic-t-2", "Preempted")])


def _running_since_zero(
    name: str, pods: int, replicas: int | None = None, **spec: object
) -> list[Manifest]:
    held = group(
        name, replicas or pods, minMember=1, status={"phase": "Running", "startedAt": 0}, **spec
    )
    return [
        held,
        *(
            pod(f"{name}-t-{k}", name, k, phase="Running", node="n1", startedAt=0)
            for k in range(pods)
        ),
    ]
