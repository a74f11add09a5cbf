"""The picture of a comparison: its format and size, and all runs and panels in it."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import zlib

import pytest

from batchq.lab.load_player import play_load
from batchq.lab.plot import Picture, drawn, picture_of
from batchq.lab.traces import POLICY_CONFIG
from tests.effort import sample
from tests.traces.loads import a_load, job
from tests.traces.test_series import schedule


def picture(*policies: str, tenants: bool = False) -> Picture:
    """Return the plot data of two tenants on four cpus, under each of these policies."""
    jobs = [
        job(1, 0, 3, 100, queue="user-1"),
        job(2, 10, 4, 50, queue="user-2"),
        job(3, 20, 1, 30, queue="user-1"),
        job(4, 30, 1, 200, queue="user-2"),
    ]
    return picture_of(
        [
            play_load(a_load(*jobs, policy=policy), POLICY_CONFIG, name=policy)
            for policy in policies
        ],
        tenants=tenants,
    )


def png_size(content: bytes) -> tuple[int, int]:
    """Return width and height from the header (ISO/IEC 15948, 11.2.2)."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[12:16] == b"IHDR"
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def rows(content: bytes) -> list[bytes]:
    """Return the filtered rows of a PNG, which are all equal in an empty one."""
    data, at = b"", 8
    while at < len(content):
        length, kind = struct.unpack(">I4s", content[at : at + 8])
        data += content[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    raw = zlib.decompress(data)
    # Four bytes per pixel, after one that names the filter.
    length = 4 * png_size(content)[0] + 1
    return [raw[at : at + length] for at in range(0, len(raw), length)]


def words_of(svg: bytes) -> list[str]:
    """Return the texts of an SVG; matplotlib writes each as a comment before its shapes."""
    return re.findall(r"<!-- (.+?) -->", svg.decode())


def test_a_png_has_the_stated_size_and_is_not_empty() -> None:
    content = drawn(picture("fcfs"), "png")
    # 12 inches of 120 dots; a title of 0.5, a legend line of 0.25, panels of 2.5, 2.5 and 3.4.
    assert png_size(content) == (1440, round(9.15 * 120))
    assert len(set(rows(content))) > 300


def test_every_run_is_in_the_legend_with_its_figures_and_the_panels_have_titles() -> None:
    words = words_of(drawn(picture("fcfs", "first-fit"), "svg"))
    assert words[0] == "by hand: 4 jobs on 4 processors"
    legend = [word for word in words if "mean bounded slowdown" in word]
    assert [word.partition(":")[0] for word in legend] == ["fcfs", "first-fit"]
    assert "Utilisation over time" in words
    assert "Jobs waiting over time" in words
    assert "minutes since the first submit" in words
    assert [word for word in words if word in ("3-4", "2 jobs")] == ["2 jobs", "3-4", "2 jobs"]


def test_with_tenants_there_is_a_panel_for_each() -> None:
    both = picture("first-fit", tenants=True)
    words = words_of(drawn(both, "svg"))
    assert [word for word in words if "(weight" in word] == [
        "user-2 (weight 1)",
        "user-1 (weight 1)",
    ]
    assert png_size(drawn(both, "png")) == (1440, round((9.15 + 0.35 + 2.3) * 120))


@pytest.mark.parametrize(("form", "begins"), [("svg", b"<?xml"), ("pdf", b"%PDF-")])
def test_other_formats_are_what_they_are_called(form: str, begins: bytes) -> None:
    content = drawn(picture("fcfs"), form)
    assert content.startswith(begins)
    assert len(content) > 5_000


@pytest.mark.parametrize("form", sample(["png", "svg", "pdf"], 1))
def test_the_same_runs_give_the_same_bytes(form: str) -> None:
    shown = picture("fcfs", "first-fit", tenants=True)
    assert drawn(shown, form) == drawn(shown, form)


def test_a_run_in_which_nothing_finished_is_drawn_and_labelled() -> None:
    words = words_of(drawn(picture_of([schedule()], tenants=True), "svg"))
    assert "easy: nothing finished" in words


def test_more_runs_than_colours_differ_by_their_dashes() -> None:
    names = [f"run {number}" for number in range(10)]
    shown = picture_of([schedule(name=name) for name in names])
    svg = drawn(shown, "svg").decode()
    assert svg.count("stroke-dasharray") >= 2
    assert [name for name in names if f"<!-- {name}: nothing finished -->" in svg] == names


def test_plotting_does_not_load_pyplot() -> None:
    program = (
        "import sys\n"
        "from batchq.lab import plot\n"
        "assert 'matplotlib' not in sys.modules\n"
        "from batchq.lab.schedule import Schedule\n"
        "one = Schedule(name='a', load='b', capacity=1, resources={}, jobs=())\n"
        "plot.drawn(plot.picture_of([one]), 'png')\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
