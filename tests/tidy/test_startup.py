"""`import batchq` and the commands typed most often load only what they need."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path

import pytest

from tests.effort import sample
from tests.harness.server import Server
from tests.http.api_process import RunningApi
from tests.tidy.source import ROOT, report

HEAVY = {"redis", "rq", "rich", "numpy", "apscheduler"}
#: Parts of batchq that only other commands need.
PARTS_OF_OTHERS = re.compile(
    r"batchq\.(daemon|worker|lab|http|client\.doctor|cli\.simulate)(\..+)?"
)
#: What decides: only commands that look ahead, and the scheduler, need it.
SCHEDULER = re.compile(r"(batchq_actions|batchq\.(assembly|plugins|scheduler))(\..+)?|numpy")
#: What a client of the HTTP API does not need: views are values (`batchq.api.views`).
STRANGERS_OF_THE_API = re.compile(
    SCHEDULER.pattern
    + r"|(redis|rq|starlette|uvicorn|batchq\.(daemon|worker|http|store|config|client\.changes)"
    r"|batchq\.core\.(?!quota|session|chunks|scheduler_cache).+)(\..+)?"
)
#: The packages besides the standard library that `batchq --help` and `batchq version` may load.
ALLOWED_PACKAGES = {"batchq", "click"}
ALLOWED_OF_BATCHQ = re.compile(r"batchq(\.errors|\.api|\.cli(\..+)?)?")
#: `copy` and `pickle` try to import a module of Jython.
NEVER_THERE = {"_wmi", "org"}
#: Modules of the standard library whose import takes longer than the whole command.
SLOW = {"asyncio", "http", "multiprocessing", "sqlite3", "ssl", "unittest", "xml", "xmlrpc"}


def modules_loaded_by(*arguments: str, exits: Collection[int] = (0,)) -> set[str]:
    """Return the modules that `python ARGUMENTS` imports in addition to those of a bare Python."""
    return _loaded(*arguments, exits=exits) - _loaded_by_python()


def _loaded(*words: str, exits: Collection[int] = (0,)) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *words],
        capture_output=True, text=True, timeout=120, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode in exits, done.stderr[-2000:]
    return set(re.findall(r"^import time:[^|]+\|[^|]+\| +(\S+)$", done.stderr, re.MULTILINE))


@cache
def _loaded_by_python() -> set[str]:
    return _loaded("-c", "pass")


def test_import_batchq_is_light() -> None:
    loaded = modules_loaded_by("-c", "import batchq; batchq.__version__")
    assert "batchq" in loaded
    assert {name.partition(".")[0] for name in loaded} & (HEAVY | {"click", "msgspec"}) == set()


def test_the_client_is_imported_on_first_use() -> None:
    import batchq

    assert batchq.Client.__module__ == "batchq.client"


@pytest.mark.parametrize("command", ["--help", "version"])
def test_a_quick_command_loads_only_what_it_needs(command: str) -> None:
    loaded = modules_loaded_by("-m", "batchq.cli", command)
    packages = {name.partition(".")[0] for name in loaded}
    strangers = packages - ALLOWED_PACKAGES - NEVER_THERE - sys.stdlib_module_names
    rooms = {name for name in loaded if name.startswith("batchq")}
    too_much = [
        *sorted(strangers | packages & SLOW),
        *sorted(name for name in rooms if not ALLOWED_OF_BATCHQ.fullmatch(name)),
    ]
    assert not too_much, report(
        too_much, f"`batchq {command}` answers at once; import inside the command that needs it:"
    )


@pytest.mark.parametrize("words", [["jobs"], ["submit", "--dry-run", "-o", "json", "--", "true"]])
def test_a_list_and_a_submission_load_no_package_that_they_do_not_use(
    words: list[str], server: Server
) -> None:
    loaded = modules_loaded_by("-m", "batchq.cli", "--redis-url", server.url, *words)
    needed = modules_loaded_by("-c", "import click, msgspec, platformdirs, redis")
    packages = {name.partition(".")[0] for name in loaded - needed}
    too_much = [
        *sorted(
            packages - {"batchq", "batchq_actions", "click"} - NEVER_THERE - sys.stdlib_module_names
        ),
        *sorted(name for name in loaded if PARTS_OF_OTHERS.fullmatch(name)),
    ]
    assert "batchq" in packages
    assert not too_much, report(
        too_much, f"`batchq {words[0]}` is typed most often; import inside the code that needs it:"
    )


@pytest.mark.parametrize("words", [["jobs"], ["queues"]])
def test_a_list_loads_the_policies_but_no_action(words: list[str], server: Server) -> None:
    loaded = modules_loaded_by("-m", "batchq.cli", "--redis-url", server.url, *words)
    actions = re.compile(
        r"batchq_actions(\..+)?|batchq\.scheduler\.cycle|batchq\.core\.preemption\.(?!protection).+"
    )
    too_much = sorted(name for name in loaded if actions.fullmatch(name))
    assert "batchq.plugins.capacity" in loaded
    assert not too_much, report(
        too_much, f"`batchq {words[0]}` decides nothing; import inside the code that needs it:"
    )


@pytest.mark.parametrize(
    "words",
    sample(
        [
            ["submit", "--dry-run", "--", "true"],
            ["wait", "--help"],
            ["logs", "--help"],
            ["exec", "--help"],
            ["attach", "--help"],
            ["run", "--help"],
        ],
        3,
    ),
)
def test_a_submission_does_not_load_the_scheduler(words: list[str], server: Server) -> None:
    loaded = modules_loaded_by("-m", "batchq.cli", "--redis-url", server.url, *words)
    too_much = sorted(name for name in loaded if SCHEDULER.fullmatch(name))
    assert "batchq.client" in loaded or "--help" in words
    assert not too_much, report(
        too_much, f"`batchq {words[0]}` decides nothing; import inside the code that needs it:"
    )


@pytest.mark.parametrize(
    "words",
    sample(
        [
            ["jobs"],
            ["submit", "--", "true"],
            ["describe", "node", "none"],
            ["describe", "group", "none"],
            ["queues"],
            ["logs", "none"],
        ],
        3,
    ),
)
def test_a_command_over_the_http_api_loads_neither_what_decides_nor_what_speaks_to_redis(
    words: list[str], server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BATCHQ_HOME", str(tmp_path))
    with RunningApi(server.url) as api:
        monkeypatch.setenv("BATCHQ_SERVER", f"unix:{api.socket}")
        loaded = modules_loaded_by("-m", "batchq.cli", *words, exits={0, 6})
    assert "batchq.api_session" in loaded
    too_much = sorted(name for name in loaded if STRANGERS_OF_THE_API.fullmatch(name))
    assert not too_much, report(too_much, f"`batchq {words[0]}` over the HTTP API loads:")


def test_an_agent_loads_neither_the_scheduler_nor_the_client() -> None:
    loaded = modules_loaded_by("-c", "import batchq.cli.worker, batchq.worker.agent.agent")
    strangers = re.compile(r"batchq\.(client(\..+)?|core\.session\.session)")
    too_much = sorted(
        name for name in loaded if SCHEDULER.fullmatch(name) or strangers.fullmatch(name)
    )
    assert not too_much, report(too_much, "an agent decides nothing about groups, and loads:")


@pytest.mark.parametrize(
    "modules",
    [
        "batchq.cli.worker, batchq.daemon.logs, batchq.worker.agent.agent",
        "batchq.cli.config, batchq.daemon.app, batchq.daemon.logs",
    ],
    ids=["agent", "scheduler"],
)
def test_an_agent_and_a_scheduler_load_nothing_for_terminals(modules: str) -> None:
    loaded = modules_loaded_by("-c", f"import {modules}")
    assert "structlog.dev" in loaded
    too_much = sorted(name for name in loaded if re.match(r"(rich|pygments|attr)\.", name))
    assert not too_much, report(too_much, "import structlog from batchq.system, without:")


@pytest.mark.parametrize(
    "words",
    [
        ["jobs"],
        ["jobs", "-o", "json"],
        ["jobs", "--phase", "pending", "--reason", "waitingForQuota", "-A"],
    ],
)
def test_a_table_of_groups_over_the_http_api_loads_no_types(
    words: list[str], server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("BATCHQ_HOME", str(tmp_path))
    with RunningApi(server.url) as api:
        monkeypatch.setenv("BATCHQ_SERVER", f"unix:{api.socket}")
        loaded = modules_loaded_by("-m", "batchq.cli", *words)
    least = modules_loaded_by("-c", "import click, http.client")
    allowed = re.compile(
        r"batchq(\.errors|\.paths|\.api_session|\.api"
        r"|\.cli(\.(__main__|main|jobs|output(\.options)?))?)?"
    )
    slow = {"hashlib", "msgspec", "platformdirs", "rich", "shutil", "yaml"}
    too_much = sorted(
        name
        for name in loaded - least
        if (name.startswith("batchq") and not allowed.fullmatch(name))
        or name.partition(".")[0] in slow
    )
    assert "batchq.api_session" in loaded
    assert not too_much, report(too_much, "`batchq jobs` takes its rows from the API, and loads:")
