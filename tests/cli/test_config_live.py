"""`batchq config print --effective` and `config reload`: the configuration of a live scheduler."""

from __future__ import annotations

import json

import yaml

from batchq.config.load import as_text, read_config
from batchq.store.redis import RedisStore
from batchq.store.schedulers import publish_config
from tests.cli.conftest import Batchq

PUBLISHED = as_text(read_config("schedulePeriod: 3s\nactions: [allocate]\n", "here"))


def test_config_print_shows_the_configuration_the_leader_published(
    batchq: Batchq, redis_store: RedisStore
) -> None:
    epoch = redis_store.lead("host:1:abc", 60_000)
    publish_config(redis_store, PUBLISHED, epoch=epoch)
    done = batchq("config", "print", "--effective")
    assert (done.code, done.out, done.err) == (0, PUBLISHED, "")
    assert yaml.safe_load(done.out)["schedulePeriod"] == "3s"
    assert json.loads(batchq("config", "print", "--effective", "-o", "json").out)["actions"] == [
        "allocate"
    ]


def test_the_last_leaders_configuration_is_printed_with_a_note(
    batchq: Batchq, redis_store: RedisStore
) -> None:
    publish_config(redis_store, PUBLISHED)
    done = batchq("config", "print", "--effective")
    assert (done.code, done.out) == (0, PUBLISHED)
    assert done.err == "note: no scheduler leads; this is the last leader's configuration\n"


def test_without_any_past_leader_there_is_nothing_to_print(
    batchq: Batchq, redis_store: RedisStore
) -> None:
    done = batchq("config", "print", "--effective")
    assert (done.code, done.out) == (6, "")
    assert done.err == (
        "error: no scheduler has published its configuration\n"
        "hint: no scheduler leads: start one with `batchq scheduler` or `batchq up`\n"
    )


def test_a_file_and_the_server_are_not_asked_at_once(batchq: Batchq) -> None:
    done = batchq("config", "print", "--effective", "--config", "scheduler.yaml")
    assert done.code == 2
    assert "--effective and --config exclude each other" in done.err


def test_reload_without_a_scheduler_is_refused(batchq: Batchq) -> None:
    done = batchq("config", "reload")
    assert done.code == 6
    assert done.err.startswith("error: no scheduler that `batchq up` has started runs on this")
