"""`batchq submit`: submit a command, a function, the groups of a file, or many JSON lines.

A file of --from-file has one JSON object per line. It is read line by line, and twice: first to
check it. A line has either the fields of a request, named like the options, or a whole PodGroup
manifest. Errors name the line.
"""

from __future__ import annotations

import gc
import json
import shlex
import shutil
import signal
import sys
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, current_thread, main_thread
from time import monotonic
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from batchq.api import manifest
from batchq.api.lifecycle import TERMINAL
from batchq.api.notation import counted, describe_timeout, shown
from batchq.api.objects import PodGroup, key_of, kind_of
from batchq.api.views import Accepted, Effect
from batchq.cli.objects import located_in, show_objects, warn, warn_of_capacity
from batchq.cli.output import (
    EXIT_GROUP_CANCELLED,
    EXIT_GROUP_FAILED,
    Interrupted,
    echo,
    raw_option,
    show_error,
    show_warning,
)
from batchq.cli.output.forms import reference
from batchq.cli.output.options import DURATION, Globals, examples, form_option, pass_globals
from batchq.cli.output.progress import progress
from batchq.cli.output.values import seconds_of, warn_if_not_led
from batchq.cli.request_options import OF_REQUEST, check_request, request_options, requested
from batchq.cli.wait import await_submitted, refuse_unused_timeout
from batchq.client import Applied, Client, with_working_dir
from batchq.client.request import marked, present_folder
from batchq.errors import (
    BatchqError,
    Conflict,
    InvalidInput,
    NotFound,
    Rejected,
    UsageError,
    WaitTimedOut,
)

if TYPE_CHECKING:
    from batchq.client.submission import Outcome, Submission

#: Options that apply to a file, too.
_WITH_FILE = frozenset({"wait", "progress", "timeout", "exit_code", "dry_run", "quiet"})


@click.command(
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
    epilog=examples(
        "batchq submit -- python3 -c 'print(6 * 7)'",
        "batchq submit --name train --cpus 4 --mem 8Gi --gpus 1 --walltime 2h -- python3 train.py",
        "batchq submit --name sweep --array 0-99 -- sh -c 'echo $BATCHQ_INDEX'",
        "batchq submit --name sums --function math:fsum --args '[[1, 2, 3]]'",
        "batchq submit --name gang -N 4 --wait --timeout 1h -- ./simulate",
        "batchq submit --name llm -N 4 --gpus 8 --launch torch -- torchrun train.py",
        "batchq submit --external --name render --cpus 8 --res license=1",
        "batchq submit --dry-run -f conf/examples/sweep.yaml",
        "batchq submit --from-file jobs.jsonl --queue default --cpus 2",
        "./make-jobs | batchq submit --from-file - --skip-existing -o name",
    ),
)
@request_options
@click.option(
    "--from-file",
    metavar="FILE",
    help="Many groups: one JSON object per line; - is stdin. Options are defaults for its lines.",
)
@click.option(
    "--keep-going", is_flag=True, help="With --from-file: submit valid lines, skip the others."
)
@click.option(
    "--skip-existing",
    is_flag=True,
    help="With --from-file: accept lines whose group exists already and is equal.",
)
@click.option("--wait", is_flag=True, help="Wait for its end; exit code 10 if it failed.")
@click.option("--progress", is_flag=True, help="Show the progress, and wait.")
@click.option("--timeout", type=DURATION, help="With --wait: the longest wait.")
@click.option("--exit-code", is_flag=True, help="Wait, and return the exit code of the single pod.")
@raw_option
@click.option("--dry-run", is_flag=True, help="Check it and print the manifest; submit nothing.")
@click.option("--quiet", is_flag=True, help="Print NAMESPACE/NAME only.")
@form_option("text", "json", "yaml", "name")
@pass_globals
def submit(shared: Globals, /, command: tuple[str, ...], **options: Any) -> int | None:
    """Submit COMMAND or a function as a pod group, or all objects of a file; print its name.

    All pods start together or none does, unless --min-member or --array says otherwise. Pods start
    in the current folder, or, for a file, in the folder of the file. They get the environment of
    the agent that runs them, not that of this command; --env passes variables on.

    A line of --from-file is {"command": ["python3", "train.py"], "cpus": 4, "name": "train-1"},
    with fields named like the options, or a whole PodGroup manifest. Without --keep-going, nothing
    is submitted if a line is wrong. Repeat an interrupted submission with --skip-existing.
    """
    refuse_unused_timeout(options)
    if options["from_file"] is not None:
        return submit_lines(shared, command, options)
    for name in ("keep_going", "skip_existing"):
        if options[name]:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} applies to many groups", hint="use it with --from-file")
    check_request(command, options, name="submit", with_file=_WITH_FILE)
    _refuse_manifests(command)
    with shared.connect() as client:
        applied = _submit(client, command, options)
        warn(applied)
        _warn_of_file(command)
        _show(applied, options)
        warn_of_capacity(client, applied)
        groups = [one.object for one in applied if isinstance(one.object, PodGroup)]
        if options["dry_run"] or not groups:
            return None
        warn_if_not_led(client)
        if not (options["wait"] or options["progress"] or options["exit_code"]):
            return None
        return await_submitted(client, [key_of(group) for group in groups], options)


