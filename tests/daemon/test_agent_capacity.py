"""The division of a machine among its agents."""

from __future__ import annotations

import pytest

from batchq.daemon.detached import divide, node_names, written
from batchq.errors import Conflict

GIB = 1 << 30
MACHINE = {"cpu": 3000, "memory": 4 * GIB, "gpu": 2000}


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("box", "box-1"),
        ("Box.example.org", "box-1"),
        ("my_box", "my-box-1"),
        ("-weird-", "weird-1"),
        ("", "node-1"),
        ("x" * 80, "x" * 50 + "-1"),
    ],
)
def test_a_node_is_called_after_the_host(host: str, name: str) -> None:
    assert node_names(1, host=host) == (name,)


def test_agents_get_equal_parts_and_the_first_all_gpus() -> None:
    assert divide(MACHINE, {}, ["a", "b"]) == {
        "a": {"cpu": 1500, "memory": 2 * GIB, "gpu": 2000},
        "b": {"cpu": 1500, "memory": 2 * GIB},
    }


def test_later_agents_divide_what_is_left() -> None:
    taken = {"a": {"cpu": 1000, "memory": 2 * GIB, "gpu": 2000}}
    assert divide(MACHINE, taken, ["b", "c"]) == {
        "b": {"cpu": 1000, "memory": GIB},
        "c": {"cpu": 1000, "memory": GIB},
    }


def test_a_fully_divided_machine_is_refused() -> None:
    with pytest.raises(Conflict) as caught:
        divide(MACHINE, {"a": {"cpu": 2000}, "b": {"cpu": 1000, "memory": GIB}}, ["c"])
    assert caught.value.message == (
        "no cpu or memory of this machine is left for c: a, b take all of it"
    )
    assert "`batchq down`, then `batchq up --agents 3`" in caught.value.hint


def test_a_machine_divided_among_no_agents_gives_no_shares() -> None:
    assert divide(MACHINE, {"a": MACHINE}, []) == {}


def test_amounts_are_written_as_the_option_reads_them() -> None:
    assert written({"memory": GIB, "cpu": 1500, "gpu": 2000}) == "cpu=1500m,gpu=2,memory=1073741824"
