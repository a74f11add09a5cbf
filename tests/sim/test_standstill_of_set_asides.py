"""What is set aside for a head is all that it asks for, or nothing."""

from __future__ import annotations

import pytest

from tests.sim.worlds import applies, group, node, outcome, phases, queue, starts, timeline


@pytest.mark.parametrize("strategy", ["StrictFIFO", "Backfill"])
def test_a_head_above_its_share_starts_once_and_idles_nothing_meanwhile(strategy: str) -> None:
    """`wide` asks for six of eight cpus, and its queue deserves four: its turn comes when the
    first of the others end, and not a part of it is kept idle for longer than that.
    """
    came = outcome(
        node("n1", 8),
        queue("a", strategy={"type": strategy}),
        queue("b"),
        *(group(f"b-{k:03}", runtime="10s", walltime="10s", queue="b", created=0)
          for k in range(60)),
        timeline(applies(5, group("wide", 1, 6, runtime="20s", walltime="20s", queue="a"))),
    )  # fmt: skip
    begun = starts(came)
    assert set(phases(came).values()) == {"Completed"}
    assert begun["wide-t-0"] == 10
    # 60 jobs of 10 s and one of 6 cpus for 20 s fill 8 cpus for 90 s: the last begin at 80.
    assert max(begun.values()) == 80
