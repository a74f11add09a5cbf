"""kube-batch's configuration file is translated to batchq's, with notes on the differences."""

from __future__ import annotations

from typing import Any

import pytest

from batchq.assembly import expanded, known_actions, known_plugins
from batchq.config import kube_batch
from batchq.config.documents import read_documents
from batchq.errors import InvalidInput

BESIDE = ["gates", "dependencies", "quota", "capacity", "checks"]
BESIDE_NOTE = (
    "line 1: gates, dependencies, quota, capacity, checks are on beside what the file names:"
    " kube-batch has none of them"
)
BACKFILL = (
    "line 1: backfill does more than in kube-batch: in queues whose strategy is Backfill it lets"
    " groups start ahead of a waiting head that they do not delay"
)
NO_ENQUEUE = (
    "line 1: without enqueue, as in kube-batch, groups get pods before resources are free for them;"
    " put enqueue first to keep them in the queue"
)
PREDICATES = "line 1: predicates is on: here the plugin also checks requests against nodes"

#: The file that kube-batch ships.
SHIPPED = """\
actions: "reclaim, allocate, backfill, preempt"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
- plugins:
  - name: drf
  - name: predicates
  - name: proportion
  - name: nodeorder
"""


def converted(text: str) -> kube_batch.Converted:
    (document,) = read_documents(text, "kb.yaml")
    return kube_batch.convert(document, kube_batch.Names(known_actions(), known_plugins()))


def with_plugin(entry: str) -> kube_batch.Converted:
    """Return a file with one plugin on line 4, predicates and enqueue."""
    return converted(
        f"actions: enqueue\ntiers:\n- plugins:\n  - {entry}\n  - {{name: predicates}}\n"
    )


def notes_on(entry: str) -> list[str]:
    return [note for note in with_plugin(entry).notes if note != BESIDE_NOTE]


def off(entry: str) -> dict[str, tuple[str, ...]]:
    """Return the disabled plugins of each point."""
    points = with_plugin(entry).config.points
    return {point: stated.disabled for point, stated in points.items()}


def test_the_shipped_file_keeps_its_order_of_actions_and_its_tiers() -> None:
    config = converted(SHIPPED).config
    assert config.actions == ("reclaim", "allocate", "backfill", "preempt")
    assert [(entry.name, entry.tier) for entry in config.plugins] == [
        *((name, 1) for name in BESIDE),
        ("priority", 1),
        ("gang", 1),
        ("conformance", 1),
        ("drf", 2),
        ("predicates", 2),
        ("proportion", 2),
        ("leastAllocated", 2),
        ("balancedAllocation", 2),
    ]


def test_the_notes_on_the_shipped_file_are_in_the_order_of_its_lines() -> None:
    assert converted(SHIPPED).notes == [
        BACKFILL,
        NO_ENQUEUE,
        BESIDE_NOTE,
        (
            "line 8: drf is disabled at preemptable: kube-batch never asks drf there, as tier 1"
            " has decided"
        ),
        (
            "line 10: proportion is asked at reclaimable, and its veto holds: kube-batch never"
            " asks proportion there, as tier 1 has decided"
        ),
        (
            "line 11: nodeorder becomes leastAllocated, balancedAllocation: only the resources"
            " that a pod asks for count, and nodes are not ranked by affinities"
        ),
    ]


def test_a_plugin_that_kube_batch_never_calls_for_victims_has_no_vote_here() -> None:
    standing = expanded(converted(SHIPPED).config)
    assert [entry.name for entry in standing["preemptable"]] == ["priority", "gang", "conformance"]
    assert [entry.name for entry in standing["groupOrder"]] == ["priority", "drf"]


def test_drf_in_the_first_tier_votes_there() -> None:
    found = with_plugin("{name: drf}")
    assert "drf" in [entry.name for entry in expanded(found.config)["preemptable"]]
    assert found.notes == [BESIDE_NOTE]


@pytest.mark.parametrize(
    ("entry", "points"),
    [
        ("{name: priority, enableJobOrder: false}", {"groupOrder": ("priority",)}),
        ("{name: priority, enableTaskOrder: false}", {"podOrder": ("priority",)}),
        ("{name: priority, enablePreemptable: false}", {"preemptable": ("priority",)}),
        ("{name: gang, enableReclaimable: false}", {"reclaimable": ("gang",)}),
        ("{name: gang, enableJobReady: false}", {"groupReady": ("gang",)}),
        ("{name: proportion, enableQueueOrder: false}", {"queueOrder": ("proportion",)}),
        (
            "{name: nodeorder, enableNodeOrder: false}",
            {"score": ("leastAllocated", "balancedAllocation")},
        ),
        ("{name: priority, enableJobOrder: true}", {}),
    ],
)
def test_a_flag_that_is_false_disables_the_plugin_at_that_point(
    entry: str, points: dict[str, Any]
) -> None:
    assert off(entry) == points


