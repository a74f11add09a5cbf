"""Any configuration that is read is printed as a file with the same effect, in both forms."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from batchq.assembly import BUILTIN_PLUGINS, arguments_of, expanded, known_names
from batchq.config import SchedulerConfig
from batchq.config.load import as_text, differences, effect, read_config
from batchq.core.extension import POINTS
from tests.yaml_text import text_of

_NAMES = sorted(BUILTIN_PLUGINS)
_ACTIONS = ["enqueue", "allocate", "reclaim", "preempt"]


def _plugins_at(point: str) -> list[str]:
    return [name for name in _NAMES if hasattr(BUILTIN_PLUGINS[name], POINTS[point])]


@st.composite
def entries(draw: st.DrawFn, names: list[str]) -> list[Any]:
    """Draw some of these plugins in any order, as names, mappings or the star without effect."""
    found: list[Any] = []
    for name in draw(st.lists(st.sampled_from(names), unique=True)):
        fields = draw(
            st.fixed_dictionaries(
                {}, optional={"weight": st.integers(1, 1000), "tier": st.integers(0, 4)}
            )
        )
        found.append({"name": name, **fields} if fields or draw(st.booleans()) else name)
    return [*found, "*"] if draw(st.booleans()) else found


@st.composite
def sets(draw: st.DrawFn, names: list[str]) -> dict[str, Any]:
    off = st.lists(st.sampled_from([*_NAMES, "*"]), unique=True, max_size=4)
    return draw(st.fixed_dictionaries({}, optional={"enabled": entries(names), "disabled": off}))


@st.composite
def files(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the content of a file."""
    points = {point: sets(_plugins_at(point)) for point in POINTS}
    mapping = st.fixed_dictionaries({}, optional={"multiPoint": sets(_NAMES), **points})
    listed = entries(_NAMES).map(lambda found: [one for one in found if one != "*"])
    actions = st.lists(st.sampled_from(_ACTIONS), min_size=1, unique=True)
    return draw(
        st.fixed_dictionaries(
            {"plugins": st.one_of(mapping, listed)},
            optional={
                "actions": actions | actions.map(", ".join),
                "schedulePeriod": st.sampled_from(["250ms", "1s", 30, "1h30m"]),
                "overcommit": st.sampled_from([1, 0.5, 1.125]),
                "evictionBudget": st.just({"pods": 3, "window": "1h"}) | st.none(),
                "pluginConfig": st.sampled_from(
                    [{}, {"sla": {"waitingTime": "2h"}}, {"binpack": {"weights": {"gpu": 2}}}]
                ),
            },
        )
    )


def read(text: str) -> SchedulerConfig:
    return read_config(text, "scheduler.yaml", known=known_names())


@given(files())
def test_a_printed_configuration_is_read_as_an_equal_one(written: dict[str, Any]) -> None:
    config = read(text_of(written))
    assert read(as_text(config)) == config
    assert expanded(read(as_text(config))) == expanded(config)


@given(files())
def test_a_configuration_printed_point_by_point_has_the_same_effect(
    written: dict[str, Any],
) -> None:
    config = read(text_of(written))
    expansion = expanded(config)
    again = read(as_text(config, expansion))
    assert expanded(again) == expansion
    assert (again.actions, again.settings) == (config.actions, config.settings)
    assert read(as_text(again, expanded(again))) == again
    both = [effect(one, expanded(one), arguments_of) for one in (config, again)]
    assert list(differences(*both)) == []


@given(files())
def test_each_point_has_its_plugins_once_and_ordered_by_tiers(
    written: dict[str, Any],
) -> None:
    for point, standing in expanded(read(text_of(written))).items():
        names = [entry.name for entry in standing]
        assert set(names) <= set(_plugins_at(point))
        assert len(set(names)) == len(names)
        tiers = [entry.tier for entry in standing]
        assert tiers == sorted(tiers)
