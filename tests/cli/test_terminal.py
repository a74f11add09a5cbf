"""Foreign text in output and records cannot control the terminal that shows it."""

from __future__ import annotations

import json
import re

import pytest
from msgspec import structs

from batchq.api.objects import KINDS, Condition, Object, PodGroup, key_of, kind_of
from batchq.api.reasons import Verdict, Waiting
from batchq.api.transaction import Event, Transaction, Write
from batchq.cli.output import show_hint, show_warning
from batchq.errors import printable, printable_lines
from tests.builders import a_node, a_queue
from tests.cli.conftest import Batchq
from tests.client.stage import Stage
from tests.harness.pty import on_a_terminal
from tests.harness.server import Server

#: Clears the screen, sets the title, makes the terminal answer, also as 8-bit codes; reverses the
#: direction of text; returns to the beginning of the line; rings the bell.
HOSTILE = "\x1b[2J\x1b]0;owned\x07\x1b[6n\x9b2J\u202eesrever\u2066\rforged\x08\x7f"
SHOWN = "\\x1b[2J\\x1b]0;owned\\x07\\x1b[6n\\u009b2J\\u202eesrever\\u2066\\rforged\\x08\\u007f"
#: What our own lines never contain; a line end is allowed.
COMMANDING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def poison(item: Object) -> Object:
    """Return the object with hostile text, as a program with raw access could write it."""
    meta = structs.replace(
        item.metadata, labels={HOSTILE: HOSTILE}, annotations={f"a/{HOSTILE}": HOSTILE}
    )
    item = structs.replace(item, metadata=meta)
    if not isinstance(item, PodGroup):
        return item
    condition = Condition(type=HOSTILE, status="True", reason=HOSTILE, message=HOSTILE)
    verdict = Verdict(
        plugin=HOSTILE, reason=Waiting.EXCEEDS_MAX_QUOTA, subject=HOSTILE, resource=HOSTILE
    )
    status = structs.replace(
        item.status, submitted_by=HOSTILE, conditions=(condition,), reasons=(verdict,)
    )
    return structs.replace(item, status=status)


def written(item: Object, *, expect: int) -> Transaction:
    """Return a write that bypasses all checks, with an event."""
    kind, key = kind_of(item), key_of(item)
    return Transaction(
        subject=key,
        writes=(Write(kind=kind, key=key, expect=expect, value=item),),
        events=(Event(kind=kind, key=key, reason=HOSTILE, message=HOSTILE),),
    )


@pytest.fixture
def hostile(stage: Stage) -> Stage:
    """A running group, a waiting one, a queue and a node, all with hostile text, and more objects
    with invalid names.
    """
    client = stage.client
    client.submit(command=["sh", "-c", HOSTILE], name="runs", env={"A": HOSTILE})
    stage.turn()
    stage.start("runs")
    client.submit(command=[HOSTILE], name="waits", suspend=True)
    stage.turn()
    there = [item for kind in ("PodGroup", "Queue", "Node", "Pod") for item in client.list(kind)]
    named = structs.replace(client.get("PodGroup", "waits").metadata, name=HOSTILE, uid="u")
    new = [a_node(HOSTILE, cpu=1), a_queue(HOSTILE)]
    new.append(structs.replace(client.get("PodGroup", "waits"), metadata=named))
    done = [written(poison(item), expect=item.metadata.revision) for item in there]
    done += [written(poison(item), expect=0) for item in new]
    assert not stage.store.commit(done, request_id="poison").refused
    [pod] = stage.pods("runs")
    place = pod.status.node, pod.metadata.uid, pod.status.attempt
    stage.store.append_log(*place, "stdout", f"{HOSTILE}\n".encode())
    return stage


COMMANDS = [
    "logs runs",
    "logs runs --prefix",
    "logs runs -o json",
    "jobs",
    "jobs -o wide",
    "jobs -o json",
    "describe runs",
    "describe waits",
    "describe node n1",
    "describe queue default",
    "describe pod runs-main-0",
    "why waits",
    "events -A",
    "events -A -o json",
    "nodes",
    "nodes -o wide",
    "queues",
    "queues show default",
    "gates list",
    "checks list waits",
    "external list",
    "quota show",
    "plan -- true",
    "doctor",
    *(f"get {kind} -o {form}" for kind in KINDS for form in ("wide", "json", "yaml", "name")),
]


def test_text_written_by_others_is_escaped_on_a_terminal(hostile: Stage, server: Server) -> None:
    for words in COMMANDS:
        code, shown = on_a_terminal("--no-color", *words.split(), url=server.url)
        text = shown.decode()
        assert "Traceback" not in text, words
        assert COMMANDING.findall(text) == [], words
        assert code in (0, 1, 3, 4), (words, text)


