"""`batchq attach`: what can be shown without an agent; the rest is in tests/e2e."""

from __future__ import annotations

import pytest

from batchq.cli.pod_exec import Conversation
from tests.builders import a_node
from tests.cli.conftest import Batchq
from tests.client.stage import Stage


def test_an_interrupt_just_before_input_is_passed_on_says_that_the_pod_keeps_running(
    batchq: Batchq, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.furnish(a_node("n2", cpu=8, memory="16Gi", labels={"batchq/stdin": "yes"}))
    made = batchq("submit", "--name", "one", "--stdin", "--", "cat")
    assert made.code == 0, made.err
    stage.turn()
    stage.start("one")

    def interrupt(conversation: Conversation) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Conversation, "__enter__", interrupt)
    [pod] = stage.pods("one")
    done = batchq("attach", pod.metadata.name)
    assert done.code == 130
    assert done.err == (
        "error: interrupted; Pod default/one-main-0 keeps running\n"
        "hint: end its group with `batchq cancel default/one`\n"
    )