def _refuse_manifests(command: Sequence[str]) -> None:
    """Raise UsageError for a single word that is no program, and looks like a file of manifests."""
    if len(command) != 1 or not command[0].endswith((".yaml", ".yml")):
        return
    [name] = command
    if shutil.which(name) is None:
        raise UsageError(
            f"submit takes a command; found {name}, which looks like a file of manifests",
            hint=f"to submit its groups: batchq submit -f {shlex.quote(name)}",
        )


def _warn_of_file(command: Sequence[str]) -> None:
    """Warn of a file of the current folder that will be looked for among the programs."""
    name = command[0] if command else ""
    if name and "/" not in name and shutil.which(name) is None and Path(name).is_file():
        show_warning(f"{name} is a file here, but as a command it must be ./{name}, or sh {name}")


def _submit(client: Client, command: Sequence[str], options: dict[str, Any]) -> Sequence[Applied]:
    content = requested(client, command, options)
    with located_in(content.documents):
        return client.submit_all(
            content.objects, dry_run=options["dry_run"], keep_stop=content.keep_stop
        )


def _show(applied: Sequence[Applied], options: dict[str, Any]) -> None:
    objects = [one.object for one in applied]
    form = options["output"]
    if form == "text" and options["dry_run"] and not options["quiet"]:
        form = "yaml"
    if form != "text":
        show_objects(objects, form)
    elif options["quiet"]:
        for item in objects:
            if isinstance(item, PodGroup):
                echo(key_of(item))
    else:
        for one in applied:
            submitted = isinstance(one.object, PodGroup)
            echo(f"{reference(one.object)} {'submitted' if submitted else one.effect}")


STDIN = "-"
#: More than any group may have; the rest of a longer line is skipped.
MOST_LINE_BYTES = 4 * 1024 * 1024
#: Piped input is kept in memory up to this size, then in a temporary file.
_MOST_KEPT_BYTES = 16 * 1024 * 1024
_BLOCK_BYTES = 1024 * 1024
_BOM = b"\xef\xbb\xbf"
#: Options that apply to manifests, too.
_OF_MANIFESTS = ("namespace", "queue", "priority_class", "labels", "annotations", "working_dir")

_decode = msgspec.json.Decoder().decode


class FileLine(NamedTuple):
    """A line: a request to submit, or the reason why it is none."""

    number: int
    request: Mapping[str, Any] | PodGroup | None
    error: BatchqError | None = None


