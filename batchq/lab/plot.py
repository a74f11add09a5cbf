"""Draw runs of one load, or their GPU use, into one picture: a PNG, an SVG or a PDF, as bytes.

`picture_of` computes what the picture shows, `drawn` draws it. Only drawing imports matplotlib,
without `pyplot`, which keeps figures alive and needs a display. A run has the same colour in every
panel, and the legend at the top shows its figures.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import quantiles
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from batchq.api.notation import describe_age
from batchq.lab.schedule import (
    Figures,
    Ran,
    Sample,
    Schedule,
    entitled,
    figures_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.gridspec import GridSpec

#: With more steps, the lines of several runs become indistinguishable.
_MOST_STEPS = 120
#: The tenants' panels are smaller by this factor, and their steps longer.
_COARSER = 3
#: The largest tenants that get a panel of their own.
_MOST_TENANTS = 6


class PlotLine(Struct, frozen=True, kw_only=True):
    """One run over time: `at_s` since the first submit, and a value at each."""

    run: str
    at_s: tuple[float, ...]
    values: tuple[float, ...]


class Waits(Struct, frozen=True, kw_only=True):
    """Percentiles 5, 25, 50, 75, 95 of the waits of one run's jobs of a size class, in seconds."""

    run: str
    jobs: int
    low: float
    quarter: float
    half: float
    three_quarters: float
    high: float


class SizeClass(Struct, frozen=True, kw_only=True):
    """Jobs of size `least` to `most`, a power of two; one entry for each run with such jobs."""

    least: int
    most: int
    runs: tuple[Waits, ...]

    @property
    def label(self) -> str:
        """`1`, `2`, `3-4`, `5-8`."""
        return str(self.most) if self.least == self.most else f"{self.least}-{self.most}"


class TenantShares(Struct, frozen=True, kw_only=True):
    """One tenant over time, as parts of the machine: what it held, and what it deserved."""

    tenant: str
    weight: int
    held: tuple[PlotLine, ...]
    deserved: tuple[PlotLine, ...]


class Picture(Struct, frozen=True, kw_only=True):
    """The data of one plot; the runs in the given order."""

    load: str
    capacity: int
    runs: tuple[tuple[str, Figures], ...]
    utilisation: tuple[PlotLine, ...]
    waiting: tuple[PlotLine, ...]
    sizes: tuple[SizeClass, ...]
    tenants: tuple[TenantShares, ...] = ()


#: The resource whose use is drawn.
_DRAWN = "cpu"


def picture_of(schedules: Sequence[Schedule], *, tenants: bool = False) -> Picture:
    """Return the plot data of runs of the same load; with `tenants`, the largest tenants' shares.

    `schedules` is not empty.
    """
    width = _width_s(schedules)

    def lines(value: Callable[[Schedule, Sample], float]) -> tuple[PlotLine, ...]:
        return tuple(_line(one, width, value) for one in schedules)

    first = schedules[0]
    return Picture(
        load=first.load,
        capacity=first.capacity,
        runs=tuple((one.name, figures_of(one)) for one in schedules),
        utilisation=lines(lambda one, sample: _part(one, sample.total(_DRAWN))),
        waiting=lines(lambda _, sample: sample.waiting),
        sizes=_sizes(schedules),
        tenants=_tenants(schedules, _COARSER * width) if tenants else (),
    )


def _part(schedule: Schedule, units: float) -> float:
    return units / (schedule.resources.get(_DRAWN) or 1)


def _tenants(schedules: Sequence[Schedule], width: int) -> tuple[TenantShares, ...]:
    deserved = [(one.name, entitled(one, width)) for one in schedules]

    def held(tenant: str) -> Callable[[Schedule, Sample], float]:
        return lambda one, sample: _part(one, sample.used.get(tenant, {}).get(_DRAWN, 0.0))

    return tuple(
        TenantShares(
            tenant=tenant,
            weight=schedules[0].weights.get(tenant, 1),
            held=tuple(_line(one, width, held(tenant)) for one in schedules),
            deserved=tuple(_due(run, steps, tenant, width) for run, steps in deserved),
        )
        for tenant in _largest(schedules[0].jobs)
    )


def _due(run: str, steps: Sequence[Mapping[str, float]], tenant: str, width: int) -> PlotLine:
    return PlotLine(
        run=run,
        at_s=tuple((step + 0.5) * width for step in range(len(steps))),
        values=tuple(parts.get(tenant, 0.0) for parts in steps),
    )


