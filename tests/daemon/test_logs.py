"""Logging: readable, and never what stops a process."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from batchq.daemon import logs
from batchq.errors import InvalidInput


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in ("apscheduler", "rq.worker", "redis"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def test_a_line_in_a_pipe_is_key_and_value() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream, environ={})
    structlog.get_logger().info("leader.elected", epoch=3)
    line = stream.getvalue()
    assert line.startswith("timestamp=")
    assert line.endswith("level=info event=leader.elected epoch=3\n")


def test_a_log_can_be_json() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream, environ={"BATCHQ_LOG": "json"})
    structlog.get_logger().warning("store.unavailable", error="gone")
    result = json.loads(stream.getvalue())
    assert (result["event"], result["level"], result["error"]) == (
        "store.unavailable",
        "warning",
        "gone",
    )


def test_the_level_can_be_raised() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream, environ={"BATCHQ_LOG_LEVEL": "error"})
    structlog.get_logger().warning("quiet")
    structlog.get_logger().error("loud")
    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()


def test_an_unknown_level_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(InvalidInput, match="BATCHQ_LOG_LEVEL is 'loud', expected one of debug"):
        logs.configure(stream=io.StringIO(), environ={"BATCHQ_LOG_LEVEL": "loud"})


def test_logs_of_libraries_arrive_too_and_a_traceback_stays_on_one_line() -> None:
    stream = io.StringIO()
    logs.configure(stream=stream, environ={})
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("somebody").exception("it failed")
    result = stream.getvalue()
    assert 'event="it failed"' in result
    assert "ValueError: broken" in result
    assert result.count("\n") == 1


def test_a_full_disk_does_not_stop_the_process() -> None:
    with Path("/dev/full").open("w") as full:
        output = logs.configure(stream=full, environ={})
        structlog.get_logger().info("first")
        structlog.get_logger().info("second")
        assert output.lost == 2


def test_lost_lines_are_reported_when_the_disk_has_space_again() -> None:
    class Tight(io.StringIO):
        full = True

        def write(self, text: str) -> int:
            if self.full:
                raise OSError(28, "No space left on device")
            return super().write(text)

    stream = Tight()
    output = logs.LossyStream(stream)
    output.write("first")
    output.write("second")
    stream.full = False
    output.write("third")
    assert stream.getvalue() == "event=log.lost lines=2\nthird\n"
