"""Reloading: valid files take effect as a whole, and mistakes are reported."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from batchq.api.transaction import Commit, Transaction
from batchq.assembly import assemble
from batchq.config import SchedulerConfig
from batchq.daemon import on_hangup
from batchq.daemon.reload import Reload, reload_service
from batchq.errors import InvalidInput, StoreUnavailable
from batchq.scheduler.cycle import Scheduler
from batchq.store.redis import RedisStore
from tests.daemon.waiting import until

STAYS = "; the former configuration stays in effect"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that differs from the defaults."""
    path = tmp_path / "scheduler.yaml"
    path.write_text("schedulePeriod: 2s\n")
    return path


def replace(path: Path, text: str) -> None:
    """Replace the file by another one, as editors do."""
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(path)


def looks(reload: Reload, times: int = 2) -> list[bool]:
    """Return the results of this many unasked looks."""
    return [reload.look(asked=False) for _ in range(times)]


def period_ms(reload: Reload) -> int:
    return reload.current.config.settings.schedule_period_ms


def events_of(reload: Reload, store: RedisStore) -> list[tuple[str, str]]:
    """Return the reasons and messages of the events, once they have been sent."""
    reload.tell(store, "host:1:abc")
    events = store.events(kind="Scheduler", key="host:1:abc")
    return [(event.reason, event.message) for event in events]


def test_at_the_start_the_file_is_in_effect(path: Path) -> None:
    reload = Reload(path)
    assert period_ms(reload) == 2000
    assert reload.current.scheduler.settings.schedule_period_ms == 2000
    assert looks(reload) == [False, False]
    assert reload.take_up() is None


def test_without_a_file_the_defaults_apply_for_good() -> None:
    reload = Reload(None)
    assert reload.current.config == SchedulerConfig()
    assert looks(reload) == [False, False]
    assert not reload.look(asked=True)


def test_a_wrong_file_at_the_start_is_refused_with_its_line(path: Path) -> None:
    path.write_text("schedulePeriod: 2s\nactions: [enqueue, alocate]\n")
    with pytest.raises(InvalidInput, match=r"scheduler.yaml, line 2: .*did you mean 'allocate'"):
        Reload(path)


@pytest.mark.parametrize("rename", [True, False])
def test_a_changed_file_is_taken_up_when_it_has_stayed_for_a_look(path: Path, rename: bool) -> None:
    reload = Reload(path)
    (replace if rename else Path.write_text)(path, "schedulePeriod: 3s\nactions: [allocate]\n")
    assert looks(reload, 3) == [False, True, False]
    assert period_ms(reload) == 2000
    fresh = reload.take_up()
    assert fresh is not None
    assert fresh is reload.current
    assert fresh.scheduler.settings.schedule_period_ms == 3000
    assert [action.name for action in fresh.scheduler.actions] == ["allocate"]
    assert reload.take_up() is None


def test_a_link_that_leads_elsewhere_is_followed(path: Path, tmp_path: Path) -> None:
    link, other = tmp_path / "link", tmp_path / "other.yaml"
    other.write_text("schedulePeriod: 4s\n")
    link.symlink_to(path)
    reload = Reload(link)
    (tmp_path / "draft").symlink_to(other)
    (tmp_path / "draft").replace(link)
    assert looks(reload) == [False, True]


def test_a_file_that_is_being_written_is_left_alone(path: Path) -> None:
    reload = Reload(path)
    for text in ("", "actions: [allocate]\n", "actions: [allocate]\nschedulePeriod: 9s\n"):
        path.write_text(text)
        assert not reload.look(asked=False)
    assert looks(reload, 1) == [True]


def test_a_reload_that_is_asked_for_need_not_wait(path: Path) -> None:
    reload = Reload(path)
    path.write_text("schedulePeriod: 3s\n")
    assert reload.look(asked=True)