def _width_s(schedules: Sequence[Schedule]) -> int:
    """Return the length of a step: equal in all runs, and no finer than the recorded steps."""
    recorded = [one.usage for one in schedules if one.usage]
    spans = [usage[-1].at_s + usage[-1].long_s - usage[0].at_s for usage in recorded]
    finest = max((usage[0].long_s for usage in recorded), default=1)
    return max(finest, math.ceil(max(spans, default=1) / _MOST_STEPS))


def _line(schedule: Schedule, width: int, value: Callable[[Schedule, Sample], float]) -> PlotLine:
    """Return means over steps of `width`; a sample counts in each step that it overlaps."""
    start = schedule.usage[0].at_s if schedule.usage else 0
    sums: dict[int, float] = {}
    lengths: dict[int, float] = {}
    for sample in schedule.usage:
        level = value(schedule, sample)
        for step, length in _steps(sample.at_s - start, sample.at_s - start + sample.long_s, width):
            sums[step] = sums.get(step, 0.0) + level * length
            lengths[step] = lengths.get(step, 0.0) + length
    steps = sorted(step for step, length in lengths.items() if length)
    return PlotLine(
        run=schedule.name,
        at_s=tuple((step + 0.5) * width for step in steps),
        values=tuple(sums[step] / lengths[step] for step in steps),
    )


def _steps(begin: int, end: int, width: int) -> Iterable[tuple[int, int]]:
    """Yield the steps that an interval touches, and its length in each."""
    for step in range(begin // width, -(-end // width)):
        yield step, min(end, (step + 1) * width) - max(begin, step * width)


def _sizes(schedules: Sequence[Schedule]) -> tuple[SizeClass, ...]:
    """Return the classes 1, 2, 3-4, 5-8 … that have a job in any run."""
    waits: dict[int, dict[str, list[int]]] = {}
    for schedule in schedules:
        for one in schedule.jobs:
            if one.start_s is not None:
                of_class = waits.setdefault((one.size - 1).bit_length(), {})
                of_class.setdefault(schedule.name, []).append(one.start_s - one.submit_s)
    return tuple(
        SizeClass(
            least=2 ** (power - 1) + 1 if power else 1,
            most=2**power,
            runs=tuple(_waits(run, found) for run, found in waits[power].items()),
        )
        for power in sorted(waits)
    )


def _waits(run: str, found: Sequence[int]) -> Waits:
    cuts = quantiles(found, n=20, method="inclusive") if len(found) > 1 else [found[0]] * 19
    return Waits(
        run=run,
        jobs=len(found),
        low=cuts[0],
        quarter=cuts[4],
        half=cuts[9],
        three_quarters=cuts[14],
        high=cuts[18],
    )


def _largest(jobs: Sequence[Ran]) -> list[str]:
    """Return the tenants with the most work, done or not."""
    work: dict[str, int] = {}
    for one in jobs:
        work[one.tenant] = work.get(one.tenant, 0) + one.size * (one.run_s or 0)
    return sorted(work, key=lambda tenant: (-work[tenant], tenant))[:_MOST_TENANTS]


DOTS_PER_INCH = 120
WIDTH_INCHES = 12.0
_TITLE_INCHES = 0.5
_LEGEND_LINE_INCHES = 0.25
_PANELS_INCHES = (2.5, 2.5, 3.4)
_HEADING_INCHES = 0.35
_TENANTS_INCHES = 2.3
_TENANTS_BESIDE = 3
_TENANTS_TITLE = (
    "The largest tenants: what they held (solid), and what was due to them by weight and demand"
    " (dashed)"
)

#: Okabe and Ito's colours for the colour-blind, without yellow; then black and grey.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#888888")
_DASHES = ("-", (0, (6, 2)), (0, (1, 1)))

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    # Makes equal pictures equal bytes.
    "svg.hashsalt": "batchq",
}
#: Leaves the date and the producer out of the file, for the same reason.
METADATA: dict[str, dict[str, str | None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
}

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
#: Waits below this use a linear axis, those above a logarithmic one: most are 0, some are weeks.
_LINEAR_S = 60
_WAIT_TICKS_S = (
    *(0, _MINUTE, 10 * _MINUTE, _HOUR, 6 * _HOUR, _DAY, 3 * _DAY, 10 * _DAY, 30 * _DAY),
    *(100 * _DAY, 365 * _DAY),
)
#: Queue lengths whose ratio exceeds this are drawn on a logarithmic axis.
_FAR_APART = 5


def drawn(picture: Picture, form: str) -> bytes:
    """Return the picture as `png`, `svg` or `pdf`."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, sum(_heights(picture))), layout="constrained")
        _compose(figure, picture)
        written = io.BytesIO()
        figure.savefig(written, format=form, dpi=DOTS_PER_INCH, metadata=METADATA[form])
    return written.getvalue()


def _heights(picture: Picture) -> list[float]:
    """Return the heights of the title, each panel, the tenants' title and each of their rows."""
    head = _TITLE_INCHES + _LEGEND_LINE_INCHES * len(picture.runs)
    rows = math.ceil(len(picture.tenants) / _TENANTS_BESIDE)
    tenants = [_HEADING_INCHES, *[_TENANTS_INCHES] * rows] if rows else []
    return [head, *_PANELS_INCHES, *tenants]


def _compose(figure: Figure, picture: Picture) -> None:
    """Put all panels on one grid, so that their edges align."""
    heights = _heights(picture)
    grid = figure.add_gridspec(len(heights), _TENANTS_BESIDE, height_ratios=heights)
    _draw_head(_blank(figure.add_subplot(grid[0, :])), picture)
    _draw_utilisation(figure.add_subplot(grid[1, :]), picture)
    _draw_waiting(figure.add_subplot(grid[2, :]), picture)
    _draw_waits(figure.add_subplot(grid[3, :]), picture)
    if picture.tenants:
        heading = _blank(figure.add_subplot(grid[4, :]))
        heading.text(0, 0, _TENANTS_TITLE, fontsize=11, fontweight="bold", va="bottom")
        _draw_tenants(figure, grid, picture)


def _blank(axes: Axes) -> Axes:
    axes.set_axis_off()
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    return axes


def _draw_head(axes: Axes, picture: Picture) -> None:
    from matplotlib.lines import Line2D

    jobs = picture.runs[0][1].jobs
    title = f"{picture.load}: {jobs:,} jobs on {picture.capacity:,} processors"
    axes.text(0, 1, title, fontsize=14, fontweight="bold", va="top")
    handles = [
        Line2D([], [], color=colour_of(place), linewidth=3, **dashes_of(place))
        for place in range(len(picture.runs))
    ]
    labels = [_in_words(name, figures) for name, figures in picture.runs]
    axes.legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 0), borderaxespad=0)


