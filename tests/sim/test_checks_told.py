"""What a group's conditions say while it passes its checks, and who is told what in events."""

from __future__ import annotations

import yaml

from batchq.api.objects import PodGroup
from batchq.assembly import assemble
from batchq.config.load import read_config
from batchq.lab.simulation.player import WorldRun
from batchq.lab.simulation.world import read_world
from tests.sim.worlds import Manifest, answers, check, group, node, queue, timeline

A = [
    node("n1", 4),
    check("a", retryDelayMinutes=1),
    queue("q", admissionChecks=["a"]),
    group("g", 2, queue="q"),
]


def conditions(*manifests: Manifest, cycles: int) -> dict[str, tuple[str, str, str]]:
    """(status, reason, message) of each condition after so many sessions."""
    text = yaml.safe_dump_all(manifests, sort_keys=False)
    stage = WorldRun(read_world(text, "world"), assemble(read_config("", "config")))
    stage.run(cycles, bounded=False)
    found = stage.store.get("PodGroup", "default/g")
    assert isinstance(found, PodGroup)
    return {one.type: (one.status, str(one.reason), one.message) for one in found.status.conditions}


def test_a_reserved_group_says_what_it_has_reserved_and_is_not_admitted() -> None:
    told = conditions(*A, cycles=1)
    assert told["QuotaReserved"] == ("True", "QuotaReserved", "reserved cpu 2")
    assert told.get("Admitted", ("False",))[0] == "False"


def test_with_its_checks_passed_it_is_admitted_too() -> None:
    told = conditions(*A, timeline(answers(5, "g", "a", "True")), cycles=3)
    assert told["QuotaReserved"] == ("True", "QuotaReserved", "reserved cpu 2")
    assert told["Admitted"] == ("True", "Admitted", "reserved cpu 2")


def test_without_checks_both_are_said_by_the_same_session() -> None:
    told = conditions(node("n1", 4), queue("q"), group("g", 2, queue="q"), cycles=1)
    assert {name: one[0] for name, one in told.items() if name != "Scheduled"} == {
        "QuotaReserved": "True",
        "Admitted": "True",
    }


def test_a_retry_takes_both_back_and_says_who_said_it_and_for_how_long() -> None:
    told = conditions(*A, timeline(answers(5, "g", "a", "False", "Retry")), cycles=3)
    why = "check a said Retry; tries again after 1m"
    assert told["QuotaReserved"] == (
        "False",
        "BackingOff",
        "check a asked to retry after 1m",
    )
    assert told["Admitted"] == ("False", "CheckRetry", why)
    assert told["Evicted"] == ("True", "CheckRetry", why)


def test_a_reject_says_who_said_it() -> None:
    told = conditions(*A, timeline(answers(5, "g", "a", "False", "Reject")), cycles=3)
    assert told["Finished"] == ("True", "CheckRejected", "check a said Reject")