def test_a_change_that_was_applied_before_it_was_asked_for_is_reported(
    path: Path, redis_store: RedisStore
) -> None:
    reload = Reload(path)
    path.write_text("schedulePeriod: 3s\n")
    assert looks(reload) == [False, True]
    # Not in effect yet: what takes it up reports it.
    assert reload.look(asked=True)
    assert events_of(reload, redis_store) == []
    reload.take_up()
    assert not reload.look(asked=True)
    [taken_up, asked] = events_of(reload, redis_store)
    assert taken_up == ("Reloaded", f"{path}: schedulePeriod 2s -> 3s")
    assert asked[1].startswith(f"{path}: already in effect for ")
    assert asked[1].endswith("s: schedulePeriod 2s -> 3s")


def test_an_invalid_file_changes_nothing_and_is_reported_once_with_line_and_nearest_name(
    path: Path, redis_store: RedisStore
) -> None:
    judged: list[bool] = []
    reload = Reload(path, reloaded=judged.append)
    replace(path, "schedulePeriod: 3s\nactions: [enqueue, alocate]\n")
    with capture_logs() as lines:
        assert looks(reload, 4) == [False] * 4
    assert reload.take_up() is None
    assert period_ms(reload) == 2000
    assert judged == [False]
    problem = (
        f"{path}, line 2: actions[1]: there is no action 'alocate'; known: allocate, backfill,"
        " enqueue, preempt, reclaim; did you mean 'allocate'?"
    )
    assert [(line["event"], line["problem"]) for line in lines] == [
        ("config.reload_failed", problem)
    ]
    assert events_of(reload, redis_store) == [("ReloadFailed", f"{problem}{STAYS}")]
    assert reload.refused_file
    replace(path, "schedulePeriod: 2s\n")
    looks(reload)
    assert not reload.refused_file


def test_a_valid_file_after_an_invalid_one_is_reported_too(
    path: Path, redis_store: RedisStore
) -> None:
    judged: list[bool] = []
    reload = Reload(path, reloaded=judged.append)
    for text in ("actions: 5\n", "schedulePeriod: 2s\n", "schedulePeriod: 3s\n"):
        replace(path, text)
        looks(reload)
    reload.take_up()
    assert judged == [False, True, True]
    assert events_of(reload, redis_store)[1:] == [
        ("Reloaded", f"{path}: unchanged"),
        ("Reloaded", f"{path}: schedulePeriod 2s -> 3s"),
    ]


def test_a_missing_file_is_reported_and_watched_again_when_it_returns(
    path: Path, redis_store: RedisStore
) -> None:
    reload = Reload(path)
    path.unlink()
    assert looks(reload, 4) == [False] * 4
    path.write_text("schedulePeriod: 3s\n")
    assert looks(reload) == [False, True]
    assert events_of(reload, redis_store) == [
        (
            "ReloadFailed",
            f"{path}: the configuration cannot be read: No such file or directory{STAYS}",
        )
    ]


def test_an_equivalent_file_is_not_taken_up(path: Path) -> None:
    reload = Reload(path)
    replace(path, "# as it was\nschedulePeriod: 2000ms\n")
    assert looks(reload) == [False, False]
    assert reload.take_up() is None


def test_only_the_last_of_two_changes_between_sessions_counts(path: Path) -> None:
    reload = Reload(path)
    for text in ("schedulePeriod: 3s\n", "schedulePeriod: 4s\n"):
        replace(path, text)
        assert reload.look(asked=True)
    reload.take_up()
    assert period_ms(reload) == 4000
    assert reload.take_up() is None


def test_a_change_taken_back_before_a_session_has_no_effect(path: Path) -> None:
    reload = Reload(path)
    for text in ("schedulePeriod: 3s\n", "schedulePeriod: 2s\n"):
        replace(path, text)
        reload.look(asked=True)
    reload.take_up()
    assert period_ms(reload) == 2000


def test_an_invalid_file_keeps_the_configuration_that_waits_to_be_taken_up(path: Path) -> None:
    reload = Reload(path)
    for text in ("schedulePeriod: 3s\n", "schedulePeriod: soon\n"):
        replace(path, text)
        reload.look(asked=True)
    reload.take_up()
    assert period_ms(reload) == 3000


