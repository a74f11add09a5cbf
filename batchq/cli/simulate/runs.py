"""The inputs and runs of a simulation: files, requested runs, progress, and the report.

Input and output files are checked before the work, and outputs are written whole or not at all: a
long run must not end in "no such folder", and Ctrl-C must not leave half a file.

Logs and tables of pods share how runs are requested, shown and compared. click collects the values
of --policy, --placement and --config in a tuple each; this module keeps their common order.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

import click
from msgspec import Struct

from batchq.api.notation import describe_age, nearest, shown
from batchq.api.objects import Strategy
from batchq.cli.config import checked_config
from batchq.cli.output import Interrupted, echo, one_line
from batchq.cli.output.forms import show_data
from batchq.cli.output.progress import Tell, progress
from batchq.config import SchedulerConfig
from batchq.config.documents import MOST_BYTES, read_bounded
from batchq.errors import BatchqError, InvalidInput, UsageError
from batchq.lab.gpu_usage import PLACEMENTS
from batchq.lab.traces import DEFAULT_POLICY, POLICIES, POLICY_CONFIG

#: The formats of plots, by the file's suffix.
PLOT_FORMATS = ("png", "svg", "pdf")


def check_output(path: Path, option: str, *, inputs: Sequence[Path] = ()) -> None:
    """Check that a file can be written, so that an error is noticed before a long run.

    Raises InvalidInput if it cannot, UsageError if the file is also read.
    """
    try:
        _check_place(path, option, inputs)
    except OSError as error:
        # A folder that this user may not enter, or a name that is too long.
        raise _unwritable(path, option, error.strerror) from None


def _check_place(path: Path, option: str, inputs: Sequence[Path]) -> None:
    folder = path.resolve().parent
    if path.is_dir():
        raise InvalidInput(f"{option} {path}: expected a file to write, found a folder")
    if not folder.is_dir():
        what = (
            "a folder that does not exist" if not folder.exists() else "something that is no folder"
        )
        raise InvalidInput(f"{option} {path}: the file cannot be written: it is in {what}")
    if any(path.resolve() == read.resolve() for read in inputs):
        raise UsageError(f"{option} {path}: that file is read, and would be overwritten")
    if path.exists() and not os.access(path, os.W_OK):
        raise _unwritable(path, option, "Permission denied")
    if not _is_special(path):
        # Permissions do not show that a file system is read-only.
        _beside(path).unlink()


def check_plot(path: Path, *, inputs: Sequence[Path] = ()) -> None:
    """Check --plot, as `check_output` does, and that matplotlib is installed.

    Raises UsageError for another suffix, BatchqError if matplotlib is missing.
    """
    if path.suffix[1:].lower() not in PLOT_FORMATS:
        ends = ", ".join(f".{name}" for name in PLOT_FORMATS)
        raise UsageError(f"--plot {path}: expected a name that ends in one of {ends}")
    try:
        import_module("matplotlib")
    except ImportError:
        raise BatchqError(
            "--plot draws with matplotlib, which is not installed",
            hint="pip install 'batchq[plot]'",
        ) from None
    check_output(path, "--plot", inputs=inputs)


def write_whole(path: Path, content: bytes, option: str) -> None:
    """Write a temporary file, then rename it: a reader finds the old content or the new.

    A device or a pipe is written directly. Raises InvalidInput.
    """
    try:
        if _is_special(path):
            path.write_bytes(content)
        else:
            _replace(path.resolve(), content)
    except OSError as error:
        raise _unwritable(path, option, error.strerror) from None


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _unwritable(path: Path, option: str, reason: str | None) -> InvalidInput:
    return InvalidInput(f"{option} {path}: the file cannot be written: {reason or 'no reason'}")


def _replace(path: Path, content: bytes) -> None:
    mode = path.stat().st_mode & 0o777 if path.exists() else _usual_mode()
    beside = _beside(path)
    try:
        beside.write_bytes(content)
        beside.chmod(mode)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    """Create an empty file in the same folder, with a random name, since two runs may overlap."""
    handle, name = tempfile.mkstemp(dir=path.resolve().parent, prefix=f".{path.name[:100]}.")
    os.close(handle)
    return Path(name)


def _usual_mode() -> int:
    """Return the mode of a file opened for writing; `mkstemp` allows only its owner to read it."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


