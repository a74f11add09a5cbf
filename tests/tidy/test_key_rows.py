"""Every kind of key has its row in the table of tests/poison, so that its damage is tried."""

from __future__ import annotations

import inspect
import re

from rq.job import Job
from rq.registry import BaseRegistry
from rq.worker_registration import REDIS_WORKER_KEYS, WORKERS_BY_QUEUE_KEY

from batchq.store import keys
from batchq.worker.agent.slots import Slot
from tests.poison.key_table import ROWS, RQ_ROWS

PATTERNS = {row.pattern for row in ROWS}
#: Functions of batchq.store.keys that name no key of batchq: they translate RQ's names.
OF_RQ = {"of_rq", "node_of_rq"}
#: An argument for each parameter of the functions that name a key.
ARGUMENTS = {
    "kind": "Queue",
    "request_id": "<id>",
    "node": "<node>",
    "pod": "<pod>",
    "attempt": "<attempt>",
    "session": "<session>",
}


def test_every_key_of_the_store_has_a_row() -> None:
    assert sorted(key.name for key in keys.TABLE) == sorted(PATTERNS)


def test_every_function_that_names_a_key_has_a_row() -> None:
    named = {
        name: function(
            *(ARGUMENTS[parameter] for parameter in inspect.signature(function).parameters)
        )
        for name, function in inspect.getmembers(keys, inspect.isfunction)
        if function.__module__ == keys.__name__
        and function.__annotations__["return"] == "str"
        and not name.startswith("_")
        and name not in OF_RQ
    }
    assert len(named) > 5
    assert {name: key for name, key in named.items() if key not in PATTERNS} == {}


def test_every_constant_that_names_a_key_has_a_row() -> None:
    named = {
        name: value
        for name, value in vars(keys).items()
        if isinstance(value, str) and "{bq}:" in value and value != keys.EVERYTHING
    }
    assert len(named) > 10
    assert {name: key for name, key in named.items() if key not in PATTERNS} == {}


def test_every_kind_of_key_of_rq_that_an_agent_uses_has_a_row() -> None:
    registries = {
        registry.key_template.format("<queue>")
        for registry in BaseRegistry.__subclasses__()
        if "{0}" in registry.key_template
    }
    used = {
        *("rq:queue:<queue>", "rq:queue:<queue>:intermediate"),
        *(REDIS_WORKER_KEYS, WORKERS_BY_QUEUE_KEY % "<queue>"),
        *(f"{Slot.redis_worker_namespace_prefix}<agent>", Job.key_for("<attempt>")),
        *("rq:results:<attempt>", *registries),
    }
    found = {name.removeprefix(keys.RQ) for name in used}
    assert found == {row.pattern for row in RQ_ROWS}
    assert all(re.fullmatch(r"\{bq\}-rq:n1:[^<>]+", row.name) for row in RQ_ROWS)