def _in_words(name: str, figures: Figures) -> str:
    if figures.mean_wait_s is None or figures.mean_bounded_slowdown is None:
        return f"{name}: nothing finished"
    evictions = f", {figures.evictions:,} evictions" if figures.evictions else ""
    return (
        f"{name}: mean wait {_span(figures.mean_wait_s)},"
        f" mean bounded slowdown {figures.mean_bounded_slowdown:,.1f},"
        f" utilisation {100 * (figures.utilization or 0):.1f} %{evictions}"
    )


def colour_of(place: int) -> str:
    return _COLOURS[place % len(_COLOURS)]


def dashes_of(place: int) -> dict[str, Any]:
    """Return another line pattern for each repetition of the colours."""
    return {"linestyle": _DASHES[place // len(_COLOURS) % len(_DASHES)]}


def _draw_utilisation(axes: Axes, picture: Picture) -> None:
    axes.set_title("Utilisation over time")
    _draw_lines(axes, picture.utilisation, picture, scale=100)
    axes.set_ylim(0, 103)
    axes.set_ylabel("% of the processors")
    _over_time(axes, picture)


def _draw_waiting(axes: Axes, picture: Picture) -> None:
    axes.set_title("Jobs waiting over time")
    _draw_lines(axes, picture.waiting, picture)
    most = [max(line.values, default=0.0) for line in picture.waiting]
    if max(most) > _FAR_APART * max(1.0, min(most)):
        axes.set_yscale("symlog", linthresh=1)
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_ylabel("jobs (logarithmic)")
    else:
        axes.set_ylabel("jobs")
    axes.set_ylim(bottom=0)
    _over_time(axes, picture)


def _draw_lines(
    axes: Axes, lines: Sequence[PlotLine], picture: Picture, *, scale: float = 1.0
) -> None:
    unit, _ = _time_unit(picture)
    for place, line in enumerate(lines):
        axes.plot(
            [at / unit for at in line.at_s],
            [value * scale for value in line.values],
            color=colour_of(place),
            linewidth=1.3,
            alpha=0.9,
            **dashes_of(place),
        )


def _over_time(axes: Axes, picture: Picture) -> None:
    _, name = _time_unit(picture)
    axes.set_xlabel(f"{name} since the first submit")
    axes.margins(x=0.01)
    axes.set_xlim(left=0)


def _time_unit(picture: Picture) -> tuple[int, str]:
    """Return the time unit of all panels in seconds, and its name."""
    longest = max((line.at_s[-1] for line in picture.utilisation if line.at_s), default=0.0)
    for unit, name in ((_DAY, "days"), (_HOUR, "hours"), (_MINUTE, "minutes")):
        if longest >= 3 * unit:
            return unit, name
    return 1, "seconds"


def _draw_waits(axes: Axes, picture: Picture) -> None:
    axes.set_title("Waits by job size: 5, 25, 50, 75 and 95 % of the jobs wait no longer than this")
    names = [name for name, _ in picture.runs]
    width = 0.8 / len(names)
    for at, size in enumerate(picture.sizes):
        for waits in size.runs:
            place = names.index(waits.run)
            _draw_box(axes, waits, at + (place - (len(names) - 1) / 2) * width, width, place)
    axes.set_yscale("symlog", linthresh=_LINEAR_S, linscale=0.4)
    longest = max((waits.high for size in picture.sizes for waits in size.runs), default=0.0)
    ticks = [tick for tick in _WAIT_TICKS_S if tick <= max(1.5 * longest, _MINUTE)]
    axes.set_yticks(ticks, labels=[_span(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(-_LINEAR_S / 8, max(1.3 * longest, _MINUTE))
    axes.set_xticks(range(len(picture.sizes)), labels=[_size_label(s) for s in picture.sizes])
    axes.set_xlim(-0.5, max(len(picture.sizes), 1) - 0.5)
    axes.grid(visible=False, axis="x")
    for between in range(1, len(picture.sizes)):
        axes.axvline(between - 0.5, color="#dddddd", linewidth=0.6)
    axes.set_xlabel("processors of a job, and how many jobs there are of that size")
    axes.set_ylabel("wait (logarithmic)")


def _draw_box(axes: Axes, waits: Waits, at: float, width: float, place: int) -> None:
    colour = colour_of(place)
    axes.bxp(
        [
            {
                "whislo": waits.low,
                "q1": waits.quarter,
                "med": waits.half,
                "q3": waits.three_quarters,
                "whishi": waits.high,
            }
        ],
        positions=[at],
        widths=[0.78 * width],
        manage_ticks=False,
        showfliers=False,
        patch_artist=True,
        capwidths=[0.4 * width],
        boxprops={"facecolor": f"{colour}55", "edgecolor": colour, "linewidth": 1.0},
        whiskerprops={"color": colour, "linewidth": 1.0},
        capprops={"color": colour, "linewidth": 1.0},
        medianprops={"color": colour, "linewidth": 2.6},
    )


def _size_label(size: SizeClass) -> str:
    jobs = max(waits.jobs for waits in size.runs)
    return f"{size.label}\n{jobs:,} {'job' if jobs == 1 else 'jobs'}"


def _draw_tenants(figure: Figure, grid: GridSpec, picture: Picture) -> None:
    lines = [line for one in picture.tenants for line in (*one.held, *one.deserved)]
    most = max((value for line in lines for value in line.values), default=0.0)
    last_row = (len(picture.tenants) - 1) // _TENANTS_BESIDE
    for place, tenant in enumerate(picture.tenants):
        row, column = divmod(place, _TENANTS_BESIDE)
        axes = figure.add_subplot(grid[5 + row, column])
        _draw_tenant(axes, tenant, picture)
        # The same scale for all tenants, so that they can be compared.
        axes.set_ylim(0, min(103.0, max(105 * most, 1.0)))
        _over_time(axes, picture)
        if row < last_row:
            axes.set_xlabel("")
        if column == 0:
            axes.set_ylabel("% of the machine")


def _draw_tenant(axes: Axes, tenant: TenantShares, picture: Picture) -> None:
    axes.set_title(f"{tenant.tenant} (weight {tenant.weight:,})", fontsize=10)
    _draw_lines(axes, tenant.held, picture, scale=100)
    unit, _ = _time_unit(picture)
    for place, line in enumerate(tenant.deserved):
        axes.plot(
            [at / unit for at in line.at_s],
            [100 * value for value in line.values],
            color=colour_of(place),
            linestyle=(0, (2, 1.5)),
            linewidth=1.1,
            alpha=0.8,
        )


def _span(seconds: float) -> str:
    return describe_age(round(seconds) * 1000)


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


def drawn_gpus(title: str, runs: Sequence[GpuPicture], form: str) -> bytes:
    """Return the picture as `png`, `svg` or `pdf`. `runs` is not empty."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    height = _HEAD_INCHES + _RUN_INCHES * len(runs) + 3 * _PANEL_INCHES
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
        _draw_gpu_head(figure, title, runs)
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


def _draw_gpu_head(figure: Figure, title: str, runs: Sequence[GpuPicture]) -> None:
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
