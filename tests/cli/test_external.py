"""`batchq external`, and `submit --external`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from batchq.api.objects import PodGroup
from tests.cli.conftest import Batchq
from tests.client.stage import Stage


def stored(stage: Stage, name: str = "e") -> PodGroup:
    group = stage.client.get("PodGroup", name)
    assert isinstance(group, PodGroup)
    return group


@pytest.fixture
def waiting(batchq: Batchq, stage: Stage) -> Stage:
    """A test environment with one claimable external group."""
    batchq("submit", "--external", "--name", "e", "--cpus", "2", "--res", "license=1")
    stage.turn()
    return stage


def test_submit_external_needs_no_command_and_states_what_it_needs(waiting: Stage) -> None:
    group = stored(waiting)
    assert (group.spec.controller, group.status.phase) == ("external", "InQueue")
    assert group.spec.min_resources == {"cpu": 2000, "license": 1000}


def test_submit_external_takes_a_command_but_no_file(batchq: Batchq, stage: Stage) -> None:
    assert batchq("submit", "--external", "--name", "c", "--", "blender", "-b").code == 0
    assert stored(stage, "c").spec.tasks[0].template.command == ("blender", "-b")
    refused = batchq("submit", "--external", "-f", "conf/examples/external.yaml")
    assert refused.code == 2
    assert "--external applies to a command" in refused.err


def test_list_shows_what_waits(batchq: Batchq, waiting: Stage) -> None:
    titles, row = batchq("external", "list").lines
    assert titles.split() == ["NAME", "QUEUE", "RESERVED", "WAITS"]
    assert row.split()[:2] == ["default/e", "default"]
    [item] = json.loads(batchq("external", "list", "-o", "json").out)["items"]
    assert (item["name"], item["phase"]) == ("default/e", "InQueue")
    assert item["reserved"] == {"cpu": "2", "license": "1", "pods": "1"}
    nothing = batchq("external", "list", "-q", "other")
    assert (nothing.code, nothing.out) == (0, "")
    assert nothing.err == "no external group can be claimed\n"


def test_a_script_claims_renews_and_reports(
    batchq: Batchq, waiting: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed = batchq("external", "claim", "--holder", "script")
    token = claimed.out.strip()
    assert token.startswith("default/e/")
    assert claimed.err.startswith("podgroup default/e claimed until ")
    monkeypatch.setenv("BATCHQ_CLAIM", token)
    assert batchq("external", "report", "running").out == "running\n"
    waiting.turn()
    assert waiting.phase("e") == "Running"
    assert batchq("external", "renew", "--ttl", "2m").out.startswith("renewed until ")
    assert batchq("external", "report", "succeeded", "-m", "fine").out == "succeeded\n"
    assert batchq("external", "report", "succeeded").out == "succeeded (reported before)\n"
    waiting.turn()
    assert waiting.phase("e") == "Completed"
    assert batchq("external", "renew")[:2] == (8, "stop Succeeded\n")
    over = batchq("external", "report", "failed")
    assert over.code == 8
    assert "the claim of script has ended: it was reported as Succeeded" in over.err
    assert token.rpartition("/")[2] not in over.err


def test_describe_names_the_holder_of_a_claim(batchq: Batchq, waiting: Stage) -> None:
    assert "not claimed yet" in batchq("describe", "e").out
    batchq("external", "claim", "e", "--holder", "script")
    assert "Claimed by script until" in batchq("describe", "e").out


def test_as_json_a_claim_has_all_that_a_consumer_needs(batchq: Batchq, waiting: Stage) -> None:
    done = batchq("external", "claim", "e", "--ttl", "5m", "-o", "json")
    answer: dict[str, Any] = json.loads(done.out)
    assert answer["podGroup"] == "default/e"
    assert answer["token"].startswith("default/e/")
    assert answer["graceSeconds"] == 30
    assert answer["spec"]["minResources"] == {"cpu": "2", "license": "1"}


def test_renew_exits_with_8_if_the_work_must_stop(batchq: Batchq, waiting: Stage) -> None:
    token = batchq("external", "claim", "e").out.strip()
    batchq("suspend", "e")
    waiting.turn()
    actual = batchq("external", "renew", "-t", token)
    assert (actual.code, actual.out) == (8, "stop Suspended\n")
    as_json = batchq("external", "renew", "-t", token, "-o", "json")
    assert (as_json.code, json.loads(as_json.out)["stopReason"]) == (8, "Suspended")
    assert batchq("external", "release", "-t", token).out == "released\n"


def test_released_it_can_be_claimed_by_the_next(batchq: Batchq, waiting: Stage) -> None:
    token = batchq("external", "claim", "e", "--holder", "a").out.strip()
    taken = batchq("external", "claim", "e", "--holder", "b")
    assert taken.code == 8
    assert "PodGroup default/e is claimed by a until " in taken.err
    batchq("external", "release", "-t", token)
    assert batchq("external", "claim", "e", "--holder", "b").code == 0


def test_pods_are_reported_one_by_one(batchq: Batchq, stage: Stage) -> None:
    batchq("submit", "--external", "--name", "e", "-N", "2")
    stage.turn()
    token = batchq("external", "claim", "e").out.strip()
    for pod in ("a", "b"):
        done = batchq("external", "report", "succeeded", "--pod", pod, "-t", token)
        assert done.out == f"pod {pod} succeeded\n"
    stage.turn()
    assert stage.phase("e") == "Completed"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("claim", "none"), 6, "PodGroup default/none does not exist"),
        (("claim", "e", "--ttl", "0s"), 1, "ttl: expected from 1s to 1d, found 0s"),
        (("claim", "e", "--ttl", "soon"), 2, "soon"),
        (("claim", "--wait", "--timeout", "0s", "-q", "other"), 124, "within 0s"),
        (("claim", "-q", "other"), 6, "no external group can be claimed"),
        (("renew", "-t", "nonsense"), 1, "this is not a token"),
        (("renew",), 2, "there is no token"),
        (("report", "done", "-t", "x"), 2, "done"),
        (("check",), 2, "COMMAND"),
        (("check", "--", "no-such-program-here"), 1, "there is no program no-such-program-here"),
    ],
)
def test_a_mistake_is_reported_in_one_sentence(
    batchq: Batchq, waiting: Stage, words: tuple[str, ...], code: int, said: str
) -> None:
    done = batchq("external", *words)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert "Traceback" not in done.err


def test_an_external_group_without_min_resources_is_refused(batchq: Batchq, stage: Stage) -> None:
    manifest = """
    apiVersion: batchq/v1
    kind: PodGroup
    metadata: {name: e}
    spec: {controller: external}
    """
    done = batchq("apply", "-f", "-", stdin=manifest)
    assert done.code == 1
    assert "spec.minResources: an external group must state what it needs" in done.err


def test_a_report_in_json_names_its_group(batchq: Batchq, waiting: Stage) -> None:
    token = batchq("external", "claim").out.strip()
    done = batchq("external", "report", "running", "-t", token, "--pod", "p", "-o", "json")
    assert json.loads(done.out) == {"podGroup": "default/e", "phase": "running", "pod": "p"}


def test_a_function_is_not_for_consumers(batchq: Batchq, stage: Stage) -> None:
    refused = batchq("submit", "--external", "--function", "a:b")
    assert (refused.code, refused.out) == (2, "")
    assert "batchq's own agents run a function" in refused.err
    assert stage.client.jobs() == []


def test_requests_for_output_of_an_external_group_are_sent_to_its_consumer(
    batchq: Batchq, waiting: Stage
) -> None:
    token = batchq("external", "claim").out.strip()
    batchq("external", "report", "succeeded", "-t", token)
    waiting.turn()
    where = "external: the consumer that ran it has its output"
    result = batchq("result", "e")
    assert (result.code, result.out) == (6, "")
    assert f"error: PodGroup default/e is {where}\n" in result.err
    logs = batchq("logs", "e")
    assert (logs.code, logs.out) == (0, "")
    assert logs.err == f"PodGroup default/e is Completed; it is {where}\n"
