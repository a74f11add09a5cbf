"""Files of one JSON object a line, as `submit --from-file` reads them: a line at a time, and twice.

A line is either the fields of a request, called as the options of `batchq submit` are, or a whole
PodGroup manifest. What cannot be read says on which line it stands.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Event, current_thread, main_thread
from time import monotonic
from typing import IO, Any, NamedTuple

import click
import msgspec

from batchq.api import manifest
from batchq.api.lifecycle import TERMINAL
from batchq.api.notation import counted, shown
from batchq.api.objects import PodGroup, key_of, kind_of
from batchq.api.times import describe_age
from batchq.cli.output.options import Globals
from batchq.cli.output.terminal import echo
from batchq.cli.output.trouble import EXIT_GROUP_CANCELLED, EXIT_GROUP_FAILED, Interrupted
from batchq.cli.output.values import seconds_of
from batchq.cli.request_options import OF_REQUEST
from batchq.client import Client, with_working_dir
from batchq.client.request import marked
from batchq.client.requests import Effect
from batchq.client.submission import Accepted, Outcome, Submission
from batchq.errors import BatchqError, InvalidInput, NotFound, Rejected, UsageError, WaitTimedOut

STDIN = "-"
#: More than any group may have; what is longer is passed over up to its end.
MOST_LINE_BYTES = 4 * 1024 * 1024
#: What is piped in is kept in memory up to here, then in a temporary file.
_MOST_KEPT_BYTES = 16 * 1024 * 1024
_BLOCK_BYTES = 1024 * 1024
_BOM = b"\xef\xbb\xbf"
#: What options say of whole manifests, too.
_OF_MANIFESTS = ("namespace", "queue", "priority_class", "labels", "annotations", "working_dir")

_decode = msgspec.json.Decoder().decode


class FileLine(NamedTuple):
    """What stands on a line: something to submit, or why it cannot be."""

    number: int
    request: Mapping[str, Any] | PodGroup | None
    error: BatchqError | None = None


class FileLines:
    """A file, or standard input, to be read more than once; a context manager."""

    def __init__(self, name: str, defaults: Mapping[str, Any], given: Mapping[str, str]) -> None:
        """`defaults` hold for every line; `given` names the options that they come from.

        Raises InvalidInput for a file that cannot be read.
        """
        self.source = "standard input" if name == STDIN else name
        self._defaults = defaults
        self._folder = str(defaults["working_dir"])
        self._for_commands = next(
            (option for field, option in given.items() if field not in _OF_MANIFESTS), ""
        )
        try:
            self._file = _opened(name)
        except OSError as error:
            raise InvalidInput(f"{name}: the file cannot be read: {error.strerror}") from None

    def __enter__(self) -> FileLines:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def count(self) -> int:
        """How many lines there are, those with nothing on them too."""
        self._file.seek(0)
        found, last = 0, b"\n"
        while block := self._file.read(_BLOCK_BYTES):
            found, last = found + block.count(b"\n"), block[-1:]
        return found + (last != b"\n")

    def read(self) -> Iterator[FileLine]:
        """Every line that says something, from the first on."""
        self._file.seek(0)
        for number, text in enumerate(_texts(self._file), start=1):
            if len(text) > MOST_LINE_BYTES:
                yield FileLine(number, None, self._wrong(number, _TOO_LONG))
                continue
            if number == 1:
                text = text.removeprefix(_BOM)
            if not text or text.isspace():
                continue
            try:
                yield FileLine(number, self._request(_object(text)))
            except InvalidInput as error:
                yield FileLine(number, None, self.at(number, error))

    def at(self, number: int, error: BatchqError) -> BatchqError:
        """The same error, with the place in front; the command line itself is right."""
        sort = InvalidInput if isinstance(error, UsageError) else type(error)
        return sort(f"{self.source}, line {number}: {error.message}", hint=error.hint)

    def _wrong(self, number: int, sentence: str) -> BatchqError:
        return self.at(number, InvalidInput(sentence))

    def _request(self, data: dict[str, Any]) -> Mapping[str, Any] | PodGroup:
        if "apiVersion" in data or "kind" in data:
            return self._group(data)
        folder = data.get("working_dir", data.get("working-dir"))
        if isinstance(folder, str) and folder and not folder.startswith("/"):
            return {**data, "working_dir": f"{self._folder}/{folder}"}
        return data

    def _group(self, data: dict[str, Any]) -> PodGroup:
        if self._for_commands:
            raise InvalidInput(
                f"{self._for_commands} says how to run a command, and a manifest says that itself",
                hint="leave it out, or put it into the lines",
            )
        # A status is batchq's to write.
        data = {field: value for field, value in data.items() if field != "status"}
        _set(data, "metadata", "namespace", self._defaults.get("namespace"))
        _set(data, "spec", "queue", self._defaults.get("queue"))
        _set(data, "spec", "priorityClassName", self._defaults.get("priority_class"))
        item = manifest.decode(data)
        if not isinstance(item, PodGroup):
            raise InvalidInput(
                f"kind: expected PodGroup, found {kind_of(item)}",
                hint="apply other objects first: `batchq apply -f FILE`",
            )
        labels = self._defaults.get("labels", {}), self._defaults.get("annotations", {})
        return marked(with_working_dir([item], self._folder)[0], *labels)


_TOO_LONG = f"expected at most {MOST_LINE_BYTES} bytes, found more"


def _opened(name: str) -> IO[bytes]:
    if name != STDIN:
        file = Path(name).open("rb")  # noqa: SIM115 - Lines closes it
        if file.seekable():
            return file
        with file:
            return _spooled(file)
    return _spooled(sys.stdin.buffer)


def _spooled(file: IO[bytes]) -> IO[bytes]:
    """What comes out of a pipe, kept: it comes once."""
    kept = tempfile.SpooledTemporaryFile(max_size=_MOST_KEPT_BYTES)  # noqa: SIM115 - Lines closes it
    shutil.copyfileobj(file, kept, _BLOCK_BYTES)
    return kept


def _texts(file: IO[bytes]) -> Iterator[bytes]:
    """Line by line; of one that is too long no more than its beginning."""
    while text := file.readline(MOST_LINE_BYTES + 2):
        rest = text
        while not rest.endswith(b"\n") and len(rest) > MOST_LINE_BYTES:
            rest = file.readline(MOST_LINE_BYTES + 2)
        yield text.rstrip(b"\r\n")


def _object(text: bytes) -> dict[str, Any]:
    try:
        data = _decode(text)
    except msgspec.DecodeError as error:
        raise InvalidInput(
            f"expected one JSON object, found what is no JSON: {_first_small(str(error))}",
            hint='every line is an object of its own, as in {"command": ["true"], "cpus": 1}',
        ) from None
    except UnicodeDecodeError:
        raise InvalidInput("expected text in UTF-8, found bytes that are none") from None
    except RecursionError:
        raise InvalidInput("expected one JSON object, found one nested too deeply") from None
    if not isinstance(data, dict):
        raise InvalidInput(
            f"expected one JSON object, found {shown(data)}",
            hint='every line is an object of its own, as in {"command": ["true"], "cpus": 1}',
        )
    return data


def _first_small(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:] if sentence[1:2].islower() else sentence


def _set(data: dict[str, Any], part: str, field: str, value: object) -> None:
    """Say it in a part of a manifest that is silent about it."""
    inside = data.get(part)
    if value is None or not (isinstance(inside, dict) or inside is None):
        return
    if inside is None or inside.get(field) is None:
        data[part] = {**(inside or {}), field: value}


#: Up to which line it has come.
Tell = Callable[[int], None]

#: A bar is drawn no more often.
_BETWEEN_DRAWINGS_S = 0.1


@contextmanager
def progress(doing: str, lines: int, *, color: bool) -> Iterator[Tell]:
    """Something to tell; of `lines` in all."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        from batchq.cli.simulate.job_logs import ProgressLines

        said = ProgressLines(monotonic, lambda line: echo(line, err=True), "lines")
        yield lambda done: said(doing, done, lines)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}/s"),
        TimeRemainingColumn(),
    )
    started = drawn_at = monotonic()
    with Progress(
        *columns, console=Console(stderr=True, no_color=not color), transient=True
    ) as bar:
        task = bar.add_task(doing, total=lines, rate="-")

        def tell(done: int) -> None:
            nonlocal drawn_at
            now = monotonic()
            if now - drawn_at >= _BETWEEN_DRAWINGS_S:
                drawn_at = now
                bar.update(task, completed=done, rate=f"{done / (now - started):,.0f}")

        yield tell


