"""KEP-2891's own example with batchq's plugin names, and its rule that plugins are created once.

docs/sources.md covers the whole document, sentence by sentence.
"""

from __future__ import annotations

import pytest

from batchq.assembly import assemble, expanded, known_names
from batchq.config.load import as_text, read_config

#: As in the proposal: two plugins with several points each, and one with a single point.
EXAMPLE = """
plugins:
  multiPoint:
    enabled:
    - name: "sla"                ## preEnqueue/groupOrder/preemptable
      weight: 3
    - name: "drf"                ## groupOrder/preemptable
    - name: "balancedAllocation" ## score
    disabled:
    - name: "*"
"""
WITHOUT = (
    EXAMPLE
    + """  preemptable:
    disabled:
    - name: "*"
  score:
    disabled:
    - name: "*"
"""
)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            EXAMPLE,
            {
                "preEnqueue": [("sla", 3)],
                "groupOrder": [("sla", 3), ("drf", 1)],
                "preemptable": [("sla", 3), ("drf", 1)],
                "score": [("balancedAllocation", 1)],
            },
        ),
        (WITHOUT, {"preEnqueue": [("sla", 3)], "groupOrder": [("sla", 3), ("drf", 1)]}),
    ],
)
def test_the_example_of_the_proposal_expands_to_these_points(
    text: str, names: dict[str, list[tuple[str, int]]]
) -> None:
    config = read_config(text, "scheduler.yaml", known=known_names())
    found = {
        point: [(one.name, one.weight) for one in at] for point, at in expanded(config).items()
    }
    assert {point: at for point, at in found.items() if at} == names
    # Printed point by point, as a version without multiPoint needs it, it is the same.
    again = read_config(as_text(config, expanded(config)), "printed", known=known_names())
    assert expanded(again) == expanded(config)


def test_a_plugin_registered_at_several_points_is_created_once() -> None:
    config = read_config("plugins: {multiPoint: {enabled: [sla]}}", "scheduler.yaml")
    standing = assemble(config).plugins
    made = [plugin for at in standing.values() for plugin, *_ in at if plugin.name == "sla"]
    assert (len(made), len({id(plugin) for plugin in made})) == (3, 1)
