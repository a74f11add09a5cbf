"""The conditions of a group with checks, and the events about them."""

from __future__ import annotations

from batchq.api.objects import PodGroup
from batchq.assembly import assemble
from batchq.config.load import read_config
from batchq.lab.simulation import WorldRun
from batchq.lab.simulation.world import read_world
from tests.sim.worlds import Manifest, answers, check, group, node, queue, timeline
from tests.yaml_text import text_of_all

A = [
    node("n1", 4),
    check("a", retryDelayMinutes=1),
    queue("q", admissionChecks=["a"]),
    group("g", 2, queue="q"),
]


def conditions(*manifests: Manifest, cycles: int) -> dict[str, tuple[str, str, str]]:
    """Return (status, reason, message) of each condition after this many sessions."""
    text = text_of_all(manifests)
    stage = WorldRun(read_world(text, "world"), assemble(read_config("", "config")))
    stage.run(cycles, bounded=False)
    found = stage.store.get("PodGroup", "default/g")
    assert isinstance(found, PodGroup)
    return {one.type: (one.status, str(one.reason), one.message) for one in found.status.conditions}


def test_a_reserved_group_states_its_reservation_and_is_not_admitted() -> None:
    result = conditions(*A, cycles=1)
    assert result["QuotaReserved"] == ("True", "QuotaReserved", "reserved cpu 2")
    assert result.get("Admitted", ("False",))[0] == "False"


def test_with_its_checks_passed_it_is_admitted_too() -> None:
    result = conditions(*A, timeline(answers(5, "g", "a", "True")), cycles=3)
    assert result["QuotaReserved"] == ("True", "QuotaReserved", "reserved cpu 2")
    assert result["Admitted"] == ("True", "Admitted", "reserved cpu 2")


def test_without_checks_one_session_sets_both_conditions() -> None:
    result = conditions(node("n1", 4), queue("q"), group("g", 2, queue="q"), cycles=1)
    assert {name: one[0] for name, one in result.items() if name != "Scheduled"} == {
        "QuotaReserved": "True",
        "Admitted": "True",
    }


def test_a_retry_clears_both_conditions_and_names_the_check_and_the_delay() -> None:
    result = conditions(*A, timeline(answers(5, "g", "a", "False", "Retry")), cycles=3)
    why = "check a said Retry; tries again after 1m"
    assert result["QuotaReserved"] == (
        "False",
        "BackingOff",
        "check a asked to retry after 1m",
    )
    assert result["Admitted"] == ("False", "CheckRetry", why)
    assert result["Evicted"] == ("True", "CheckRetry", why)


def test_a_reject_names_the_check() -> None:
    result = conditions(*A, timeline(answers(5, "g", "a", "False", "Reject")), cycles=3)
    assert result["Finished"] == ("True", "CheckRejected", "check a said Reject")
