"""A reservation holds back those who would touch it, of whichever queue, and nobody else."""

from __future__ import annotations

from tests.sim.worlds import group, node, outcome, phases, pod, queue, starts


def test_a_head_passes_the_reservation_of_another_queue_that_it_does_not_touch() -> None:
    """`wide` waits for 100; what ends at 50 delays nothing, though it is a head, too."""
    busy = group("busy", 3, runtime="100s", walltime="100s", queue="a",
                 status={"phase": "Running", "startedAt": 5})  # fmt: skip
    came = outcome(
        node("n1", 4),
        queue("a", strategy={"type": "Backfill"}, deserved={"cpu": 4}),
        queue("b", strategy={"type": "Backfill"}),
        busy,
        *(pod(f"busy-t-{k}", "busy", k, phase="Running", node="n1", startedAt=5)
          for k in range(3)),
        group("wide", 4, runtime="10s", walltime="10s", queue="a", created=0),
        group("short", 1, runtime="50s", walltime="50s", queue="b", created=2),
    )  # fmt: skip
    begun = starts(came)
    assert begun["wide-t-0"] == 100
    assert begun["short-t-0"] == 0
    assert set(phases(came).values()) == {"Completed"}
