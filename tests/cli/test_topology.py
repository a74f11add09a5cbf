"""`submit --topology`: the field that it sets, and what `describe` shows."""

from __future__ import annotations

import pytest

from batchq.api.objects import PodGroup
from tests.cli.conftest import Batchq
from tests.client.stage import Stage


@pytest.mark.both_doors
def test_a_label_is_required_unless_it_is_called_preferred(batchq: Batchq, stage: Stage) -> None:
    topology = ("--topology", "zone", "--topology", "rack=preferred")
    assert batchq("submit", "--name", "g", "-N", "2", *topology, "--", "true").code == 0
    group = stage.client.get("PodGroup", "g")
    assert isinstance(group, PodGroup)
    assert group.spec.topology == {"zone": "required", "rack": "preferred"}
    assert "Topology:    zone required, rack preferred" in batchq("describe", "g").lines


def test_an_external_group_has_no_topology(batchq: Batchq) -> None:
    done = batchq("submit", "--name", "g", "--external", "--topology", "rack", "--cpus", "1")
    assert done.code == 1
    assert done.err.splitlines()[0] == (
        "error: PodGroup default/g: spec.topology: batchq does not place the pods of an external"
        " group; leave it out"
    )