STDIN = "-"
#: Enough to recognise a file. Comments alone may be longer, but those begin with a `;` anyway.
_LOOKED_AT_BYTES = 64 * 1024
_GZIP = b"\x1f\x8b"
_NUMBER = re.compile(rb"-?[0-9]+(\.[0-9]*)?")
_FIELDS_OF_SWF = 18
_HEADING_OF_PODS = b"name,cpu_milli,"


class InputKind(Enum):
    """The kinds of input that can be simulated."""

    WORLD = "a world"
    SWF = "a log in the Standard Workload Format"
    PODS = "a table of pods"


#: Suffixes, in lower case, that determine the kind of a file.
_NAMES = {
    ".swf": InputKind.SWF,
    ".swf.gz": InputKind.SWF,
    ".csv": InputKind.PODS,
    ".csv.gz": InputKind.PODS,
    ".yaml": InputKind.WORLD,
    ".yml": InputKind.WORLD,
    ".json": InputKind.WORLD,
}


class Given(NamedTuple):
    """The input: `source` is its name in messages; `content` is set for a world only."""

    kind: InputKind
    source: str
    path: Path
    content: bytes = b""


def given(word: str) -> Given:
    """Determine the kind of the input; `-` is a world on standard input.

    Raises InvalidInput if it cannot be read, UsageError for a log on standard input, because the
    reader has to rewind a log after detecting compression.
    """
    if word == STDIN:
        text = sys.stdin.buffer.read(MOST_BYTES + 1)
        if text[:2] == _GZIP or _kind_of_lines(text[:_LOOKED_AT_BYTES]) is not InputKind.WORLD:
            raise UsageError(
                "standard input is a log, which can only be read from a file",
                hint="give the file's name: batchq simulate TRACE.swf.gz",
            )
        return Given(InputKind.WORLD, "standard input", Path(word), text)
    path = Path(word)
    try:
        kind = _kind_by_name(path.name) or _kind_of_lines(_beginning(path))
        content = read_bounded(path) if kind is InputKind.WORLD else b""
    except OSError as error:
        named = _kind_by_name(path.name) or InputKind.WORLD
        noun = "world" if named is InputKind.WORLD else "log"
        raise InvalidInput(f"{word}: the {noun} cannot be read: {error.strerror}") from None
    return Given(kind, word, path, content)


def _kind_by_name(name: str) -> InputKind | None:
    lowered = name.lower()
    return next((kind for end, kind in _NAMES.items() if lowered.endswith(end)), None)


def _beginning(path: Path) -> bytes:
    """Return the first bytes of a file, decompressed if necessary.

    Raises InvalidInput if the beginning is damaged, OSError if it cannot be read.
    """
    with path.open("rb") as file:
        first = file.read(_LOOKED_AT_BYTES)
    if first[:2] != _GZIP:
        return first
    try:
        with gzip.open(path, "rb") as packed:
            return packed.read(_LOOKED_AT_BYTES)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise InvalidInput(f"{path}: this gzip file is damaged: {error}") from None


def _kind_of_lines(beginning: bytes) -> InputKind:
    """Determine the kind by the first line that is not empty; the default is a world."""
    first = next((line for line in beginning.splitlines() if line.strip()), b"").strip()
    if first.startswith(_HEADING_OF_PODS):
        return InputKind.PODS
    words = first.split()
    numbers = len(words) == _FIELDS_OF_SWF and all(_NUMBER.fullmatch(word) for word in words)
    return InputKind.SWF if first.startswith(b";") or numbers else InputKind.WORLD


T = TypeVar("T")

#: Parameter -> option, of the options that request a run.
_RUNS = {"policies": "--policy", "placements": "--placement", "configs": "--config"}
#: The key in click's context of the requested runs, in the order of their options.
_ORDER = f"{__name__}.order"


class RequestedRun(NamedTuple):
    """A run as requested: the option, and its value."""

    option: str
    value: str


