"""The Lua scripts allow the same phase transitions as `batchq/api/lifecycle.py`."""

from __future__ import annotations

import re

from batchq.api.lifecycle import POD_GROUP_MOVES, POD_MOVES, allowed
from tests.tidy.source import ROOT

MOVES = ROOT / "batchq/store/lua/moves.lua"


def test_lua_and_python_have_the_same_moves() -> None:
    lines = MOVES.read_text(encoding="utf-8").splitlines()
    pairs = [re.fullmatch(r"(\w+) (\w+)>(\w+)", line) for line in lines]
    in_lua = [match.groups() for match in pairs if match]
    in_python = {
        (kind, start, finish)
        for kind, moves in (("PodGroup", POD_GROUP_MOVES), ("Pod", POD_MOVES))
        for start, finish in allowed(moves)
    }
    assert set(in_lua) == in_python, (
        "batchq/store/lua/moves.lua and batchq/api/lifecycle.py should name the same moves: "
        "a move that only one of them knows works in the simulator and not in production, "
        "or the other way round."
    )
    assert len(in_lua) == len(set(in_lua)), "moves.lua names a move twice"
