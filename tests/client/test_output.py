"""Reading and following the output of pods."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from batchq.client import Client
from batchq.errors import InvalidInput, NotFound, UnreadableRecord
from batchq.store import keys
from tests.client.stage import Stage
from tests.harness.server import Server

SOON_S = 60


def write(stage: Stage, pod: int, data: bytes, *, stream: str = "stdout", group: str = "x") -> None:
    one = stage.pods(group)[pod]
    place = one.status.node, one.metadata.uid, one.status.attempt
    stage.store.append_log(*place, stream, data)


def texts(stage: Stage, **options: object) -> list[str]:
    lines = stage.client.logs("x", **options)  # type: ignore[arg-type]
    return [f"{line.pod}: {line.text}" for line in lines]


@pytest.fixture
def two_pods(stage: Stage) -> Stage:
    stage.client.submit(command=["true"], name="x", replicas=2)
    stage.turn()
    stage.start("x")
    return stage


def test_lines_come_pod_after_pod(two_pods: Stage) -> None:
    write(two_pods, 1, b"second\n")
    write(two_pods, 0, b"fi")
    write(two_pods, 0, b"rst\nlast without an end")
    assert texts(two_pods) == [
        "x-main-0: first",
        "x-main-0: last without an end",
        "x-main-1: second",
    ]


def test_streams_are_put_together_line_by_line(two_pods: Stage) -> None:
    write(two_pods, 0, b"out ")
    write(two_pods, 0, b"err\n", stream="stderr")
    write(two_pods, 0, b"put\n")
    lines = list(two_pods.client.logs("x", pod="main-0"))
    assert [(line.stream, line.text) for line in lines] == [
        ("stderr", "err"),
        ("stdout", "out put"),
    ]


def test_one_pod_is_chosen_by_either_name(two_pods: Stage) -> None:
    write(two_pods, 1, b"hello\n")
    assert texts(two_pods, pod="main-1") == texts(two_pods, pod="x-main-1") == ["x-main-1: hello"]
    with pytest.raises(NotFound) as caught:
        texts(two_pods, pod="main-7")
    assert caught.value.message == "PodGroup default/x has no pod 'main-7'"


def test_tail_gives_the_last_lines_of_each_pod(two_pods: Stage) -> None:
    for pod in (0, 1):
        write(two_pods, pod, b"a\nb\nc\n")
    assert texts(two_pods, tail=1) == ["x-main-0: c", "x-main-1: c"]


@pytest.mark.parametrize("tail", [-1, "x", True, 1.5])
def test_a_tail_that_is_no_number_of_lines_is_refused(two_pods: Stage, tail: object) -> None:
    with pytest.raises(InvalidInput, match="tail: expected a whole number from 0, or None, found"):
        texts(two_pods, tail=tail)


@pytest.mark.parametrize("attempt", [0, -1, "x", True])
def test_an_attempt_is_a_number_from_one(two_pods: Stage, attempt: object) -> None:
    with pytest.raises(
        InvalidInput, match='attempt: expected a whole number from 1, "all" or None'
    ):
        texts(two_pods, attempt=attempt)


def test_invalid_bytes_in_output_are_replaced(two_pods: Stage) -> None:
    write(two_pods, 0, b"caf\xe9 \xff\r\n")
    assert texts(two_pods) == ["x-main-0: caf\ufffd \ufffd"]


def test_following_continues_until_the_processes_have_ended(
    two_pods: Stage, server: Server
) -> None:
    def follow() -> list[str]:
        with Client(server.url) as client:
            return [line.text for line in client.logs("x", follow=True, pod="main-0")]

    write(two_pods, 0, b"before\n")
    with ThreadPoolExecutor(max_workers=1) as threads:
        future = threads.submit(follow)
        write(two_pods, 0, b"during\n")
        two_pods.end("x", most=1)
        assert not future.done()
        write(two_pods, 0, b"at the end")
        two_pods.end("x")
        assert future.result(SOON_S) == ["before", "during", "at the end"]


def test_a_group_that_has_not_started_has_written_nothing(stage: Stage) -> None:
    stage.client.submit(command=["true"], name="x", cpus=9)
    stage.turn()
    assert texts(stage) == []


@pytest.mark.parametrize("follow", [False, True])
def test_output_of_another_type_is_named_and_not_waited_for(
    two_pods: Stage, raw: redis.Redis, follow: bool
) -> None:
    one = two_pods.pods("x")[0]
    place = one.status.node, one.metadata.uid, one.status.attempt
    for key, command in ((keys.log(*place), "SET"), (keys.result(*place), "RPUSH")):
        raw.execute_command(command, key, "x")
    with pytest.raises(UnreadableRecord, match="is of another type") as caught:
        list(two_pods.client.logs("x", follow=follow))
    assert f"DEL {keys.log(*place)}" in caught.value.hint
    with pytest.raises(UnreadableRecord, match="is of another type"):
        two_pods.store.read_result(*place)


def test_all_output_comes_pod_after_pod_and_by_admission(stage: Stage) -> None:
    stage.client.submit(command=["true"], name="x", replicas=3, min_member=1, cpus=2)
    for text in (b"first\n", b"second\n"):
        stage.turn()
        stage.start("x")
        running = [pod for pod in stage.pods("x") if pod.status.phase == "Running"]
        for pod in running:
            place = pod.status.node, pod.metadata.uid, pod.status.attempt
            stage.store.append_log(*place, "stdout", text)
        if text == b"first\n":
            stage.client.suspend("x")
            stage.turn()
            stage.end("x", 143)
            stage.client.resume("x")
    lines = stage.client.logs("x", attempt="all")
    assert [(line.pod, line.admission, line.text) for line in lines] == [
        (f"x-main-{index}", admission, text)
        for index in range(3)
        for admission, text in ((1, "first"), (2, "second"))
    ]
