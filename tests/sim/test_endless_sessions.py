"""Sessions of one instant that undo each other end the run with an error."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batchq.api.reasons import Leaving
from batchq.assembly import assemble
from batchq.config.load import read_config
from batchq.core.session.session import Session
from batchq.core.session.statement import Statement
from batchq.core.session.transitions import admit, create_pods, roll_back, wanted_ordinals
from batchq.errors import EndlessSessions
from batchq.lab.simulation import WorldRun
from batchq.lab.simulation.world import read_world
from tests.sim.worlds import group, node
from tests.yaml_text import text_of_all


class ToAndFro:
    """An action that admits waiting groups, and evicts admitted ones."""

    name = "to-and-fro"

    def execute(self, session: Session) -> None:
        """Admit or evict every group, once a session."""
        for one in session.in_order():
            with Statement(session) as statement:
                if one.reserved:
                    roll_back(statement, one, Leaving.PREEMPTED)
                else:
                    admit(statement, one, reservation=one.reservation)
                    create_pods(statement, one, wanted_ordinals(one))
                statement.commit()


def stage_of(*actions: Any) -> WorldRun:
    scheduler = replace(assemble(read_config("", "config")), actions=actions)
    text = text_of_all([node("n1", 4), group("g", 1)])
    return WorldRun(read_world(text, "world"), scheduler)


def test_sessions_that_undo_each_other_are_an_error_that_names_both_decisions() -> None:
    with pytest.raises(EndlessSessions) as caught:
        stage_of(ToAndFro()).run(100, bounded=True)
    assert caught.value.message == (
        "at 0s sessions do not end (10 so far): one decides that default/g is InQueue,"
        " a later one that default/g goes back to Pending (Preempted)"
    )
    assert caught.value.exit_code == 1


def test_a_simulation_ends_after_the_requested_number_of_sessions() -> None:
    played = stage_of(ToAndFro()).run(7, bounded=False)
    assert len(played.outcome.cycles) == 7
