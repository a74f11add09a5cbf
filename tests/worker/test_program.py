"""Tests of functions in their own process: their results, and the messages of their failures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from batchq.api.objects import PodTemplate
from batchq.worker.workhorse import callee
from batchq.worker.workhorse.process import Program
from batchq.worker.workhorse.run_file import PodOutcome

TASKS = """
import asyncio, functools, os, sys, threading

SEEN = sys.stdin.read()

def add(a, b=1):
    print("adding")
    return a + b

async def later(x):
    await asyncio.sleep(0)
    return {"x": x}

def boom():
    raise ValueError("bad\\nthing " + "x" * 1000)

def text(n):
    return "x" * n

def itself(value):
    if value == "nan":
        return float("nan")
    if value == "endless":
        value = []
        value.append(value)
    if isinstance(value, int):
        value = functools.reduce(lambda inner, _: [inner], range(value), {})
    return {1} if value == "set" else value

def surrogate():
    return "\\ud800"

def leave(*code):
    sys.exit(*code)

def vanish(code):
    os._exit(code)

def fork():
    parent = os.getpid()
    if os.fork():
        return "parent"
    while os.getppid() == parent:
        threading.Event().wait(0.01)
    return "child"

def surroundings():
    ours = [path for path in sys.path if path.endswith("worker")]
    stdin = SEEN + sys.stdin.read() + os.readlink("/proc/self/fd/0")
    return [stdin, sys.argv, sys.path[0], os.getcwd(), ours]

def forge():
    for number in range(3, 64):
        try:
            os.ftruncate(number, 0)
            os.pwrite(number, b'{"result": [1, ', 0)
        except OSError:
            continue
    os._exit(0)