class FileLines:
    """A file, or standard input, that can be read more than once; a context manager."""

    def __init__(self, name: str, defaults: Mapping[str, Any], given: Mapping[str, str]) -> None:
        """`defaults` apply to every line; `given` maps their fields to the options that set them.

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
        """Return the number of lines, including empty ones."""
        self._file.seek(0)
        found, last = 0, b"\n"
        while block := self._file.read(_BLOCK_BYTES):
            found, last = found + block.count(b"\n"), block[-1:]
        return found + (last != b"\n")

    def read(self) -> Iterator[FileLine]:
        """Yield every line that is not empty, from the beginning."""
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
        """Return the error with the line's number; it is never a usage error of the command."""
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
                f"{self._for_commands} applies to commands, not to a manifest",
                hint="leave it out, or put it into the lines",
            )
        # Only batchq writes a status.
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
    """Keep the content of a pipe, which can be read only once."""
    kept = tempfile.SpooledTemporaryFile(max_size=_MOST_KEPT_BYTES)  # noqa: SIM115 - Lines closes it
    shutil.copyfileobj(file, kept, _BLOCK_BYTES)
    return kept


def _texts(file: IO[bytes]) -> Iterator[bytes]:
    """Yield line by line; only the beginning of a line that is too long."""
    while text := file.readline(MOST_LINE_BYTES + 2):
        rest = text
        while not rest.endswith(b"\n") and len(rest) > MOST_LINE_BYTES:
            rest = file.readline(MOST_LINE_BYTES + 2)
        yield text.rstrip(b"\r\n")


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _object(text: bytes) -> dict[str, Any]:
    try:
        data = _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # msgspec reports other bytes by a DecodeError since 0.23.
        if not _is_utf8(text):
            raise InvalidInput("expected text in UTF-8, found other bytes") from None
        raise InvalidInput(
            f"expected one JSON object, found no JSON: {_first_small(str(error))}",
            hint='every line is an object of its own, as in {"command": ["true"], "cpus": 1}',
        ) from None
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
    """Set a field in a part of a manifest that does not set it."""
    inside = data.get(part)
    if value is None or not (isinstance(inside, dict) or inside is None):
        return
    if inside is None or inside.get(field) is None:
        data[part] = {**(inside or {}), field: value}


#: How many wrong lines are printed on stderr; -o json prints all.
MOST_SHOWN = 20
_MADE_BEFORE_COLLECTING = 50_000
#: Options for one group, which many cannot share.
_OF_ONE = {
    "filename": "-f",
    "name": "--name",
    "progress": "--progress",
    "exit_code": "--exit-code",
}