def test_the_arguments_of_nodeorder_are_weights() -> None:
    found = with_plugin(
        "{name: nodeorder, arguments: {leastrequested.weight: 0, mostrequested.weight: '3',"
        " balancedresource.weight: 2}}"
    )
    assert [(entry.name, entry.weight) for entry in expanded(found.config)["score"]] == [
        ("mostAllocated", 3),
        ("balancedAllocation", 2),
    ]


@pytest.mark.parametrize(
    ("entry", "note"),
    [
        (
            "{name: gang, disableJobOrder: true}",
            "line 4: disableJobOrder is left out: kube-batch ignores it, too",
        ),
        (
            "{name: gang, enableJobPipelined: false}",
            "line 4: enableJobPipelined is left out: enableJobReady is both here",
        ),
        (
            "{name: priority, arguments: {speed: 3}}",
            "line 4: priority's argument speed is left out: it has no meaning here",
        ),
        (
            "{name: ganng}",
            "line 4: ganng is left out: there is no such plugin here; did you mean 'gang'?",
        ),
        (
            "{name: NodeOrder}",
            (
                "line 4: NodeOrder is left out: there is no such plugin here; did you mean"
                " 'nodeorder'?"
            ),
        ),
        ("{name: quota}", "line 4: quota is on anyway"),
    ],
)
def test_an_entry_without_a_counterpart_is_left_out_with_a_note(entry: str, note: str) -> None:
    assert notes_on(entry) == [note]


def test_a_weight_that_is_no_number_stays_at_its_default() -> None:
    first, second = notes_on("{name: nodeorder, arguments: {mostrequested.weight: much}}")
    assert first == "line 4: mostrequested.weight stays 0: expected 0 to 1000, found 'much'"
    assert second.startswith("line 4: nodeorder becomes leastAllocated, balancedAllocation: ")


def test_predicates_cannot_be_left_out_and_keep_holding_requests() -> None:
    assert converted("tiers: [{plugins: [{name: gang}]}]").notes[-1] == PREDICATES
    entry = "{name: predicates, enablePredicate: false}"
    found = converted(f"actions: enqueue\ntiers:\n- plugins:\n  - {entry}\n")
    assert found.config.points == {}
    assert found.notes == [
        BESIDE_NOTE,
        "line 4: enablePredicate is left out: predicates checks requests against nodes here",
    ]


def test_the_later_of_two_entries_for_a_plugin_counts() -> None:
    found = converted(
        "actions: enqueue\ntiers:\n- plugins:\n  - {name: gang}\n  - {name: predicates}\n"
        "- plugins:\n  - {name: gang}\n"
    )
    assert [(entry.name, entry.tier) for entry in found.config.plugins][-2:] == [
        ("predicates", 1),
        ("gang", 2),
    ]
    assert (
        found.notes[-1] == "line 7: gang is named twice; as in kube-batch, this replaces the other"
    )


def test_without_actions_kube_batchs_own_hold_and_unknown_settings_are_noted() -> None:
    found = converted("schedulePeriod: 1s\ntiers: [{plugins: [{name: predicates}]}]\n")
    assert found.config.actions == ("allocate", "backfill")
    assert "line 1: schedulePeriod is left out: kube-batch has no such setting" in found.notes


WRONG = {
    "a file of batchq's": (
        "actions: [enqueue]\n",
        "line 1: actions: expected the names in one text, found a list of 1 item",
    ),
    "a file without tiers": (
        "actions: allocate\n",
        "line 1: this is not a kube-batch configuration: it has no tiers",
    ),
    "tiers that are a word": (
        "tiers: priority\n",
        "line 1: tiers: expected kube-batch's list of tiers, found 'priority'",
    ),
    "a tier without plugins": (
        "tiers:\n- name: gang\n",
        "line 2: tiers[0].plugins: expected a list, found nothing",
    ),
    "a plugin without a name": (
        "tiers:\n- plugins:\n  - enableJobOrder: true\n",
        "line 3: tiers[0].plugins[0].name: expected the name of a plugin, found nothing",
    ),
    "an unknown action": (
        "actions: alocate\ntiers: []\n",
        (
            "line 1: actions: there is no action 'alocate'; known: allocate, backfill, enqueue,"
            " preempt, reclaim; did you mean 'allocate'?"
        ),
    ),
    "no action at all": (
        "actions: ''\ntiers: []\n",
        "line 1: actions: expected the name of an action, found ''",
    ),
    "a flag that is a word": (
        "tiers:\n- plugins:\n  - {name: gang, enableJobReady: maybe}\n",
        "line 3: tiers[0].plugins[0].enableJobReady: expected true or false, found 'maybe'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_that_kube_batch_would_not_start_with_is_refused(case: str) -> None:
    text, message = WRONG[case]
    with pytest.raises(InvalidInput) as caught:
        converted(text)
    assert caught.value.message == f"kb.yaml, {message}"