class Model:
    kind = 3

    @staticmethod
    def fit():
        return "fitted"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working directory of a pod, with modules in it."""
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "broken.py").write_text("import no_such_library\n")
    (tmp_path / "leaving.py").write_text("raise SystemExit(4)\n")
    # The callee must not import this module.
    (tmp_path / "batchq.py").write_text("raise AssertionError('imported')\n")
    return tmp_path


class Called(NamedTuple):
    """The outcome, the result and the output of a call."""

    outcome: PodOutcome
    result: bytes | None
    out: str
    err: str


def call(folder: Path, function: str, *args: Any, **kwargs: Any) -> Called:
    """Call a function as a pod would, without an agent."""
    program = Program(
        PodTemplate(
            function=function,
            args=tuple(msgspec.Raw(json.dumps(one).encode()) for one in args),
            kwargs={name: msgspec.Raw(json.dumps(one).encode()) for name, one in kwargs.items()},
        )
    )
    done = subprocess.run(
        program.argv,
        stdin=program.stdin,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    outcome, result = program.resolve(PodOutcome(exit_code=done.returncode))
    return Called(outcome, result, done.stdout, done.stderr)


def test_a_functions_return_value_is_its_result_and_its_prints_are_its_output(folder: Path) -> None:
    done = call(folder, "tasks:add", 2, b=40)
    assert (done.outcome.exit_code, done.outcome.message) == (0, "")
    assert (done.result, done.out, done.err) == (b"42", "adding\n", "")


@pytest.mark.parametrize(
    ("function", "args", "result"),
    [
        ("tasks:later", ["é"], '{"x":"é"}'),
        ("tasks:Model.fit", [], '"fitted"'),
        ("math:sqrt", [4], "2.0"),
        ("tasks:itself", [None], "null"),
        ("tasks:itself", [[2**70, {"a": []}]], '[1180591620717411303424,{"a":[]}]'),
        ("tasks:itself", [199], "[" * 199 + "{}" + "]" * 199),
        ("tasks:fork", [], '"parent"'),
    ],
)
def test_a_result_is_json(folder: Path, function: str, args: list[Any], result: str) -> None:
    done = call(folder, function, *args)
    assert done.outcome == PodOutcome(exit_code=0), done.err
    assert done.result == result.encode()


def test_a_function_sees_an_empty_stdin_its_name_and_its_folder(folder: Path) -> None:
    done = call(folder, "tasks:surroundings")
    stdin, argv, first, place, ours = json.loads(done.result or b"")
    assert (stdin, argv) == ("/dev/null", ["tasks:surroundings"])
    assert (first, place, ours) == (str(folder), str(folder), [])


NOT_JSON = "; return numbers, strings, lists and maps, or write a file and return its path"

FAILURES: dict[str, tuple[str, list[Any], int, str]] = {
    "arguments that do not fit": (
        "tasks:add",
        [],
        1,
        "TypeError: add() missing 1 required positional argument: 'a'",
    ),
    "a set": (
        "tasks:itself",
        ["set"],
        65,
        "the value returned by tasks:itself is not JSON"
        " (Object of type set is not JSON serializable)" + NOT_JSON,
    ),
    "no number": (
        "tasks:itself",
        ["nan"],
        65,
        "the value returned by tasks:itself is not JSON"
        " (Out of range float values are not JSON compliant)" + NOT_JSON,
    ),
    "a list that holds itself": (
        "tasks:itself",
        ["endless"],
        65,
        "the value returned by tasks:itself is not JSON (Circular reference detected)" + NOT_JSON,
    ),
    "more levels than are read": (
        "tasks:itself",
        [200],
        65,
        (
            "the value returned by tasks:itself has more than 200 levels of nesting;"
            " return fewer, or write a file and return its path"
        ),
    ),
    "text that is not Unicode": (
        "tasks:surrogate",
        [],
        65,
        "the value returned by tasks:surrogate is not JSON"
        " ('utf-8' codec can't encode character '\\ud800'"
        " in position 1: surrogates not allowed)" + NOT_JSON,
    ),
    "sys.exit": (
        "tasks:leave",
        [],
        1,
        "tasks:leave called sys.exit() instead of returning a result",
    ),
    "sys.exit with a code": (
        "tasks:leave",
        [3],
        3,
        "tasks:leave called sys.exit(3) instead of returning a result",
    ),
    "sys.exit with a text": (
        "tasks:leave",
        ["why"],
        1,
        "tasks:leave called sys.exit('why') instead of returning a result",
    ),
    "the process ended at once": (
        "tasks:vanish",
        [0],
        1,
        "its process ended before the function had returned; return instead of os._exit",
    ),
    "the process ended at once with a code": ("tasks:vanish", [7], 7, ""),
    "an answer that is none": (
        "tasks:forge",
        [],
        1,
        "its process ended before the function had returned; return instead of os._exit",
    ),
    "nothing to call": (
        "tasks:Model.kind",
        [],
        126,
        "tasks:Model.kind is a int, which cannot be called as a function",
    ),
    "a module that cannot be imported": (
        "broken:f",
        [],
        126,
        "module broken cannot be imported: ModuleNotFoundError: No module named 'no_such_library'",
    ),
    "a module that leaves": (
        "leaving:f",
        [],
        4,
        "module leaving called sys.exit(4) instead of returning a result",
    ),
    "a module of builtins without the name": (
        "builtins:nope",
        [],
        127,
        "module builtins (built in) has no function nope",
    ),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_failure_is_one_sentence_and_an_exit_code(folder: Path, case: str) -> None:
    function, args, exit_code, message = FAILURES[case]
    done = call(folder, function, *args)
    assert (done.outcome.message, done.outcome.exit_code) == (message, exit_code)
    assert done.result is None


def test_a_missing_function_or_module_is_named_with_the_place_of_the_search(folder: Path) -> None:
    assert call(folder, "tasks:nope").outcome == PodOutcome(
        exit_code=127, message=f"module tasks ({folder}/tasks.py) has no function nope"
    )
    assert call(folder, "no.such:f").outcome == PodOutcome(
        exit_code=127,
        message=f"no module no was found in {folder} or on this node's Python path; set"
        " the group's working_dir (workingDir in a manifest) or PYTHONPATH, or install it there",
    )


def test_an_exception_is_one_bounded_line_in_the_message_and_complete_in_the_output(
    folder: Path,
) -> None:
    done = call(folder, "tasks:boom")
    assert done.outcome.exit_code == 1
    assert done.outcome.message.startswith("ValueError: bad thing xxx")
    assert (len(done.outcome.message), done.outcome.message[-1]) == (500, "…")
    lines = done.err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    # The traceback starts with the function's own code.
    assert lines[1] == f'  File "{folder}/tasks.py", line 15, in boom'
    assert lines[-1] == "thing " + "x" * 1000


def test_a_result_up_to_the_limit_is_kept_and_a_larger_one_fails_its_pod(folder: Path) -> None:
    assert len(call(folder, "tasks:text", 65_534).result or b"") == 65_536
    assert call(folder, "tasks:text", 65_535).outcome == PodOutcome(
        exit_code=65,
        message="the value returned by tasks:text is 65537 bytes of JSON, and the limit is 65536;"
        " write a file and return its path",
    )


def test_the_arguments_of_the_process_show_nothing_of_the_call(folder: Path) -> None:
    argv = Program(PodTemplate(function="tasks:add", args=(msgspec.Raw(b'"secret"'),))).argv
    assert list(argv) == [sys.executable, "-P", callee.__file__]


@pytest.mark.parametrize(
    "outcome", [PodOutcome(exit_code=0, stopped="Preempted"), PodOutcome(signal=9)]
)
def test_a_process_that_was_stopped_has_no_result(outcome: PodOutcome) -> None:
    program = Program(PodTemplate(function="tasks:add"))
    os.pwrite(program.stdin, b'{"result":42}       ', 0)
    assert program.resolve(outcome) == (outcome, None)


@pytest.mark.parametrize("size", [65_537, 80_000])
def test_a_forged_result_beyond_the_limit_is_rejected(size: int) -> None:
    program = Program(PodTemplate(function="tasks:add"))
    os.pwrite(program.stdin, b'{"result":"%b"}' % (b"x" * (size - 2)), 0)
    outcome, result = program.resolve(PodOutcome(exit_code=0))
    assert (outcome.exit_code, result) == (1, None)


def test_a_failure_to_keep_the_output_is_added_to_the_functions_message(folder: Path) -> None:
    program = Program(PodTemplate(function="tasks:add"))
    os.ftruncate(program.stdin, 0)
    os.pwrite(program.stdin, b'{"message":"ValueError: bad"}', 0)
    outcome, _ = program.resolve(PodOutcome(exit_code=1, message="the output could not be kept"))
    assert outcome.message == "ValueError: bad; the output could not be kept"


def test_the_callee_imports_little_but_the_standard_library(folder: Path) -> None:
    """Every function pod waits for this start."""
    words = [sys.executable, "-P", "-X", "importtime", callee.__file__]
    program = Program(PodTemplate(function="math:sqrt", args=(msgspec.Raw(b"4"),)))
    done = subprocess.run(
        words, stdin=program.stdin, cwd=folder, capture_output=True, text=True, check=True
    )
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not loaded & {"batchq", "msgspec", "asyncio", "inspect", "pathlib", "subprocess"}
