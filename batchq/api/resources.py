"""Arithmetic on resource maps: name -> integer units, never negative, no epsilon.

An `Amounts` is a plain dict that nobody changes after it was made; every function here returns a
new one. In a request a zero is the same as an absent dimension; in a limit it is a limit of zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from batchq.api.quantity import PODS, describe_quantity

Amounts = dict[str, int]

#: What a node that names no `pods` contributes to sums over nodes: a billion pods.
UNLIMITED_PODS = 10**12

#: Every pod asks for one of these beside what it names.
ONE_POD = 1000


def plus(left: Mapping[str, int], right: Mapping[str, int]) -> Amounts:
    """left + right, per dimension."""
    total = dict(left)
    for name, units in right.items():
        total[name] = total.get(name, 0) + units
    return total


def minus(left: Mapping[str, int], right: Mapping[str, int]) -> Amounts:
    """max(0, left - right), per dimension of left; zeros are left out."""
    rest = {name: units - right.get(name, 0) for name, units in left.items()}
    return {name: units for name, units in rest.items() if units > 0}


def larger(left: Mapping[str, int], right: Mapping[str, int]) -> Amounts:
    """The larger of the two, per dimension."""
    most = dict(left)
    for name, units in right.items():
        if units > most.get(name, 0):
            most[name] = units
    return most


def covers(left: Mapping[str, int], right: Mapping[str, int]) -> bool:
    """Whether left is at least right, per dimension of right."""
    for name, units in right.items():  # noqa: SIM110 - asked of every group, often
        if units > left.get(name, 0):
            return False
    return True


def smaller(left: Mapping[str, int], right: Mapping[str, int]) -> Amounts:
    """The smaller of the two, per dimension that both name."""
    return {name: min(units, right[name]) for name, units in left.items() if name in right}


def times(amounts: Mapping[str, int], count: int) -> Amounts:
    """amounts x count."""
    return {name: units * count for name, units in amounts.items()} if count else {}


def total(many: Iterable[Mapping[str, int]]) -> Amounts:
    """The sum of many."""
    result: Amounts = {}
    for amounts in many:
        for name, units in amounts.items():
            result[name] = result.get(name, 0) + units
    return result


def named(amounts: Mapping[str, int]) -> Amounts:
    """A request without its zeros, in the order of names."""
    return {name: amounts[name] for name in sorted(amounts) if amounts[name] > 0}


def scaled(amounts: Mapping[str, int], thousandths: int) -> Amounts:
    """floor(amounts x thousandths / 1000), per dimension."""
    return {name: units * thousandths // 1000 for name, units in amounts.items()}


def of_pod(requests: Mapping[str, int]) -> Amounts:
    """What a pod takes: what it names, and one `pods`."""
    return {**named(requests), PODS: ONE_POD}


def describe(amounts: Mapping[str, int]) -> str:
    """For people: `cpu 4, memory 8Gi`, without the implied `pods`."""
    parts = [
        f"{name} {describe_quantity(name, amounts[name])}"
        for name in sorted(amounts)
        if name != PODS
    ]
    return ", ".join(parts) or "nothing"
