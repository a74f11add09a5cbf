"""`import batchq` and the commands typed most often load only what they need."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.tidy.source import ROOT, told

HEAVY = {"redis", "rq", "rich", "numpy", "apscheduler"}
#: The packages besides the standard library that `batchq --help` and `batchq version` may load.
ALLOWED_PACKAGES = {"batchq", "click"}
ALLOWED_OF_BATCHQ = re.compile(r"batchq(\.errors|\.api(\.printable)?|\.cli(\..+)?)?")
#: `copy` and `pickle` try to import a module of Jython.
NEVER_THERE = {"_wmi", "org"}
#: Modules of the standard library whose import takes longer than the whole command.
SLOW = {"asyncio", "http", "multiprocessing", "sqlite3", "ssl", "unittest", "xml", "xmlrpc"}


def modules_loaded_by(*arguments: str) -> set[str]:
    """Return the modules that `python ARGUMENTS` imports in addition to those of a bare Python."""

    def loaded(*words: str) -> set[str]:
        done = subprocess.run(
            [sys.executable, "-X", "importtime", *words],
            capture_output=True, text=True, timeout=60, check=False, cwd=ROOT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        return set(re.findall(r"^import time:[^|]+\|[^|]+\| +(\S+)$", done.stderr, re.MULTILINE))

    return loaded(*arguments) - loaded("-c", "pass")


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
    assert not too_much, told(
        too_much, f"`batchq {command}` answers at once; import inside the command that needs it:"
    )
