"""Volcano's cases by name, each with the values of its section, `same_as` and `overrides`.

A case with rows has a name for each: `CAP-S/3` is the third row of that table. Values that the file
states only in words, or by the name of a case that it does not contain, are written out here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from tests.cases.peers import Data

#: Sections that are not cases.
_ABOUT = frozenset({"meta", "hook_sets"})

#: Remarks of a section or a case, which do not describe the cluster.
_WORDS = frozenset({"cases", "note", "hooks", "name"})

#: capacity_enqueue describes its cluster by a sentence: "same shape as PROP-1..3,5, with …".
_CAPACITY_ENQUEUE: Data = {
    "nodes": [
        {"name": "n1", "cpu": 3, "mem": "3G", "pods": 10},
        {"name": "n2", "cpu": 3, "mem": "3G", "pods": 10},
    ],
    "queues": [
        {
            "name": "q1",
            "deserved": {"cpu": 2, "mem": "2G"},
            "capability": {"cpu": 2, "mem": "2G"},
        },
        {
            "name": "q2",
            "deserved": {"cpu": 2, "mem": "2G"},
            "capability": {"cpu": 3, "mem": "3G"},
        },
    ],
    "groups": [
        {"id": "ns1/pg1", "queue": "q1", "min": 1, "phase": "Running"},
        {"id": "ns1/pg2", "queue": "q2", "min": 1, "phase": "Running"},
    ],
    "pods": [
        {"id": "ns1/pod1", "group": "pg1", "cpu": 1, "mem": "3G", "node": "n1"},
        {"id": "ns1/pod2", "group": "pg2", "cpu": 3, "mem": "1G", "node": "n2"},
    ],
}

#: ALL-3 has the pods of ALL-2, which the file lacks: two masters and two workers.
_PODS_OF_ALL_2: list[Data] = [
    {
        "id": f"c1/p{place}",
        "group": "pg1",
        "role": role,
        "selector": {"nodeRole": role},
        "cpu": 1,
        "mem": "1G",
        "node": "",
    }
    for place, role in enumerate(("master", "master", "worker", "worker"))
]

#: CH-A5 to CH-A7 are about `taker`; on the section's node of 8 cpu no eviction is necessary.
_SMALL_NODE: list[Data] = [{"name": "n1", "cpu": 2, "mem": "2Gi", "pods": 10}]


def cases_of(file: Data) -> dict[str, Data]:
    """Return every case by its name, in the file's order."""
    raw = {
        case["id"]: (section, case)
        for section, content in file.items()
        if section not in _ABOUT
        for case in content["cases"]
    }
    assert len(raw) == file["meta"]["cases"], "two cases of the file have the same name"
    return {
        name: case for one in raw for name, case in _rows(one, _whole(file, raw, one, raw[one][0]))
    }


def _rows(name: str, case: Data) -> Iterator[tuple[str, Data]]:
    rows = case.pop("rows", None)
    if rows is None:
        yield name, case
        return
    for place, (deserved, allocated, share) in enumerate(rows, start=1):
        row = {"deserved": deserved, "allocated": allocated, "expect": share}
        yield f"{name}/{place}", {**case, **row}


def _whole(file: Data, raw: dict[str, tuple[str, Data]], name: str, section: str) -> Data:
    """Return the case merged over the case that it refers to and over the values of its section."""
    case = copy.deepcopy(raw[name][1])
    if "same_as" in case:
        base = _whole(file, raw, case.pop("same_as"), section)
        base.pop("expect", None)
    else:
        base = copy.deepcopy({k: v for k, v in file[section].items() if k not in _WORDS})
        base["section"] = section
        nodes = base.pop("common_nodes", None)
        if nodes:
            base["nodes"] = nodes
        common = base.pop("common", {})
        base |= {} if "only" in case else common
    whole = {**base, **case}
    return _with_overrides(_spelled_out(whole, name))


def _spelled_out(case: Data, name: str) -> Data:
    """Return values that the file states in words, and its additions to a shared cluster."""
    if case["section"] == "capacity_enqueue":
        case |= copy.deepcopy(_CAPACITY_ENQUEUE)
        added = case.pop("add")
        group = {"id": f"ns1/{added['pod'].partition('/')[2]}-group", "min": 1, **added["group"]}
        case["add_group"] = group
        case["add_pod"] = {"id": added["pod"], "node": "", **group["minRes"]}
        case["add_pod"]["group"] = group["id"].partition("/")[2]
    if case.pop("pods_same_as", None) == "ALL-2":
        case["pods"] = copy.deepcopy(_PODS_OF_ALL_2)
    if case.get("nodes") == ["n1 only"]:
        case["nodes"] = [{"name": "n1", "cpu": 2, "mem": "4Gi", "pods": 10}]
    if "victim" in case:
        victim, reclaimer = case.pop("victim"), case.pop("reclaimer")
        case["nodes"] = copy.deepcopy(_SMALL_NODE)
        case["groups"] = [
            {"id": "ns1/pg-victim", "queue": victim["queue"], "min": 1, "phase": "Running"},
            {"id": "ns1/pg-reclaimer", "queue": reclaimer["queue"], "min": 1, "phase": "Inqueue"},
        ]
        case["pods"] = [
            {**victim, "group": "pg-victim", "node": "n1"},
            {**reclaimer, "group": "pg-reclaimer", "node": ""},
        ]
    for one, many in (("add_group", "groups"), ("add_pod", "pods")):
        if one in case:
            case[many] = [*case[many], case.pop(one)]
    case["id"] = name
    return case


def _with_overrides(case: Data) -> Data:
    """Return the referenced case with the changes of this case."""
    overrides = case.pop("overrides", None)
    if overrides is None:
        return case
    named: dict[str, Any] = {
        part["name" if "name" in part else "id"].rpartition("/")[2]: part
        for many in ("queues", "groups", "pods")
        for part in case[many]
    }
    for key, value in overrides.items():
        if key in named:
            named[key] |= value
        elif key == "queue_capability":
            for queue in case["queues"]:
                queue["capability"] = value
        else:
            name, _, field = key.partition("_")
            named[name][field] = value
    return case
