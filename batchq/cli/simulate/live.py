"""`batchq simulate --from-live`: a look ahead from the state of the live server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource
from msgspec import field

from batchq.api.intents import Eviction
from batchq.api.lifecycle import TERMINAL, PodGroupPhase
from batchq.api.notation import (
    counted,
    describe_age,
    format_duration,
    format_instant,
    parse_duration,
)
from batchq.api.objects import API_VERSION
from batchq.cli.output import Table, echo, on_interrupt, show_section, show_table
from batchq.cli.output.forms import Length, Quantities, Row, Time, output_of
from batchq.cli.output.options import DURATION, Globals, PositiveNumber
from batchq.cli.output.progress import Tell as Shown
from batchq.cli.output.progress import progress
from batchq.cli.output.tables import lost_text
from batchq.cli.output.values import warn_no_leader
from batchq.cli.simulate.runs import check_output, write_whole
from batchq.errors import UsageError
from batchq.lab.simulation.report import (
    ALL,
    Future,
    GroupFate,
    GroupFuture,
    Lasting,
    Present,
    QueueFigures,
    Stopped,
    WhatIf,
    WorldReason,
)

if TYPE_CHECKING:
    from batchq.client.outcomes import TrialScheduler
    from batchq.config import SchedulerConfig
    from batchq.lab.simulation.look_ahead import Tell


F = TypeVar("F", bound=Callable[..., Any])

#: The name of the configuration that the live scheduler uses.
LIVE = "live"
#: Parameter -> option, of the options that need --from-live.
_OF_LIVE = {
    "until": "--until",
    "assume_runtime": "--assume-runtime",
    "runtime_fraction": "--runtime-fraction",
    "differences": "--differences",
    "save": "--save",
}
#: Other parameters that may be combined with --from-live.
_ALSO = frozenset({"from_live", "configs", "output"})


class LiveRequest(NamedTuple):
    """The options of a look ahead; durations are in milliseconds."""

    configs: tuple[Path, ...]
    until_ms: int | None
    assumed_ms: int | None
    thousandths: int
    differences: bool
    save: Path | None
    output: str


def live_options(command: F) -> F:
    """Add the options of --from-live."""
    options = (
        click.option(
            "--from-live",
            is_flag=True,
            help="Begin with the state of the live server, which is read and not changed; simulate"
            " it under the live configuration and, side by side, under each --config.",
        ),
        click.option(
            "--until",
            type=DURATION,
            help="--from-live only: how far to look ahead, as in 6h.  [default: until nothing can"
            " change any more]",
        ),
        click.option(
            "--assume-runtime",
            type=DURATION,
            help="--from-live only: how long groups without a walltime run.  [default: for ever]",
        ),
        click.option(
            "--runtime-fraction",
            type=PositiveNumber(1),
            metavar="F",
            help="--from-live only: the fraction of their walltime that groups run (of the rest, if"
            " they run already).  [default: 1]",
        ),
        click.option(
            "--differences",
            is_flag=True,
            help="--from-live only: list only groups whose outcome differs.",
        ),
        click.option(
            "--save",
            type=click.Path(path_type=Path),
            metavar="FILE.yaml",
            help="--from-live only: write the live state as a world that can be edited and"
            " simulated; commands are left out.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def live_request(parameters: Mapping[str, Any]) -> LiveRequest | None:
    """Return the options of a look ahead; None without --from-live.

    Raises UsageError for options that exclude each other, and if no input is given.
    """
    if not parameters["from_live"]:
        for name, option in _OF_LIVE.items():
            if parameters[name] not in (None, False):
                raise UsageError(f"{option} needs --from-live")
        if parameters["what"] is None:
            raise UsageError("expected WORLD, TRACE or --from-live, found none of them")
        return None
    if parameters["what"] is not None:
        raise UsageError(
            f"--from-live begins with the live state, not with {parameters['what']}",
            hint="leave one of them out",
        )
    for name, value in parameters.items():
        if name not in _OF_LIVE and name not in _ALSO and _is_given(name, value):
            raise UsageError(f"{_typed(name)} cannot be combined with --from-live")
    if parameters["output"] == "csv":
        raise UsageError("-o csv is for a log; --from-live has -o table and -o json")
    fraction = parameters["runtime_fraction"]
    return LiveRequest(
        configs=parameters["configs"],
        until_ms=_ms(parameters["until"]),
        assumed_ms=_ms(parameters["assume_runtime"]),
        thousandths=1000 if fraction is None else max(1, round(fraction * 1000)),
        differences=parameters["differences"],
        save=parameters["save"],
        output=parameters["output"],
    )


def _ms(duration: str | None) -> int | None:
    return None if duration is None else parse_duration(duration)


def _is_given(name: str, value: object) -> bool:
    """Return whether an option was typed; options of logs or worlds may have defaults."""
    source = click.get_current_context().get_parameter_source(name)
    return value not in (None, False, ()) and source is not ParameterSource.DEFAULT


def _typed(name: str) -> str:
    """Return the option of a parameter."""
    context = click.get_current_context()
    return next(param.opts[-1] for param in context.command.params if param.name == name)


class _AssumptionsRow(Row, frozen=True):
    runtime_fraction: float
    assumed_ms: Length | None = field(name="assumedRuntime")
    endless: int


class _ConfigurationRow(Row, frozen=True):
    name: str
    stopped: Stopped
    stopped_at: Time
    sessions: int


class _FutureRow(Row, frozen=True):
    configuration: str
    starts_at: Time | None
    starts_in_seconds: float | None
    starts_again_at: tuple[str, ...]
    ends_at: Time | None
    phase: PodGroupPhase
    ending: str
    evictions: int
    waits_for: tuple[WorldReason, ...]
    unanswered: tuple[str, ...] = field(name="unansweredChecks")


class _FateRow(Row, frozen=True):
    name: str
    namespace: str
    queue: str
    phase: PodGroupPhase
    started_at: Time | None
    differs: bool
    futures: tuple[_FutureRow, ...]


class _EvictionRow(Row, frozen=True):
    """A simulated eviction; `lost` is in units of the resource times seconds."""

    configuration: str
    at: Time
    in_seconds: float
    key: str = field(name="podGroup")
    queue: str
    whole: bool
    pods: int
    by: str | None
    action: str | None
    reason: str
    lost: Quantities


class _FiguresRow(Row, frozen=True):
    """The sums of a queue under one configuration; a queue of null is all of them."""

    queue: str | None
    configuration: str
    waiting: int
    started: int
    median_wait_seconds: float | None
    evictions: int
    lost: Quantities
    last_end_at: Time | None
    unended: int


class _WhatIfRow(Row, frozen=True):
    api_version: str
    kind: str
    at: Time
    until: Length | None
    assumptions: _AssumptionsRow
    configurations: tuple[_ConfigurationRow, ...]
    pod_groups: tuple[_FateRow, ...]
    evictions: tuple[_EvictionRow, ...]
    queues: tuple[_FiguresRow, ...]


def as_data(
    found: WhatIf, lasting: Lasting, *, until_ms: int | None, differences: bool
) -> _WhatIfRow:
    """Return the JSON form of a look ahead."""
    each = list(zip(found.names, found.futures, strict=True))
    return _WhatIfRow(
        api_version=API_VERSION,
        kind="WhatIf",
        at=found.at,
        until=until_ms,
        assumptions=_AssumptionsRow(
            runtime_fraction=lasting.thousandths / 1000,
            assumed_ms=lasting.assumed_ms,
            endless=found.endless,
        ),
        configurations=tuple(_ConfigurationRow.of(future, name=name) for name, future in each),
        pod_groups=tuple(
            _fate_row(found, fate) for fate in found.fates if fate.differs or not differences
        ),
        evictions=tuple(
            _EvictionRow.of(
                one,
                configuration=name,
                in_seconds=_seconds(found, one.at),
                pods=len(one.pods),
                by=one.by or None,
                action=one.action or None,
            )
            for name, future in each
            for one in future.evictions
        ),
        queues=tuple(
            _FiguresRow.of(
                one,
                queue=None if one.queue == ALL else one.queue,
                configuration=name,
                median_wait_seconds=(
                    None if one.median_wait_ms is None else one.median_wait_ms / 1000
                ),
            )
            for name, figures in zip(found.names, found.figures, strict=True)
            for one in figures
        ),
    )


def _fate_row(found: WhatIf, fate: GroupFate) -> _FateRow:
    namespace, _, name = fate.present.key.partition("/")
    futures = tuple(
        _FutureRow.of(
            one,
            configuration=configuration,
            starts_in_seconds=None if one.starts_at is None else _seconds(found, one.starts_at),
            starts_again_at=tuple(format_instant(at) for at in one.starts[1:]),
        )
        for configuration, one in zip(found.names, fate.futures, strict=True)
    )
    return _FateRow.of(
        fate.present, name=name, namespace=namespace, differs=fate.differs, futures=futures
    )


def _seconds(found: WhatIf, at: int) -> float:
    return (at - found.at) / 1000


def show_tables(found: WhatIf, *, differences: bool) -> None:
    """Print each group, the victims, the groups that do not start and why, and the sums."""
    fates = [fate for fate in found.fates if fate.differs or not differences]
    if fates:
        show_table(_groups(found, fates))
    elif differences:
        echo("The outcome is the same for all groups")
    else:
        echo("No group waits or runs")
    show_section("Evicted", _evicted(found))
    show_section("Do not start", _held_back(found, fates))
    show_section("Sums", _sums(found))


def notes(found: WhatIf, *, assumed_ms: int | None) -> Iterator[str]:
    """Yield the assumptions, and where a look ahead stopped early, one line each."""
    one = found.endless == 1
    who = f"note: {found.endless} {'group has' if one else 'groups have'} no walltime and"
    if found.endless and assumed_ms is None:
        yield f"{who} {'never ends' if one else 'never end'} here; see --assume-runtime"
    elif found.endless and assumed_ms is not None:
        yield f"{who} {'is' if one else 'are'} assumed to run for {format_duration(assumed_ms)}"
    for name, future in zip(found.names, found.futures, strict=True):
        if sentence := _stopped(future):
            yield f"note: {name}: {sentence}"
        if future.refused:
            writes = counted(future.refused, "write")
            yield f"warning: {name}: {writes} of the simulated sessions were refused"


def _stopped(future: Future) -> str:
    ahead = describe_age(future.stopped_at - future.began_at)
    match future.stopped:
        case Stopped.IDLE:
            return f"stopped {ahead} ahead: nothing ends any more, and nothing starts for a day"
        case Stopped.TOO_FAR:
            sessions = counted(future.sessions, "session")
            return f"stopped {ahead} ahead after {sessions}, before the end; see --until"
        case _:
            return ""


def _groups(found: WhatIf, fates: Sequence[GroupFate]) -> Table:
    alone = len(found.names) == 1
    titles = ["POD GROUP", "QUEUE", "NOW"]
    titles += ["STARTS", "ENDS"] if alone else [f"STARTS ({found.names[0]})"]
    for name in found.names[1:]:
        titles += [f"STARTS ({name})", "DIFFERENCE"]
    in_order = sorted(fates, key=_by_start)
    return Table(tuple(titles), tuple(_row(found, fate, alone=alone) for fate in in_order))


def _by_start(fate: GroupFate) -> tuple[int, int, str]:
    """Order running groups first, then groups that start, then those that do not."""
    present, first = fate.present, fate.futures[0]
    if not present.waits:
        return (0, 0, present.key)
    if first.starts_at is None:
        return (2, 0, present.key)
    return (1, first.starts_at, present.key)


def _row(found: WhatIf, fate: GroupFate, *, alone: bool) -> tuple[str, ...]:
    present, first = fate.present, fate.futures[0]
    cells = [present.key, present.queue, str(present.phase), _start(found, present, first)]
    if alone:
        cells.append(_end(found, first))
    for other in fate.futures[1:]:
        cells += [_start(found, present, other), _difference(first, other)]
    return tuple(cells)


def _start(found: WhatIf, present: Present, future: GroupFuture) -> str:
    """Return `in 2h5m`, `now`, `runs`, `runs; evicted, again in 1h`, or `no`."""
    evicted = [one for one in _of(found, future) if one.whole]
    if present.waits:
        if future.starts_at is None:
            return str(future.phase) if future.phase in TERMINAL else "no"
        return _ahead(found, future.starts_at) + ("; evicted" if evicted else "")
    if not evicted:
        return "runs"
    again = "" if future.starts_at is None else f", again {_ahead(found, future.starts_at)}"
    return f"runs; evicted{again}"


def _of(found: WhatIf, future: GroupFuture) -> list[Eviction]:
    if not future.evictions:
        return []
    [mine] = [one for one in found.futures if one.groups[future.key] is future]
    return [one for one in mine.evictions if one.key == future.key]


def _end(found: WhatIf, future: GroupFuture) -> str:
    if future.ends_at is None:
        return ""
    failed = "" if future.phase == "Completed" else f" ({future.phase})"
    return _ahead(found, future.ends_at) + failed


def _ahead(found: WhatIf, at: int) -> str:
    seconds = round((at - found.at) / 1000)
    return f"in {describe_age(seconds * 1000)}" if seconds > 0 else "now"


def _difference(first: GroupFuture, other: GroupFuture) -> str:
    """Return the most important difference between two futures of a group."""
    if first.evictions != other.evictions:
        return "evicted" if other.evictions > first.evictions else "not evicted"
    if first.starts_at != other.starts_at:
        return _shift(first.starts_at, other.starts_at, "starts", "does not start", "")
    if first.ends_at != other.ends_at:
        return _shift(first.ends_at, other.ends_at, "ends", "does not end", "ends ")
    return str(other.phase) if first.phase != other.phase else ""


def _shift(first_at: int | None, other_at: int | None, does: str, does_not: str, verb: str) -> str:
    if other_at is None:
        return does_not
    if first_at is None:
        return does
    age = describe_age(abs(other_at - first_at))
    return f"{verb}{age} {'later' if other_at > first_at else 'earlier'}"


def _evicted(found: WhatIf) -> list[tuple[str, ...]]:
    rows = [
        (
            name,
            _ahead(found, eviction.at),
            eviction.key,
            eviction.queue,
            _by(eviction),
            ("all of it, " if eviction.whole else "") + counted(len(eviction.pods), "pod"),
            lost_text(eviction.lost) or "nothing",
        )
        for name, future in zip(found.names, found.futures, strict=True)
        for eviction in future.evictions
    ]
    titles = ("UNDER", "WHEN", "POD GROUP", "QUEUE", "BY", "GIVES", "WORK LOST")
    return [titles, *rows] if rows else []


def _by(eviction: Eviction) -> str:
    """Return `default/big (preempt)`, or the reason if there is no preemptor."""
    return f"{eviction.by} ({eviction.action})" if eviction.by else eviction.reason


def _held_back(found: WhatIf, fates: Sequence[GroupFate]) -> list[tuple[str, ...]]:
    """Return the groups that do not start, with one line per cause and the configurations."""
    rows: list[tuple[str, ...]] = []
    for fate in fates:
        under: dict[str, list[str]] = {}
        for name, future in zip(found.names, fate.futures, strict=True):
            if why := why_not(fate.present, future):
                under.setdefault(why, []).append(name)
        for why, names in under.items():
            rows.append((fate.present.key, ", ".join(names), why))
    return [("POD GROUP", "UNDER", "WHY"), *rows] if rows else []


def why_not(present: Present, future: GroupFuture) -> str:
    """Return why a waiting group does not start; '' if it does or need not."""
    if not present.waits or future.starts:
        return ""
    if future.phase in TERMINAL:
        return f"ends as {future.phase} ({future.ending})"
    if future.unanswered:
        checks = "check" if len(future.unanswered) == 1 else "checks"
        return f"waits for {checks} {', '.join(future.unanswered)}, not answered in a simulation"
    if not future.waits_for:
        return "its turn has not come" if future.phase == "Pending" else f"is {future.phase}"
    first = future.waits_for[0]
    return f"{first.reason}: {first.message}" if first.message else first.reason


def _sums(found: WhatIf) -> list[tuple[str, ...]]:
    """Return the sums of each queue under each configuration, and last those of all queues."""
    if not found.fates:
        return []
    titles = ("QUEUE", "UNDER", "START", "MEDIAN WAIT", "EVICTIONS", "WORK LOST", "LAST END")
    queues = [*(one.queue for one in found.figures[0] if one.queue != ALL), ALL]
    if len(queues) == 2:
        # With one queue, the sum over all queues is the same.
        queues.remove(ALL)
    rows = [
        _sum_row(found, name, next(one for one in figures if one.queue == queue))
        for queue in queues
        for name, figures in zip(found.names, found.figures, strict=True)
    ]
    return [titles, *rows]


def _sum_row(found: WhatIf, name: str, figures: QueueFigures) -> tuple[str, ...]:
    wait = figures.median_wait_ms
    return (
        figures.queue or "(all)",
        name,
        f"{figures.started} of {figures.waiting}",
        "" if wait is None else describe_age(wait),
        str(figures.evictions),
        lost_text(figures.lost),
        _last_end(found, figures),
    )


def _last_end(found: WhatIf, figures: QueueFigures) -> str:
    """Return `in 5h`, or `2 go on` for groups without an end."""
    on = f"{figures.unended} {'goes' if figures.unended == 1 else 'go'} on"
    if figures.last_end_at is None:
        return on if figures.unended else ""
    ahead = _ahead(found, figures.last_end_at)
    return f"{ahead}; {on}" if figures.unended else ahead


def simulate_live(shared: Globals, asked: LiveRequest) -> None:
    """Look ahead and print the report to stdout, notes to stderr.

    Raises InvalidInput for a wrong configuration, StoreUnavailable.
    """
    from batchq.lab.simulation.report import Lasting, compared

    others = _configurations(asked.configs)
    if asked.save is not None:
        check_output(asked.save, "--save", inputs=asked.configs)
    with shared.connect() as client:
        deciding = client.deciding()
        unled = client.schedulers().unled
    lasting = Lasting(thousandths=asked.thousandths, assumed_ms=asked.assumed_ms)
    if asked.save is not None:
        _save(deciding, lasting, asked.save)
    with on_interrupt("interrupted; nothing was changed"):
        futures = _futures(asked, deciding, lasting, others)
    _show(asked, compared(deciding.session(), futures), lasting)
    warn_no_leader(unled)


def _futures(
    asked: LiveRequest,
    deciding: TrialScheduler,
    lasting: Lasting,
    others: Mapping[str, SchedulerConfig],
) -> dict[str, Future]:
    """Return the futures by the name of their configuration, the live one first."""
    from batchq.assembly import assemble
    from batchq.lab.simulation.look_ahead import look_ahead

    schedulers = {LIVE: deciding.scheduler}
    schedulers |= {name: assemble(config) for name, config in others.items()}
    with progress("groups") as tell:
        return {
            name: look_ahead(
                deciding.snapshot,
                scheduler,
                now_ms=deciding.now_ms,
                lasting=lasting,
                until_ms=asked.until_ms,
                tell=_telling(deciding, name, tell),
            )
            for name, scheduler in schedulers.items()
        }


def _show(asked: LiveRequest, found: WhatIf, lasting: Lasting) -> None:
    differences = asked.differences
    value = as_data(found, lasting, until_ms=asked.until_ms, differences=differences)
    output_of(asked.output).page(value, lambda: show_tables(found, differences=differences))
    for note in notes(found, assumed_ms=asked.assumed_ms):
        echo(note, err=True)


def _save(deciding: TrialScheduler, lasting: Lasting, file: Path) -> None:
    """Write the live state as a world. Raises InvalidInput if the file cannot be written."""
    from batchq.config.documents import print_documents
    from batchq.lab.simulation.look_ahead import as_world

    text = print_documents(as_world(deciding.session(), lasting))
    write_whole(file, text.encode(), "--save")
    echo(f"{file} has the live state; `batchq simulate {file}` simulates it", err=True)


def _configurations(configs: Sequence[Path]) -> dict[str, SchedulerConfig]:
    """Return the configurations by file name, or by path if the names repeat.

    Raises InvalidInput.
    """
    from batchq.cli.config import checked_config

    names = [path.name for path in configs]
    found = {}
    for path in configs:
        alone = names.count(path.name) == 1 and path.name != LIVE
        found[path.name if alone else str(path)] = checked_config(path)
    return found


def _telling(deciding: TrialScheduler, name: str, shown: Shown) -> Tell:
    """Return a function that shows the progress of a future."""
    count = sum(one.status.phase not in TERMINAL for one in deciding.snapshot.groups)

    def tell(ended: int, now_ms: int) -> None:
        shown(name, ended, count, f"{describe_age(now_ms - deciding.now_ms)} ahead")

    return tell