def test_a_plugin_of_others_that_fails_while_it_is_made_changes_nothing(
    path: Path, redis_store: RedisStore
) -> None:
    def made(config: SchedulerConfig) -> Scheduler:
        if config.settings.schedule_period_ms == 3000:
            raise ZeroDivisionError("their mistake")
        return assemble(config)

    reload = Reload(path, make=made)
    replace(path, "schedulePeriod: 3s\n")
    with capture_logs() as lines:
        assert looks(reload) == [False, False]
    assert isinstance(lines[0]["exc_info"], ZeroDivisionError)
    assert events_of(reload, redis_store) == [
        (
            "ReloadFailed",
            (
                f"{path}: its actions and plugins cannot be created: "
                f"ZeroDivisionError: their mistake{STAYS}"
            ),
        )
    ]


class Away(RedisStore):
    """A store whose server loses the first replies."""

    lost = 2

    def commit(
        self,
        transactions: object,
        *,
        request_id: str,
        epoch: int | None = None,
        overcommit: int = 1000,
        seen: int | None = None,
    ) -> Commit:
        assert isinstance(transactions, list)
        assert all(isinstance(one, Transaction) for one in transactions)
        done = super().commit(transactions, request_id=request_id)
        if self.lost:
            self.lost -= 1
            raise StoreUnavailable("the server is not running")
        return done


def test_an_outcome_that_could_not_be_written_is_written_later_and_once(
    path: Path, redis_store: RedisStore
) -> None:
    reload, away = Reload(path), Away(redis_store.url)
    for text in ("schedulePeriod: 3s\n", "schedulePeriod: 4s\n"):
        replace(path, text)
        reload.look(asked=True)
        reload.take_up()
    for _ in range(4):
        reload.tell(away, "host:1:abc")
    away.close()
    assert events_of(reload, redis_store) == [
        ("Reloaded", f"{path}: schedulePeriod 2s -> 3s"),
        ("Reloaded", f"{path}: schedulePeriod 3s -> 4s"),
    ]


@pytest.fixture
def hangups() -> Iterator[None]:
    """Restore the handling of SIGHUP."""
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_service_follows_the_file_and_answers_a_signal(
    path: Path, redis_store: RedisStore, hangups: None
) -> None:
    reload, woken = Reload(path), threading.Event()
    on_hangup(reload.ask)
    service = reload_service(reload, redis_store, identity="host:1:abc", wake=woken.set)
    service.start()
    replace(path, "schedulePeriod: 3s\n")
    assert woken.wait(90)
    reload.take_up()
    until(lambda: len(redis_store.events(kind="Scheduler")) == 1)
    # Many requests at once get one answer, or a few.
    for _ in range(50):
        os.kill(os.getpid(), signal.SIGHUP)
    until(lambda: len(redis_store.events(kind="Scheduler")) > 1)
    service.stop()
    assert not service.alive
    events = redis_store.events(kind="Scheduler")
    assert events[1].message.startswith(f"{path}: already in effect for ")
    assert len(events) < 20


def test_a_promise_broken_by_a_reload_is_reported_once(path: Path, redis_store: RedisStore) -> None:
    reload = Reload(path)
    off = "plugins: {preEnqueue: {disabled: [gates]}}\n"
    for text in (off, f"{off}schedulePeriod: 3s\n"):
        path.write_text(text)
        assert reload.look(asked=True)
        with capture_logs() as logs:
            assert reload.take_up() is not None
        ignored = "plugin gates is off at preEnqueue: scheduling gates are kept and ignored"
        told_in_log = [line["what"] for line in logs if line["event"] == "config.unkept"]
        assert told_in_log == ([ignored] if text == off else [])
    messages = [message for _, message in events_of(reload, redis_store)]
    assert messages[0].endswith(f"; note: {ignored}")
    assert "note:" not in messages[1]
