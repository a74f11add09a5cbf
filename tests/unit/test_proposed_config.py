"""KEP-2891's own example, in the names of the plugins here, and what it says of their making.

docs/sources.md has the whole document, sentence by sentence.
"""

from __future__ import annotations

import pytest

from batchq.assembly import assemble, expanded, known_names
from batchq.config.load import as_text, read_config

#: One of many points, one of another many, one of a single point: as in the proposal.
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
    # What is printed point by point, which any version without multiPoint could be given, is it.
    again = read_config(as_text(config, expanded(config)), "printed", known=known_names())
    assert expanded(again) == expanded(config)


def test_a_plugin_is_made_once_however_many_points_it_is_registered_at() -> None:
    config = read_config("plugins: {multiPoint: {enabled: [sla]}}", "scheduler.yaml")
    standing = assemble(config).plugins
    made = [plugin for at in standing.values() for plugin, *_ in at if plugin.name == "sla"]
    assert (len(made), len({id(plugin) for plugin in made})) == (3, 1)
