"""Draw the GPU use of runs into one picture: a PNG, an SVG or a PDF, as bytes.

Three panels, over time or over the requested amount: the allocated share, and the fragments as a
share of all GPUs and of the free ones. The style is that of `batchq.lab.workload.plot`.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from batchq.lab.workload.plot import (
    DOTS_PER_INCH,
    METADATA,
    STYLE,
    WIDTH_INCHES,
    colour_of,
    dashes_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.gridspec import GridSpec

_HEAD_INCHES = 0.75
_RUN_INCHES = 0.28
_PANEL_INCHES = 2.9
#: The upper panel is split after this many columns if a detail is drawn next to it.
_COLUMNS, _CROWDED_AT = 5, 3
_GREY = "#777777"
#: Below this share all placements allocate everything requested, so the detail begins here.
_CROWDED_PERCENT = 80.0


class Curve(Struct, frozen=True, kw_only=True):
    """A line; `y` in percent."""

    x: tuple[float, ...]
    y: tuple[float, ...]


class GpuPicture(Struct, frozen=True, kw_only=True):
    """One run: its legend, and its line in each panel.

    `along` is the quantity on the x axis. With `ideal`, the requested amount is drawn too, and the
    allocation of the crowded cluster again in a larger scale.
    """

    name: str
    words: str
    along: str
    allocation: Curve
    fragmentation: Curve
    of_free: Curve
    ideal: bool = False


def drawn(title: str, runs: Sequence[GpuPicture], form: str) -> bytes:
    """Return the picture as `png`, `svg` or `pdf`. `runs` is not empty."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    height = _HEAD_INCHES + _RUN_INCHES * len(runs) + 3 * _PANEL_INCHES
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
        _draw_head(figure, title, runs)
        grid = figure.add_gridspec(3, _COLUMNS)
        _draw_allocation(figure, grid, runs)
        fragmented = figure.add_subplot(grid[1, :])
        _draw(fragmented, [one.fragmentation for one in runs])
        _describe(fragmented, runs, "Fragments: free GPUs that the next pod is not expected to use")
        fragmented.set_ylabel("% of all GPUs")
        of_free = figure.add_subplot(grid[2, :])
        _draw(of_free, [one.of_free for one in runs])
        _describe(of_free, runs, "Fragments among the free GPUs")
        of_free.set_ylabel("% of the free GPUs")
        written = io.BytesIO()
        figure.savefig(written, format=form, dpi=DOTS_PER_INCH, metadata=METADATA[form])
    return written.getvalue()


def _draw_head(figure: Figure, title: str, runs: Sequence[GpuPicture]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=colour_of(place), linewidth=3, **dashes_of(place))
        for place in range(len(runs))
    ]
    labels = [f"{one.name}: {one.words}" for one in runs]
    figure.legend(
        handles,
        labels,
        loc="outside upper left",
        alignment="left",
        title=title,
        title_fontproperties={"size": 14, "weight": "bold"},
    )


def _draw_allocation(figure: Figure, grid: GridSpec, runs: Sequence[GpuPicture]) -> None:
    ideal = runs[0].ideal
    whole = figure.add_subplot(grid[0, : _CROWDED_AT if ideal else _COLUMNS])
    _draw(whole, [one.allocation for one in runs])
    _describe(whole, runs, "GPU allocation ratio")
    whole.set_ylabel("% of all GPUs")
    if ideal:
        _draw_ideal(whole, runs)
        whole.set_ylim(0, 103)
        _draw_crowded(figure.add_subplot(grid[0, _CROWDED_AT:]), runs)


def _draw_crowded(axes: Axes, runs: Sequence[GpuPicture]) -> None:
    """Draw allocation once more, where the placements differ."""
    _draw(axes, [one.allocation for one in runs])
    _describe(axes, runs, "… where the cluster is nearly full")
    _draw_ideal(axes, runs)
    axes.set_xlabel("asked for, in %")
    most = max(max(one.allocation.y) for one in runs)
    last = max(one.allocation.x[-1] for one in runs)
    least = max(0.0, min(_CROWDED_PERCENT, most - 10))
    axes.set_xlim(least, last)
    axes.set_ylim(least, most + max(1.0, (most - least) * 0.15))


def _draw_ideal(axes: Axes, runs: Sequence[GpuPicture]) -> None:
    """Draw the allocation that would result if every pod were placed."""
    last = max(one.allocation.x[-1] for one in runs)
    full = min(100.0, last)
    axes.plot([0, full, last], [0, full, full], color=_GREY, linewidth=1.0, linestyle=(0, (2, 2)))


def _draw(axes: Axes, curves: Sequence[Curve]) -> None:
    for place, curve in enumerate(curves):
        axes.plot(
            curve.x,
            curve.y,
            color=colour_of(place),
            linewidth=1.8,
            alpha=0.9,
            **dashes_of(place),
        )


def _describe(axes: Axes, runs: Sequence[GpuPicture], title: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(runs[0].along)
    axes.set_ylim(bottom=0)
    axes.margins(x=0.01)
