"""How a node enforces memory requests, as reported by its agent."""

from __future__ import annotations

from tests.cli.conftest import Batchq
from tests.client.stage import Stage

NODE = """
apiVersion: batchq/v1
kind: Node
metadata: {name: n7, annotations: {batchq/memory-limit: rlimit}}
spec: {resources: {cpu: 4}}
"""


def test_the_wide_list_and_the_description_tell_how_memory_is_limited(
    batchq: Batchq, stage: Stage
) -> None:
    batchq("apply", "-f", "-", stdin=NODE)
    title, *rows = batchq("nodes", "-o", "wide").lines
    assert title.split()[-1] == "MEMORY-LIMIT"
    assert [row.split()[-1] for row in rows if row.startswith("n7")] == ["rlimit"]
    assert "MEMORY-LIMIT" not in batchq("nodes").out
    described = batchq("describe", "node", "n7").out
    assert [line.split() for line in described.splitlines() if "Memory" in line] == [
        ["Memory", "limit:", "rlimit"]
    ]


def test_describe_omits_a_memory_limit_that_the_agent_did_not_report(
    batchq: Batchq, stage: Stage
) -> None:
    assert "Memory limit" not in batchq("describe", "node", "n1").out
