"""`submit --exclusive`, `--max-pods-per-node` and `--pack`: their fields and what is shown."""

from __future__ import annotations

import pytest

from batchq.api.objects import PodGroup
from tests.cli.conftest import Batchq
from tests.client.stage import Stage


@pytest.mark.both_doors
def test_each_option_sets_its_field_and_is_described(batchq: Batchq, stage: Stage) -> None:
    sharing = ("--exclusive", "--max-pods-per-node", "2", "--pack")
    assert batchq("submit", "--name", "g", "-N", "4", *sharing, "--", "true").code == 0
    group = stage.client.get("PodGroup", "g")
    assert isinstance(group, PodGroup)
    assert (group.spec.exclusive, group.spec.max_pods_per_node, group.spec.pack) == (True, 2, True)
    assert (
        "Sharing:     nodes of its own, at most 2 pods on a node, on as few nodes as possible"
        in batchq("describe", "g").lines
    )


def test_an_external_group_has_no_opinion_on_nodes(batchq: Batchq) -> None:
    done = batchq("submit", "--name", "g", "--external", "--exclusive", "--cpus", "1")
    assert done.code == 1
    assert done.err.splitlines()[0] == (
        "error: PodGroup default/g: spec.exclusive: batchq does not place the pods of an external"
        " group; leave it out"
    )