def test_a_pods_output_is_escaped_on_a_terminal(hostile: Stage, server: Server) -> None:
    assert on_a_terminal("logs", "runs", url=server.url) == (0, f"{SHOWN}\n".encode())


@pytest.mark.parametrize("words", [("--raw", "logs", "runs"), ("logs", "runs", "--raw")])
def test_output_is_raw_with_the_option_raw(
    hostile: Stage, server: Server, words: tuple[str, ...]
) -> None:
    code, shown = on_a_terminal(*words, url=server.url)
    assert shown.decode() == f"{HOSTILE}\n"
    assert code == 0


@pytest.mark.parametrize("words", [(), ("--raw",), ("-o", "json")])
def test_an_error_is_one_escaped_line_in_a_pipe_too(
    batchq: Batchq, stage: Stage, words: tuple[str, ...]
) -> None:
    done = batchq("submit", "--name", f"x\n{HOSTILE}", *words, "--", "true")
    assert done.code == 1
    assert COMMANDING.findall(done.err) == []
    assert len(done.err.splitlines()) == 1
    assert "expected at most 63 lower-case letters" in done.err


def test_warnings_and_hints_are_escaped_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    show_warning(f"a\n{HOSTILE}")
    show_hint(HOSTILE)
    assert capsys.readouterr().err == f"warning: a\\n{SHOWN}\nhint: {SHOWN}\n"


def test_bars_and_endings_are_escaped_on_a_terminal(
    hostile: Stage, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    hostile.end("runs", 1, message=HOSTILE)
    for words in ("progress runs", "wait runs", "why runs", "describe runs"):
        code, shown = on_a_terminal(*words.split(), url=server.url)
        text = shown.decode()
        # What rich uses to draw bars: hide the cursor, go up, erase the line, and colours.
        drawn = re.sub(r"\x1b\[(\?25[lh]|1A|2K|[0-9;]*m)|\r(?=[\n\x1b])", "", text)
        assert COMMANDING.findall(drawn) == [], words
        assert SHOWN[:8] in text, words
        assert code in (0, 10), (words, text)


def test_output_is_raw_in_a_pipe(hostile: Stage, batchq: Batchq) -> None:
    assert batchq("logs", "runs").out == f"{HOSTILE}\n"
    [line] = batchq("logs", "runs", "-o", "json").lines
    assert json.loads(line)["text"] == HOSTILE


def test_json_on_a_terminal_is_still_json(hostile: Stage, server: Server) -> None:
    _, shown = on_a_terminal("logs", "runs", "-o", "json", url=server.url)
    assert json.loads(shown)["text"] == HOSTILE


def test_a_row_of_a_table_is_one_line_in_a_pipe_too(hostile: Stage, batchq: Batchq) -> None:
    done = batchq("events", "-A", "--reason", HOSTILE)
    assert len(done.lines) == 9
    assert all(line.endswith(SHOWN) for line in done.lines[1:])


@pytest.mark.parametrize("words", ["wait runs", "progress runs"])
def test_a_pods_exit_message_forges_no_line_in_a_pipe(
    stage: Stage, batchq: Batchq, words: str
) -> None:
    stage.client.submit(command=["true"], name="runs")
    stage.turn()
    stage.start("runs")
    stage.end("runs", 1, message="x\npodgroup default/other Completed")
    assert [
        line for line in batchq(*words.split()).lines if line.startswith("podgroup default/o")
    ] == []


def test_an_error_on_a_terminal_is_escaped(stage: Stage, server: Server) -> None:
    code, shown = on_a_terminal("get", f"queue/{HOSTILE}", "x", url=server.url)
    assert code != 0
    assert COMMANDING.findall(shown.decode()) == []


@pytest.mark.parametrize(
    "words",
    [("submit", "--name", "\udcff", "--", "true"), ("why", "\udcff")],
)
def test_bytes_that_are_no_text_are_refused_in_a_sentence(
    stage: Stage, server: Server, words: tuple[str, ...]
) -> None:
    code, shown = on_a_terminal(*words, url=server.url)
    assert code != 0
    assert b"Traceback" not in shown
    assert shown.startswith(b"error: ")
    assert shown.count(b"\n") <= 2


def test_line_ends_and_tabs_stay_in_text_and_not_in_a_line() -> None:
    assert printable_lines("a\tb\r\nc\x1b") == "a\tb\\r\nc\\x1b"
    assert printable("a\tb\r\nc\x1b") == "a\\tb\\r\\nc\\x1b"


def test_half_a_character_is_escaped() -> None:
    assert printable("\ud83d") == "\\ud83d"


def test_letters_of_all_languages_stay() -> None:
    text = "Grüße, 世界, مرحبا, 👩\u200d🔬 ±½"
    assert printable_lines(text) == text