class RunsInOrder(click.Command):
    """A command that remembers the order of the options that request a run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse twice, the first time only for the order."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        ctx.meta[_ORDER] = [param.name for param in order if param.name in _RUNS]
        return super().parse_args(ctx, args)


def requested_runs(context: click.Context) -> tuple[RequestedRun, ...]:
    """Return the requested runs, in the order of the command line."""
    values = {name: iter(context.params[name]) for name in _RUNS}
    return tuple(
        RequestedRun(_RUNS[name], str(next(values[name]))) for name in context.meta[_ORDER]
    )


#: Each run is a row, a colour, and some minutes.
MOST_RUNS = 20


class Run(Struct, frozen=True, kw_only=True):
    """One run. `strategy` is for queues that do not set one; None leaves them unchanged."""

    name: str
    config: SchedulerConfig
    strategy: Strategy | None = None


def runs_of(asked: Sequence[RequestedRun]) -> tuple[Run, ...]:
    """Return the runs in their order, with unique names.

    Raises UsageError for an unknown policy, InvalidInput for a wrong configuration.
    """
    asked = asked or (RequestedRun("--policy", DEFAULT_POLICY),)
    if len(asked) > MOST_RUNS:
        raise UsageError(f"expected at most {MOST_RUNS} runs in one comparison, found {len(asked)}")
    names = _names(asked)
    return tuple(_run(one, name) for one, name in zip(asked, names, strict=True))


def _run(asked: RequestedRun, name: str) -> Run:
    if asked.option == "--config":
        return Run(name=name, config=checked_config(Path(asked.value)))
    if asked.option == "--placement":
        return Run(name=name, config=PLACEMENTS[asked.value])
    if asked.value not in POLICIES:
        near = nearest(asked.value, POLICIES)
        meant = f"; did you mean {near}?" if near else ""
        raise UsageError(
            f"--policy: expected one of {', '.join(POLICIES)}, found {shown(asked.value)}{meant}"
        )
    return Run(name=name, config=POLICY_CONFIG, strategy=POLICIES[asked.value])


def _names(asked: Sequence[RequestedRun]) -> list[str]:
    """Return the policies' names and the files' base names; repeated names are numbered."""
    names: list[str] = []
    for one in asked:
        plain = Path(one.value).name if one.option == "--config" else one.value
        choices = (plain, *(f"{plain} ({number})" for number in range(2, MOST_RUNS + 1)))
        names.append(next(name for name in choices if name not in names))
    return names


class RunProgress:
    """Passes on the progress of one of `runs`, and remembers it for an interrupt."""

    def __init__(self, run: str, runs: int, before: int, tell: Tell) -> None:
        self._name = f"{run} ({before + 1} of {runs})" if runs > 1 else run
        self.finished = 0
        self._tell = tell

    def __call__(self, finished: int, jobs: int) -> None:
        self.finished = finished
        self._tell(self._name, finished, jobs)


def play_each(
    runs: Sequence[Run],
    play: Callable[[Run, RunProgress], T],
    *,
    noun: str,
    reached: Callable[[int], str],
) -> list[T]:
    """Simulate one run after the other.

    Raises Interrupted, which says what each run had `reached`; `noun` is what a run counts.
    """
    done: list[T] = []
    with progress(noun) as tell:
        for run in runs:
            progressed = RunProgress(run.name, len(runs), len(done), tell)
            try:
                done.append(play(run, progressed))
            except KeyboardInterrupt:
                place = f" ({len(done) + 1} of {len(runs)})" if len(runs) > 1 else ""
                raise Interrupted(
                    f"interrupted in run {run.name}{place}, {reached(progressed.finished)};"
                    " nothing was written"
                ) from None
    return done


Values: TypeAlias = Mapping[str, float | None]


class Figured(Protocol):
    """A run that has ended."""

    @property
    def name(self) -> str:
        """The run's name."""

    def values(self) -> Values:
        """Return every figure by its name; None if it is missing."""

    def data(self) -> dict[str, object]:
        """Return the figures for JSON, and what else JSON has."""


