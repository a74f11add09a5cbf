"""Fixtures for all tests: a real server, and stores on it."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
import redis
from hypothesis import HealthCheck, settings

from batchq.store.redis import RedisStore
from tests.effort import THOROUGH, usually
from tests.harness import reaper, repeated_work
from tests.harness.server import Server

TESTS = Path(__file__).parent
_TESTED = ("batchq", "actions")

# Loaded before every file of tests, because a test has the settings of the time of its import. On a
# busy machine, examples take any time.
settings.register_profile(
    "batchq",
    max_examples=usually(10, 5_000),
    deadline=None,
    print_blob=THOROUGH,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("batchq")

# A shell without job control ignores SIGINT for background processes, and the processes that a test
# starts and interrupts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# So does nohup with SIGHUP. A handler is not inherited.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


repeated_work.remember_versions()

#: Objects of tests and of collected items are many, and garbage is little: the usual thresholds
#: would take a tenth of the time of a run.
_GC_THRESHOLDS = (20_000, 20, 20)

#: Their tests start processes and wait for them, for most of their time.
_SLOW_FOLDERS = {"e2e", "worker", "poison", "daemon"}
#: How many of them run at a time, for each core: a process that has to renew a lease needs the core
#: at once.
_SLOW_AT_A_TIME = 2
#: The lower priority of workers that run fast tests meanwhile.
_NICENESS = 5
_HAS_BEGUN = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    """Let no process outlive the run."""
    gc.set_threshold(*_GC_THRESHOLDS)
    waiting = reaper.start()
    config.add_cleanup(lambda: reaper.end(waiting))


# After Hypothesis, which warns of uses before its own start.
@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Let each of several workers compile its share of the files before it collects all of them.

    Workers collect the files in the same order, so each would compile all of them otherwise, and
    parse all of batchq for Hypothesis.
    """
    workers = _workers()
    if workers > 1 and _is_whole_suite(session.config) and not sys.dont_write_bytecode:
        first = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
        for file in sorted(TESTS.rglob("test_*.py"))[first::workers]:
            # Errors are reported by the collection.
            with suppress(Exception, pytest.skip.Exception):
                import_module(".".join(file.relative_to(TESTS.parent).with_suffix("").parts))
        tested = [file for root in _TESTED for file in sorted((TESTS.parent / root).rglob("*.py"))]
        repeated_work.parse_constants(tested[first::workers])


def _workers() -> int:
    return int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


def _is_whole_suite(config: pytest.Config) -> bool:
    return [Path(word).resolve() for word in config.args] == [TESTS]


def _is_slow(item: pytest.Item) -> bool:
    return item.path.relative_to(TESTS).parts[0] in _SLOW_FOLDERS


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let a worker that begins with a fast test leave the processor to slow tests."""
    if item.config.stash.setdefault(_HAS_BEGUN, False):
        return
    item.config.stash[_HAS_BEGUN] = True
    if _workers() > 1 and _is_whole_suite(item.config) and not _is_slow(item):
        os.nice(_NICENESS)


def pytest_collection_finish() -> None:
    """Keep the collected tests out of every later garbage collection."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each of several workers begin with its part of the slow files, and end with fast tests.

    pytest-xdist gives each worker a run of neighbouring tests and moves only the last ones to
    workers that have finished, so slow tests in one place would keep a single worker busy.
    Further workers begin with fast tests, which use the cores while the slow ones wait.
    """
    if (workers := _workers()) > 1:
        items[:] = slow_first(items, workers)


def slow_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return the tests as `workers` equal runs, the files of slow folders dealt out among the
    first of them.
    """
    most_slow = min(workers, _SLOW_AT_A_TIME * (os.cpu_count() or 1))
    files: dict[Path, list[pytest.Item]] = {}
    fast: list[pytest.Item] = []
    for item in items:
        if _is_slow(item):
            files.setdefault(item.path, []).append(item)
        else:
            fast.append(item)
    order: list[pytest.Item] = []
    for worker in range(workers):
        if worker < most_slow:
            order += [item for file in list(files.values())[worker::most_slow] for item in file]
        wanted = len(items) * (worker + 1) // workers - len(order)
        order += fast[: max(0, wanted)]
        fast = fast[max(0, wanted) :]
    return order + fast


@pytest.fixture(scope="session")
def running_server() -> Iterator[Server]:
    """Start one server for the whole run; tests use `server`, which is empty."""
    with Server() as server:
        yield server


@pytest.fixture
def server(running_server: Server) -> Server:
    """Return a real, empty server."""
    running_server.empty()
    return running_server


@pytest.fixture
def raw(server: Server) -> Iterator[redis.Redis]:
    """Return a plain client of the server, to inspect its keys."""
    client = redis.Redis(unix_socket_path=str(server.socket))
    yield client
    client.close()


@pytest.fixture
def open_redis(server: Server) -> Iterator[Callable[[], RedisStore]]:
    """Return a function that opens stores on one server, as several processes would."""
    stores: list[RedisStore] = []

    def opened() -> RedisStore:
        # Snapshots read heartbeats and leases each time, instead of once a second.
        stores.append(RedisStore(server.url, heartbeats_every_ms=0))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()


@pytest.fixture
def redis_store(open_redis: Callable[[], RedisStore]) -> RedisStore:
    """Return a store on a real, empty server."""
    return open_redis()