#: So many wrong lines are told on stderr one by one; -o json tells all.
MOST_TOLD = 20
_MADE_BEFORE_COLLECTING = 50_000
#: Options that say of one group what many cannot share.
_OF_ONE = {
    "filename": "-f",
    "name": "--name",
    "progress": "--progress",
    "exit_code": "--exit-code",
}


def submit_lines(shared: Globals, command: tuple[str, ...], options: dict[str, Any]) -> int | None:
    """Submit the groups of `options["from_file"]`; the exit code.

    Raises UsageError, InvalidInput, and what the first line that was refused was refused with.
    """
    _check(command, options)
    defaults, given = _defaults(command, options)
    with (
        FileLines(options["from_file"], defaults, given) as lines,
        shared.connect() as client,
        _seldom_collecting(),
    ):
        run = _Run(client, shared, lines, defaults, options)
        run.check()
        run.submit()
        if options["wait"] and not options["dry_run"] and run.keys:
            return _wait(client, run.keys, seconds_of(options["timeout"]))
    return None


class _Run:
    """One file on its way into the queue; knows what every line came to, and has said so."""

    def __init__(
        self,
        client: Client,
        shared: Globals,
        lines: FileLines,
        defaults: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        self.keys: list[str] = []
        self._client = client
        self._shared = shared
        self._lines = lines
        self._defaults = defaults
        self._options = options
        self._total = 0
        #: Lines that were read and of which nothing has been said yet.
        self._pending: deque[FileLine] = deque()
        self._counts: Counter[str] = Counter()
        self._first_error: BatchqError | None = None
        self._last_number = 0
        #: The place among the requests of the last line that was shown.
        self._place = -1

    # --- first --------------------------------------------------------------------------------

    def check(self) -> None:
        """Read all lines, and raise what is wrong with them; with --keep-going count them only."""
        self._total = self._lines.count()
        if self._options["keep_going"]:
            return
        check, found = self._client.checker(**self._defaults), False
        with self._interruptible(), self._progress("checking") as tell:
            for line in self._lines.read():
                found = True
                error = line.error
                if line.request is not None and (problem := check(line.request)) is not None:
                    error = self._lines.at(line.number, problem)
                if error is not None:
                    self._tell_refused(line, error)
                tell(line.number)
        if not found:
            raise self._empty()
        if self._first_error is not None:
            raise self._refusal(
                "wrong",
                "nothing was submitted; mend what is wrong, or submit the rest with --keep-going",
            )

    # --- then ---------------------------------------------------------------------------------

    def submit(self) -> None:
        """Submit what can be, say what each line came to, and raise if one was refused."""
        started = monotonic()
        submission = self._client.submit_many(
            self._requests(),
            existing="keep" if self._options["skip_existing"] else "refuse",
            keep_going=self._options["keep_going"],
            dry_run=self._options["dry_run"],
            **self._defaults,
        )
        try:
            with (
                self._client.patiently(),
                self._progress(self._doing()) as tell,
                _stoppable(submission) as stopped,
            ):
                for outcome in submission:
                    tell(self._show(outcome))
                    if stopped.is_set():
                        raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise self._interrupted(submission) from None
        except BatchqError as error:
            self._tell(self._summary(started))
            error.hint = error.hint or self._go_on()
            raise
        self._show_rest()
        if not self._counts:
            raise self._empty()
        self._tell(self._summary(started))
        if self._first_error is not None:
            kept = self._options["keep_going"]
            hint = "" if kept else "its batch is done, those after it are not; --keep-going goes on"
            raise self._refusal("refused", hint)

    def _requests(self) -> Iterator[Any]:
        for line in self._lines.read():
            self._pending.append(line)
            if line.error is None:
                yield line.request
            elif not self._options["keep_going"]:
                # It was right a moment ago: the file has changed.
                return

    def _show(self, outcome: Outcome) -> int:
        """Say what its line came to, and those before it that could not be read."""
        while True:
            line = self._pending.popleft()
            if line.error is not None:
                self._tell_refused(line, line.error)
                continue
            self._place += 1
            # A second Ctrl-C may have come just before the one before it was shown.
            if self._place == outcome.place:
                break
        self._last_number = line.number
        if isinstance(outcome, Accepted):
            self._tell_accepted(line, outcome)
        else:
            self._tell_refused(line, self._lines.at(line.number, outcome.error))
        return line.number

    def _show_rest(self) -> None:
        while self._pending and (error := self._pending[0].error) is not None:
            self._tell_refused(self._pending.popleft(), error)

    def _interrupted(self, submission: Submission) -> Interrupted:
        known = submission.close()
        for outcome in submission:
            self._show(outcome)
        after = self._last_number + 1
        if known:
            hint = f"the first line that was not submitted is {after}; {self._go_on()}"
        else:
            hint = f"whether lines from {after} on were submitted is not known; {self._go_on()}"
        return Interrupted(f"interrupted after {self._in_words()}", hint=hint)

    def _go_on(self) -> str:
        """How to submit the rest, and nothing twice."""
        if self._options["skip_existing"]:
            return "run it again"
        return "run it again with --skip-existing, which takes those with names as they are"

    # --- what is said -------------------------------------------------------------------------

    def _tell_accepted(self, line: FileLine, outcome: Accepted) -> None:
        word = "unchanged" if outcome.effect is Effect.UNCHANGED else "submitted"
        self._counts[word] += 1
        group, form = outcome.group, self._options["output"]
        key = key_of(group)
        if self._options["wait"]:
            self.keys.append(key)
        if form == "json":
            meta = group.metadata
            told = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
            self._say({"line": line.number, "result": word, **told})
        elif form == "name":
            echo(f"podgroup/{key}")
        elif self._options["quiet"]:
            echo(key)

    def _tell_refused(self, line: FileLine, error: BatchqError) -> None:
        self._counts["refused"] += 1
        self._first_error = self._first_error or error
        if self._options["output"] == "json":
            told = {"code": type(error).__name__, "message": error.message, "hint": error.hint}
            self._say({"line": line.number, "result": "refused", "error": told})
        elif self._counts["refused"] == 2:
            # A single one is told at the end.
            self._note(f"error: {self._first_error.message}")
            self._note(f"error: {error.message}")
        elif 2 < self._counts["refused"] <= MOST_TOLD:
            self._note(f"error: {error.message}")
        elif self._counts["refused"] == MOST_TOLD + 1:
            self._note("and more, of which -o json tells one by one")

    def _say(self, data: Mapping[str, Any]) -> None:
        echo(json.dumps(data, ensure_ascii=False))

    def _note(self, sentence: str) -> None:
        echo(sentence, err=True)

    def _tell(self, sentence: str) -> None:
        """For people, at the end; what is for programs stands on stdout alone."""
        plain = self._options["output"] == "text" and not self._options["quiet"]
        echo(sentence, err=not plain)

    def _summary(self, started: float) -> str:
        took_s = monotonic() - started
        rate = round(sum(self._counts.values()) / max(took_s, 0.001))
        would = " (dry run)" if self._options["dry_run"] else ""
        return f"{self._in_words()}{would} in {took_s:.1f} s, {rate:,} a second"

    def _in_words(self) -> str:
        parts = [f"{counted(self._counts['submitted'], 'pod group')} submitted"]
        parts += [
            f"{self._counts[word]} {word}"
            for word in ("unchanged", "refused")
            if self._counts[word]
        ]
        return ", ".join(parts)

    def _doing(self) -> str:
        return "checking" if self._options["dry_run"] else "submitting"

    def _empty(self) -> InvalidInput:
        return InvalidInput(
            f"{self._lines.source}: expected at least one line with a JSON object, found none",
            hint='as in {"command": ["python3", "train.py"], "cpus": 4, "name": "train-1"}',
        )

    def _refusal(self, word: str, hint: str) -> BatchqError:
        """What is raised at the end: the only refusal, or how many there are."""
        first, many = self._first_error, self._counts["refused"]
        assert first is not None
        if many > 1:
            if isinstance(first, Rejected):
                # A limit refuses all of them alike.
                hint = "; ".join(part for part in (first.hint, hint) if part)
            return type(first)(f"{self._lines.source}: {many:,} lines are {word}", hint=hint)
        return type(first)(
            first.message, hint="; ".join(part for part in (first.hint, hint) if part)
        )

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            raise Interrupted("interrupted; nothing was submitted") from None

    def _progress(self, doing: str) -> AbstractContextManager[Tell]:
        return progress(doing, self._total, color=self._shared.color)


@contextmanager
def _seldom_collecting() -> Iterator[None]:
    """Look for garbage in circles less often: a group makes a dozen objects and none of that sort,
    and to look among them takes a sixth of all the time.
    """
    before = gc.get_threshold()
    gc.set_threshold(_MADE_BEFORE_COLLECTING, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def _stoppable(submission: Submission) -> Iterator[Event]:
    """Ctrl-C takes effect where no outcome is on its way to be shown: between two of them, or while
    the server is waited for. A second one takes effect at once.
    """
    stopped = Event()

    def stop(signum: int, frame: object) -> None:
        if submission.is_asking or stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    if current_thread() is not main_thread():
        # Signals are none of its business.
        yield stopped
        return
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


# --- the options ----------------------------------------------------------------------------------


def _check(command: tuple[str, ...], options: Mapping[str, Any]) -> None:
    """Raises UsageError for options that do not go with many groups."""
    for name, option in _OF_ONE.items():
        if options[name]:
            raise UsageError(
                f"{option} is of one group, and --from-file has many",
                hint="leave it out; each line says what is of its own group",
            )
    if options["output"] == "yaml":
        raise UsageError("-o yaml is of one group, and --from-file has many", hint="use -o json")
    if command and options["function"]:
        raise UsageError("a command and --function are given, and a pod runs one", hint="keep one")


def _defaults(
    command: tuple[str, ...], options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """What holds for every line, as keywords; and which options say so."""
    defaults: dict[str, Any] = {"working_dir": str(Path.cwd())}
    given: dict[str, str] = {}
    if command:
        defaults["command"], given["command"] = list(command), "the command"
    context = click.get_current_context()
    for param in context.command.params:
        name = param.name or ""
        source = context.get_parameter_source(name)
        if name in (*OF_REQUEST, "args", "kwargs") and source is _TYPED:
            value = options[name]
            defaults[name] = list(value) if isinstance(value, tuple) else value
            given[name] = param.opts[-1]
    return defaults, given


_TYPED = click.core.ParameterSource.COMMANDLINE


# --- waiting --------------------------------------------------------------------------------------


def _wait(client: Client, keys: Sequence[str], timeout_s: float | None) -> int:
    """Wait until all have ended, and say how; the exit code.

    Raises NotFound for one that is deleted meanwhile, WaitTimedOut, Interrupted.
    """
    left = set(keys)
    ended: Counter[str] = Counter()
    many = counted(len(left), "pod group")
    try:
        for change in client.watch("PodGroup", timeout_s=timeout_s):
            if change.key not in left:
                continue
            if not isinstance(change.value, PodGroup):
                raise NotFound(f"PodGroup {change.key} was deleted while it was waited for")
            if change.value.status.phase in TERMINAL:
                left.discard(change.key)
                ended[str(change.value.status.phase)] += 1
            if not left:
                break
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; {len(left)} of {many} go on", hint="look at them with `batchq jobs`"
        ) from None
    if left:
        after = describe_age(round((timeout_s or 0) * 1000))
        raise WaitTimedOut(
            f"{len(left)} of {many} have not ended after {after}",
            hint="they go on; look at them with `batchq jobs`",
        )
    told = ", ".join(f"{count} {phase}" for phase, count in sorted(ended.items()))
    echo(f"ended: {told}", err=True)
    if ended["Failed"]:
        return EXIT_GROUP_FAILED
    return EXIT_GROUP_CANCELLED if ended["Cancelled"] else 0
