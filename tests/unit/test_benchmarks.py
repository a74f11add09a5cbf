"""The benchmarks run, and their tables contain the documented comparisons."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from benchmarks import arrays, flood, http_api, reclaim, submission, traces
from benchmarks.queues import compare, flat, leaves_of, tree
from tests.effort import sample
from tests.harness.calls import counting_calls
from tests.harness.server import Server
from tests.http.api_process import ApiProcess


def test_queues_compares_a_thousand_leaves_with_ten() -> None:
    assert len(flat()) == len(leaves_of(flat())) == 10
    assert len(tree()) == 1110
    assert len(leaves_of(tree())) == 1000


def test_queues_has_a_session_that_admits_and_one_that_does_not() -> None:
    some, none = compare(waiting=30, nodes=1, times=1, cpu=8)
    assert (some[0], some[1]) == ("some fit", 8)
    assert (none[0], none[1]) == ("none fits", 0)


def test_arrays_ends_one_pod_and_starts_the_next_one() -> None:
    rows = arrays.compare(((2, 0), (2, 200)), ends=3)
    assert [row[:2] for row in rows] == [[2, 0], [2, 200]]
    assert rows[0][3] == 1.0


def test_a_session_of_an_array_costs_what_runs_and_not_what_has_ended() -> None:
    after_few, after_many = (arrays.ArrayRun(4, before, ends=2) for before in (200, 4_000))
    calls = [counting_calls(one.end_one, built_in=True)[1] for one in (after_few, after_many)]
    assert calls[1] < 1.1 * calls[0]


def test_traces_compares_every_policy_with_a_plain_simulator(tmp_path: Path) -> None:
    rest = "-1 1 1 1 -1 1 -1 -1 -1"
    jobs = [(1, 0, 100, 6, 100), (2, 1, 50, 8, 60), (3, 2, 50, 2, 70), (4, 3, 300, 4, 300)]
    lines = [
        f"{number} {submit} 0 {run} {procs} -1 -1 {procs} {asked} {rest}"
        for number, submit, run, procs, asked in jobs
    ]
    log = tmp_path / "small.swf.gz"
    log.write_bytes(gzip.compress("\n".join(["; MaxProcs: 10", *lines]).encode()))
    rows = [dict(zip(traces.TITLES, row, strict=True)) for row in traces.compare(log, "small", 3)]
    assert [(row["policy"], row["pass"]) for row in rows] == [
        ("fcfs", "instant"),
        ("easy", "instant"),
        ("easy", "event"),
        ("easy-sjf", "instant"),
        ("easy-sjf", "event"),
        ("conservative", "instant"),
        ("first-fit", "instant"),
    ]
    assert {(row["jobs"], row["unlike plain"], row["unlike published"]) for row in rows} == {
        (3, 0, "-")
    }
    # First come, first served: the third waits for the second, which waits for the first.
    assert rows[0]["slowdown"] == f"{(1 + (99 + 50) / 50 + (98 + 50) / 50) / 3:.5f}"


def test_reclaim_counts_lost_work_and_the_evictions_per_job(
    tmp_path: Path,
) -> None:
    """Two queues deserve five of ten processors each. The first holds all ten for 100 s; the second
    requests five after 10 s and again after 20 s.
    """
    jobs = [(1, 0, 100, 5, 7), (2, 0, 100, 5, 7), (3, 10, 5, 5, 8), (4, 20, 5, 5, 8)]
    lines = [
        f"{number} {submit} 0 {run} {procs} -1 -1 {procs} {run} -1 1 1 {group} -1 1 -1 -1 -1"
        for number, submit, run, procs, group in jobs
    ]
    log = tmp_path / "small.swf.gz"
    log.write_bytes(gzip.compress("\n".join(["; MaxProcs: 10", *lines]).encode()))
    rows = {
        name: reclaim.row_of(name, reclaim.played(log, preemption, 4))
        for name, preemption in reclaim.RUNS.items()
    }
    titles = reclaim.TITLES
    calm, evicting = (dict(zip(titles, row, strict=True)) for row in rows.values())
    assert [calm[name] for name in ("jobs", "groups", "evictions", "jobs above log2")] == [
        *(4, 2, 0, 0),
    ]
    assert [evicting[name] for name in ("evictions", "most of one job", "its log2")] == [1, 1, 6.6]


def test_submission_compares_five_ways_on_one_server() -> None:
    with Server("--appendonly", "yes") as server:
        rows = submission.measure(server, many=20, few=5, rounds=1)
    assert [(row[0], row[1]) for row in rows] == [
        ("RQ enqueue", 5),
        ("RQ enqueue_many", 20),
        ("client.submit", 5),
        ("client.submit_many", 20),
        ("submit --from-file", 20),
    ]
    assert all(isinstance(cell, int | float) and cell > 0 for row in rows for cell in row[1:4])


@pytest.mark.e2e
@pytest.mark.parametrize("shapes", sample([2, 0], 1))
def test_flood_times_starts_and_lists_beside_another_tenants_groups(shapes: int) -> None:
    rows = flood.measure(many=40, shapes=shapes, probes=1, restart=False)
    assert [row[:2] for row in rows] == [
        ["`true`", "nothing waits"],
        ["`true`", "40 come in"],
        ["`true`", "right after"],
        ["`true`", "40 wait"],
        ["`jobs -n noisy`", "first line"],
        ["`jobs -n quiet`", "first line"],
        ["`jobs -A`", "first line"],
        ["`get podgroups -n noisy -o name`", "first line"],
    ]
    assert all(isinstance(row[3], float) and row[3] > 0 for row in rows)


def test_the_api_is_compared_with_the_direct_client(server: Server) -> None:
    with ApiProcess(server.url) as api:
        rows = http_api.measure(server, api.socket, many=60, rounds=1, runs=1, watchers=60)
    figures = {str(row[0]): row for row in rows}
    assert list(figures) == [
        "submit_many, groups/s",
        "client.submit, ms",
        "batchq submit, CPU ms",
        "batchq jobs, CPU ms",
        "batchq describe, CPU ms",
        "jobs beside `import click, http.client`",
        "the last of 60 watchers learns, ms",
    ]
    for name, row in figures.items():
        direct, through, ratio = row[1:4]
        if direct != "-":
            assert ratio == pytest.approx(through / direct, rel=0.1), name  # type: ignore[operator]
    assert 0 < figures["the last of 60 watchers learns, ms"][2] < 60_000  # type: ignore[operator]