class Destination(NamedTuple):
    """Where results go: the form of the report, and the files for starts and plot."""

    output: str
    starts: Path | None
    plot: Path | None

    @property
    def prints_starts(self) -> bool:
        """Whether the starts replace the report."""
        return self.starts is not None and str(self.starts) == STDIN

    def check(self, inputs: Sequence[Path]) -> None:
        """Check the files before a long run. Raises InvalidInput, UsageError."""
        if self.prints_starts and self.output != "table":
            raise UsageError(
                f"--starts - writes to standard output, but so does -o {self.output}",
                hint="give --starts a file's name, or leave out -o",
            )
        if self.starts is not None and not self.prints_starts:
            check_output(self.starts, "--starts", inputs=inputs)
        if self.plot is not None:
            check_plot(self.plot, inputs=inputs)
            if self.starts is not None and self.plot.resolve() == self.starts.resolve():
                raise UsageError(f"--plot {self.plot}: --starts writes the same file")

    def write(
        self,
        runs: Sequence[Figured],
        *,
        starts: str,
        draw: Callable[[str], bytes],
        title: str,
        notes: Sequence[str],
        table: Iterable[str],
    ) -> None:
        """Write the requested files, and print the report: a `table` under a `title` and `notes`.

        `draw` returns the plot in a format. Raises InvalidInput.
        """
        try:
            if self.starts is not None and not self.prints_starts:
                write_whole(self.starts, starts.encode(), "--starts")
            if self.plot is not None:
                write_whole(self.plot, draw(self.plot.suffix[1:].lower()), "--plot")
        finally:
            # If a file cannot be written after all, the report is printed nevertheless.
            if self.output == "table" and not self.prints_starts:
                echo("\n".join([title, *notes, "", *table]))
            else:
                self._print_data(runs, starts)
                for note in notes:
                    echo(note, err=True)

    def _print_data(self, runs: Sequence[Figured], starts: str) -> None:
        if self.prints_starts:
            echo(starts, nl=False)
        elif self.output == "csv":
            rows = ([one.name, *one.values().values()] for one in runs)
            echo(as_csv(["run", *runs[0].values()], rows), nl=False)
        elif len(runs) == 1:
            show_data(runs[0].data(), "json")
        else:
            show_data({"runs": [{"name": one.name, **one.data()} for one in runs]}, "json")


def as_csv(titles: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return CSV for programs; None is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows(rows)
    return text.getvalue()


#: The longest line; runs that do not fit are in a further block.
_WIDTH = 80
_GAP = 2
_BEST = "*"


class Figure(NamedTuple):
    """A figure of every run: its name and title, how to write it, and which value is the best."""

    name: str
    title: str
    text: Callable[[float], str]
    best: Callable[[Sequence[float]], float] | None = None


def side_by_side(runs: Sequence[Figured], figures: Sequence[Figure]) -> Iterator[str]:
    """Yield lines with a column for each run and a line for each figure; a star marks the best
    value of a line, unless all are equal.
    """
    titles = ["", *(figure.title for figure in figures)]
    columns = _columns(runs, figures)
    starred = any(cell.endswith(_BEST) for column in columns for cell in column)
    first = max(map(len, titles))
    for place, block in enumerate(_blocks(columns, _WIDTH - first)):
        if place:
            yield ""
        widths = [max(map(len, column)) for column in block]
        for line, title in enumerate(titles):
            cells = (column[line].rjust(size) for column, size in zip(block, widths, strict=True))
            yield (" " * _GAP).join((title.ljust(first), *cells)).rstrip()
    if starred:
        yield f"{_BEST} the best of its line"


def _columns(runs: Sequence[Figured], figures: Sequence[Figure]) -> list[list[str]]:
    """Return a column per run, headed by its name; cells are padded if the column has a star."""
    values = [run.values() for run in runs]
    marked = [_marked(figure, [one[figure.name] for one in values]) for figure in figures]
    columns = []
    for place, run in enumerate(runs):
        cells = [one_line(run.name), *(row[place] for row in marked)]
        if len(runs) > 1:
            cells = [cell if cell.endswith(_BEST) else f"{cell} " for cell in cells]
        columns.append(cells)
    return columns


def _marked(figure: Figure, values: Sequence[float | None]) -> list[str]:
    known = [value for value in values if value is not None]
    best = figure.best(known) if figure.best and known and len(set(values)) > 1 else None
    return [
        "-" if value is None else figure.text(value) + (_BEST if value == best else "")
        for value in values
    ]


def _blocks(columns: Sequence[list[str]], room: int) -> Iterator[list[list[str]]]:
    """Group columns that fit side by side, at least one per group."""
    block: list[list[str]] = []
    left = room
    for column in columns:
        size = _GAP + max(map(len, column))
        if block and size > left:
            yield block
            block, left = [], room
        block.append(column)
        left -= size
    yield block


def span(seconds: float) -> str:
    """Return a duration for people: `0s`, `4.5s`, `12m5s`, `2h37m`, `3d4h`."""
    if seconds < 60 and seconds != int(seconds):
        return f"{seconds:.1f}s"
    return describe_age(round(seconds) * 1000)


def whole(value: float) -> str:
    """Return a count for people: `5,000`."""
    return f"{value:,.0f}"


def percent(value: float) -> str:
    """Return a share for people: `12.3 %`."""
    return f"{100 * value:.1f} %"


def numbered(count: int, noun: str) -> str:
    """Return e.g. `1 job` or `5,000 jobs`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
