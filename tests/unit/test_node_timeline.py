"""Future free capacity of nodes: one test for each rule of moving windows."""

from __future__ import annotations

from typing import Any

from batchq.core.expected_ends import ends
from batchq.core.node_timeline import NodeTimeline
from batchq.core.placement.placement import gang_of
from tests.builders import a_group, a_node, amounts
from tests.unit.test_ledger_timeline import NOW, of, opened, running

WHOLE = amounts(cpu=4)


def two_nodes(*more: Any) -> tuple[NodeTimeline, Any]:
    """Return n1, full until 200 s, an empty n2, and a gang of two whole nodes."""
    world = [a_node("n1", cpu=4), a_node("n2", cpu=4), *running("r", 4, 200_000), *more]
    session = opened(*world, a_group("g", 2, cpu=4))
    return NodeTimeline(session, ends(session)), gang_of(session, of(session, "g"))


def test_a_window_that_moves_forward_includes_bookings_at_its_end() -> None:
    table, gang = two_nodes()
    table.hold({"n2": WHOLE}, 250_000, 300_000)
    assert table.slot(gang, 50_000, NOW) == 200_000
    assert table.slot(gang, 50_001, NOW) == 300_000


def test_the_answer_whether_a_gang_fits_now_depends_on_its_length() -> None:
    table, _ = two_nodes()
    session = opened(a_node("n1", cpu=4), a_group("one", cpu=4))
    one = gang_of(session, of(session, "one"))
    table.hold({"n2": WHOLE}, 250_000, None)
    assert table.fits_now(one, 250_000)
    assert not table.fits_now(one, 250_001)
    assert not table.fits_now(one, None)
    assert table.fits_now(one, 249_000)


def test_a_new_booking_changes_the_answer_for_a_gang_that_asked_before() -> None:
    table, gang = two_nodes()
    assert table.fits_now(gang[:0], None)
    one = [(gang[0][0], 1)]
    assert table.fits_now(one, None)
    table.hold({"n2": WHOLE}, NOW, 150_000)
    assert not table.fits_now(one, None)
    assert table.slot(one, None, NOW) == 150_000


def test_a_missing_node_is_ignored() -> None:
    table, gang = two_nodes()
    table.hold({"n9": WHOLE}, NOW, None)
    assert table.slot(gang, None, NOW) == 200_000
