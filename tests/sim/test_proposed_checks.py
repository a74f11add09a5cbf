"""Sentences of Kueue's KEP-993 that no other test shows.

docs/sources.md has the whole document, sentence by sentence.
"""

from __future__ import annotations

import pytest

from tests.sim.worlds import (
    Manifest,
    admitted,
    answers,
    bound,
    check,
    group,
    node,
    of,
    outcome,
    outcome_until,
    queue,
    quota,
    reasons,
    requeued,
    reserved,
    timeline,
)

TWO = [check("a"), check("b"), queue("q", admissionChecks=["a", "b"])]
PASSED = [answers(5, "g", "a", "True"), answers(6, "g", "b", "True")]
PROVISIONS = [check("machines"), queue("cloud", admissionChecks=["machines"])]


def test_a_quota_that_is_cut_takes_the_reservation_of_a_group_with_two_checks() -> None:
    came = outcome(
        node("n1", 4),
        *TWO,
        group("g", 2, queue="q"),
        timeline(answers(1, "g", "b", "True"), {"at": "3s", "apply": quota("default", cpu=1)}),
    )
    assert (reserved(came), admitted(came)) == ([(0, ["default/g"])], [])
    assert requeued(came) == [(3, [("default/g", "CapacityCut")])]
    assert of(came, "g").checks == {"a": "Unknown", "b": "Unknown"}


def test_a_group_passed_by_both_checks_on_nodes_that_have_changed_is_requeued() -> None:
    came = outcome_until(
        7,
        node("n1", 4),
        node("n2", 2),
        *TWO,
        group("g", 1, 4, queue="q"),
        timeline({"at": "3s", "apply": node("n1", 3)}, *PASSED),
    )
    assert (admitted(came), bound(came)) == ([], [])
    assert requeued(came)[0] == (6, [("default/g", "Unschedulable")])
    assert of(came, "g").phase == "Pending"


def test_the_default_delay_of_a_retry_is_fifteen_minutes() -> None:
    came = outcome_until(
        1000,
        node("n1", 4),
        *TWO,
        group("g", queue="q"),
        timeline(answers(5, "g", "a", "False", "Retry")),
    )
    assert reserved(came) == [(0, ["default/g"]), (905, ["default/g"])]
    assert of(came, "g").checks == {"a": "Unknown", "b": "Unknown"}


def test_a_group_does_not_pass_the_many_others_that_wait_for_their_checks() -> None:
    """Its queue is of best effort, and its own check would pass at once."""
    groups = [group(f"g{place}", queue="q") for place in range(40)]
    came = outcome_until(
        60,
        node("n1", 40),
        *TWO,
        *groups,
        timeline({"at": "5s", "apply": group("next", queue="q")}),
    )
    assert [(at, len(names)) for at, names in reserved(came)] == [(0, 40)]
    assert reasons(came, "next") == ["WaitingForResources"]
    assert (admitted(came), requeued(came)) == ([], [])


def test_machines_added_for_a_reserved_group_are_used_when_it_starts() -> None:
    """An overcommit lets it reserve more than is free."""
    came = outcome_until(
        20,
        node("n1", 4),
        *PROVISIONS,
        group("runs", 4),
        group("g", 4, queue="cloud"),
        timeline(
            {"at": "9s", "apply": node("n2", 4)},
            answers(10, "g", "machines", "True"),
        ),
        config="overcommit: 2",
    )
    assert reserved(came)[-1] == (0, ["default/runs", "default/g"])
    assert admitted(came) == [(0, ["default/runs"]), (10, ["default/g"])]
    assert [(at, len(pods)) for at, pods in bound(came)] == [(0, 4), (10, 4)]


def test_without_an_overcommit_a_group_reserves_no_more_than_the_cluster_has() -> None:
    came = outcome_until(20, node("n1", 4), *PROVISIONS, group("g", 8, queue="cloud"))
    assert (reserved(came), reasons(came, "g")) == ([], ["ExceedsCapacity"])


@pytest.mark.parametrize("nodes", [[], [node("n1", 4)]])
def test_an_external_group_asks_its_checks_whatever_nodes_exist(nodes: list[Manifest]) -> None:
    elsewhere = group(
        "g", queue="cloud", tasks=[], controller="external", minResources={"cpu": 500}
    )
    came = outcome_until(
        20, *nodes, *PROVISIONS, elsewhere, timeline(answers(10, "g", "machines", "True"))
    )
    assert (reserved(came), admitted(came)) == ([(0, ["default/g"])], [(10, ["default/g"])])