def submit_lines(shared: Globals, command: tuple[str, ...], options: dict[str, Any]) -> int | None:
    """Submit the groups of `options["from_file"]`; return the exit code.

    Raises UsageError, InvalidInput, and the error of the first refused line.
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
        if not options["dry_run"]:
            warn_if_not_led(client)
        if options["wait"] and not options["dry_run"] and run.keys:
            return _wait_for_all(client, run.keys, seconds_of(options["timeout"]))
    return None


class _Run:
    """One file being submitted; it prints the outcome of every line."""

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
        #: Lines that were read but whose outcome has not been printed.
        self._pending: deque[FileLine] = deque()
        self._counts: Counter[str] = Counter()
        self._first_error: BatchqError | None = None
        self._last_number = 0
        #: The place among the requests of the last printed line.
        self._place = -1

    def check(self) -> None:
        """Read all lines and raise their errors; with --keep-going, only count the lines."""
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
                    self._show_refused(line, error)
                tell(line.number)
        if not found:
            raise self._empty()
        if self._first_error is not None:
            raise self._refusal(
                "wrong",
                "nothing was submitted; correct the lines, or submit the others with --keep-going",
            )

    def submit(self) -> None:
        """Submit the lines, print the outcome of each, and raise if one was refused."""
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
                self._progress(self._verb()) as tell,
                _stoppable(submission) as stopped,
            ):
                for outcome in submission:
                    tell(self._show(outcome))
                    if stopped.is_set():
                        raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise self._interrupted(submission) from None
        except BatchqError as error:
            self._print_summary(self._summary(started))
            error.hint = error.hint or self._how_to_continue()
            raise
        self._show_rest()
        if not self._counts:
            raise self._empty()
        self._print_summary(self._summary(started))
        if self._first_error is not None:
            raise self._refusal("refused", self._after_refusal(self._first_error))

    def _after_refusal(self, error: BatchqError) -> str:
        """Return what has happened to the other lines, and the option that helps."""
        is_taken = isinstance(error, Conflict) and not self._options["skip_existing"]
        skip = "--skip-existing accepts lines whose group exists already and is equal"
        skips = (skip,) if is_taken else ()
        if self._options["keep_going"]:
            return "".join(skips)
        if self._options["dry_run"]:
            what = "later batches were not checked"
        elif self._counts["submitted"]:
            what = "its batch was submitted, later ones were not"
        else:
            what = "nothing was submitted"
        return "; ".join((what, *skips, "--keep-going continues"))

    def _requests(self) -> Iterator[Any]:
        for line in self._lines.read():
            self._pending.append(line)
            if line.error is None:
                yield line.request
            elif not self._options["keep_going"]:
                # It was correct during the check: the file has changed.
                return

    def _show(self, outcome: Outcome) -> int:
        """Print the outcome of its line, and errors of unreadable lines before it."""
        while True:
            line = self._pending.popleft()
            if line.error is not None:
                self._show_refused(line, line.error)
                continue
            self._place += 1
            # A second Ctrl-C may have come just before the previous outcome was shown.
            if self._place == outcome.place:
                break
        self._last_number = line.number
        if isinstance(outcome, Accepted):
            self._show_accepted(line, outcome)
        else:
            self._show_refused(line, self._lines.at(line.number, outcome.error))
        return line.number

    def _show_rest(self) -> None:
        while self._pending and (error := self._pending[0].error) is not None:
            self._show_refused(self._pending.popleft(), error)

    def _interrupted(self, submission: Submission) -> Interrupted:
        known = submission.close()
        for outcome in submission:
            self._show(outcome)
        after = self._last_number + 1
        if known:
            hint = f"continue with line {after}; {self._how_to_continue()}"
        else:
            hint = f"the outcome of lines from {after} on is unknown; {self._how_to_continue()}"
        return Interrupted(f"interrupted after {self._in_words()}", hint=hint)

    def _how_to_continue(self) -> str:
        """Return how to submit the rest without submitting anything twice."""
        if self._options["skip_existing"]:
            return "run it again"
        return "run it again with --skip-existing, which keeps existing groups with names"

    def _show_accepted(self, line: FileLine, outcome: Accepted) -> None:
        word = "unchanged" if outcome.effect is Effect.UNCHANGED else "submitted"
        self._counts[word] += 1
        group, form = outcome.group, self._options["output"]
        key = key_of(group)
        if self._options["wait"]:
            self.keys.append(key)
        if form == "json":
            meta = group.metadata
            data = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
            self._print_json({"line": line.number, "result": word, **data})
        elif form == "name":
            echo(f"podgroup/{key}")
        elif self._options["quiet"]:
            echo(key)

    def _show_refused(self, line: FileLine, error: BatchqError) -> None:
        self._counts["refused"] += 1
        self._first_error = self._first_error or error
        if self._options["output"] == "json":
            data = {"code": type(error).__name__, "message": error.message, "hint": error.hint}
            self._print_json({"line": line.number, "result": "refused", "error": data})
        elif self._counts["refused"] == 2:
            # A single error is printed at the end.
            show_error(self._first_error.message)
            show_error(error.message)
        elif 2 < self._counts["refused"] <= MOST_SHOWN:
            show_error(error.message)
        elif self._counts["refused"] == MOST_SHOWN + 1:
            self._print_note("and more; -o json prints all of them")

    def _print_json(self, data: Mapping[str, Any]) -> None:
        echo(json.dumps(data, ensure_ascii=False))

    def _print_note(self, sentence: str) -> None:
        echo(sentence, err=True)

    def _print_summary(self, sentence: str) -> None:
        """Print a sentence for people; stdout has only data if a program reads it."""
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

    def _verb(self) -> str:
        return "checking" if self._options["dry_run"] else "submitting"

    def _empty(self) -> InvalidInput:
        return InvalidInput(
            f"{self._lines.source}: expected at least one line with a JSON object, found none",
            hint='as in {"command": ["python3", "train.py"], "cpus": 4, "name": "train-1"}',
        )

    def _refusal(self, word: str, hint: str) -> BatchqError:
        """Return the final error: the only refusal, or their number."""
        first, many = self._first_error, self._counts["refused"]
        assert first is not None
        if many > 1:
            if isinstance(first, Rejected):
                # A limit refuses all lines for the same reason.
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

    @contextmanager
    def _progress(self, doing: str) -> Iterator[Callable[[int], None]]:
        """Return a function that shows the number of the last line."""
        started = monotonic()
        with progress("lines") as tell:
            yield lambda done: tell(
                doing, done, self._total, f"{done / max(monotonic() - started, 0.001):,.0f}/s"
            )


@contextmanager
def _seldom_collecting() -> Iterator[None]:
    """Run the cyclic garbage collector less often: a group has a dozen objects but no cycles, and
    the collector would take a sixth of the time.
    """
    before = gc.get_threshold()
    gc.set_threshold(_MADE_BEFORE_COLLECTING, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def _stoppable(submission: Submission) -> Iterator[Event]:
    """Delay Ctrl-C until no outcome is being shown: between two outcomes, or during a wait for the
    server. A second one takes effect at once.
    """
    stopped = Event()

    def stop(signum: int, frame: object) -> None:
        if submission.is_asking or stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    if current_thread() is not main_thread():
        # Only the main thread handles signals.
        yield stopped
        return
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


def _check(command: tuple[str, ...], options: Mapping[str, Any]) -> None:
    """Raise UsageError for options that do not apply to many groups."""
    for name, option in _OF_ONE.items():
        if options[name]:
            raise UsageError(
                f"{option} applies to one group, but --from-file has many",
                hint="leave it out, and set it in each line",
            )
    if options["output"] == "yaml":
        raise UsageError(
            "-o yaml applies to one group, but --from-file has many", hint="use -o json"
        )
    if command and options["function"]:
        raise UsageError(
            "a command and --function are both given, but a pod runs one of them", hint="keep one"
        )


def _defaults(
    command: tuple[str, ...], options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the fields that apply to every line, and the options that set them."""
    defaults: dict[str, Any] = {"working_dir": present_folder()}
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


def _wait_for_all(client: Client, keys: Sequence[str], timeout_s: float | None) -> int:
    """Wait until all groups have ended, and print how; return the exit code.

    Raises NotFound if a group is deleted meanwhile, WaitTimedOut, Interrupted.
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
            f"interrupted; {len(left)} of {many} keep running",
            hint="look at them with `batchq jobs`",
        ) from None
    if left:
        after = describe_timeout(timeout_s or 0)
        raise WaitTimedOut(
            f"{len(left)} of {many} have not ended after {after}",
            hint="they keep running; look at them with `batchq jobs`",
        )
    data = ", ".join(f"{count} {phase}" for phase, count in sorted(ended.items()))
    echo(f"ended: {data}", err=True)
    if ended["Failed"]:
        return EXIT_GROUP_FAILED
    return EXIT_GROUP_CANCELLED if ended["Cancelled"] else 0
