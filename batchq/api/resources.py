"""Arithmetic on resource maps: name -> integer units, never negative, no epsilon.

An `Amounts` is a plain dict that is never modified; every function here returns a new one. In a
request a zero is the same as an absent dimension; in a limit it is a limit of zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache

Amounts = dict[str, int]

#: The contribution of a node that names no `pods` to sums over nodes: a billion pods.
UNLIMITED_PODS = 10**12

#: Every pod requests one of these beside its own requests.
ONE_POD = 1000


def plus(left: Mapping[str, int], right: Mapping[str, int]) -> Amounts:
    """Return left + right, per dimension."""
    total = dict(left)
    for name, units in right.items():
        total[name] = total.get(name, 0) + units
    return total


def minus(left: Mapping[str, int], right: Mapping[str, int]) -> Amounts:
    """Return max(0, left - right), per dimension of left, without zeros."""
    rest = {name: units - right.get(name, 0) for name, units in left.items()}
    return {name: units for name, units in rest.items() if units > 0}


def larger(left: Mapping[str, int], right: Mapping[str, int]) -> Amounts:
    """Return the larger of the two, per dimension."""
    most = dict(left)
    for name, units in right.items():
        if units > most.get(name, 0):
            most[name] = units
    return most


def covers(left: Mapping[str, int], right: Mapping[str, int]) -> bool:
    """Return whether left is at least right, per dimension of right."""
    for name, units in right.items():  # noqa: SIM110 - asked of every group, often
        if units > left.get(name, 0):
            return False
    return True


def smaller(left: Mapping[str, int], right: Mapping[str, int]) -> Amounts:
    """Return the smaller of the two, per dimension that both name."""
    return {name: min(units, right[name]) for name, units in left.items() if name in right}


def times(amounts: Mapping[str, int], count: int) -> Amounts:
    """Return amounts x count."""
    return {name: units * count for name, units in amounts.items()} if count else {}


def total(many: Iterable[Mapping[str, int]]) -> Amounts:
    """Return the sum of many."""
    result: Amounts = {}
    for amounts in many:
        for name, units in amounts.items():
            result[name] = result.get(name, 0) + units
    return result


def add_to(sums: dict[str, int], amounts: Mapping[str, int], times: int = 1) -> None:
    """Add amounts x times to sums; a negative count takes them away."""
    for name, units in amounts.items():
        sums[name] = sums.get(name, 0) + units * times


def named(amounts: Mapping[str, int]) -> Amounts:
    """Return a request without its zeros, in the order of names."""
    return {name: amounts[name] for name in sorted(amounts) if amounts[name] > 0}


def scaled(amounts: Mapping[str, int], thousandths: int) -> Amounts:
    """Return floor(amounts x thousandths / 1000), per dimension."""
    return {name: units * thousandths // 1000 for name, units in amounts.items()}


def of_pod(requests: Mapping[str, int]) -> Amounts:
    """Return what a pod occupies: its requests, and one `pods`."""
    return {**named(requests), PODS: ONE_POD}


def with_untyped(amounts: Amounts) -> Amounts:
    """Return amounts in which each type of a resource counts as that resource, too: `gpu:h100` 2 as
    `gpu` 2. A resource that is stated is left as it is.
    """
    if not any(":" in name for name in amounts):
        return amounts
    return {**_untyped(amounts), **amounts}


def used_of(offered: Mapping[str, int], used: Mapping[str, int]) -> Amounts:
    """Return what is in use of what a node offers, where requests for any type use its types, too.

    Of a type, at least that much is in use which the other types cannot be: no type has more left
    than its resource has.
    """
    found = dict(used)
    for name, units in offered.items():
        base, colon, _ = name.partition(":")
        beyond_others = used.get(base, 0) - max(0, offered.get(base, 0) - units)
        if colon and base in offered and beyond_others > found.get(name, 0):
            found[name] = beyond_others
    return found


def untyped_lacking(amounts: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield the resources that state less than the sum of their types, and that sum."""
    for base, units in _untyped(amounts).items():
        if units > amounts.get(base, 0):
            yield base, units


def with_amount(amounts: Mapping[str, int], resource: str, units: int) -> Amounts:
    """Return amounts with this much of a resource: its types never exceed it, and it changes with
    each of them.
    """
    changed = {**amounts, resource: units}
    base, colon, _ = resource.partition(":")
    if colon:
        rest = amounts.get(base, 0) - amounts.get(resource, 0)
        return {**changed, base: max(0, rest) + units}
    left = units
    for name in sorted(amounts):
        if name.startswith(f"{resource}:"):
            changed[name] = min(left, amounts[name])
            left -= changed[name]
    return changed


def _untyped(amounts: Mapping[str, int]) -> Amounts:
    sums: Amounts = {}
    for name, units in amounts.items():
        base, colon, _ = name.partition(":")
        if colon and units:
            sums[base] = sums.get(base, 0) + units
    return sums


def describe(amounts: Mapping[str, int]) -> str:
    """Return `cpu 4, memory 8Gi` for people, without the implied `pods`."""
    return _described(tuple(amounts.items()))


@lru_cache(maxsize=4096)
def _described(amounts: tuple[tuple[str, int], ...]) -> str:
    """Return the text of amounts; requests of one size are described many times."""
    parts = [
        f"{name} {describe_quantity(name, units)}"
        for name, units in sorted(amounts)
        if name != PODS
    ]
    return ", ".join(parts) or "nothing"


CPU = "cpu"
MEMORY = "memory"
GPU = "gpu"
PODS = "pods"
#: These have no types: `cpu:fast` is no resource.
UNTYPED_ONLY = frozenset({CPU, MEMORY, PODS})

#: Lua stores numbers as doubles; larger sums would lose their last digits there.
LARGEST = 2**53

_SUFFIX = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("1e-3"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "P": Decimal(10**15),
    "E": Decimal(10**18),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
    "Pi": Decimal(2**50),
    "Ei": Decimal(2**60),
}
_GRAMMAR = re.compile(
    r"([0-9]{1,30}(?:\.[0-9]{0,30})?|\.[0-9]{1,30})(?:([eE][+-]?[0-9]{1,2})|([A-Za-z]{0,2}))"
)
#: Numbers with more digits before the point, or a larger exponent, than the grammar has.
_HUGE = re.compile(
    r"0*[1-9][0-9]{30,}(?:\.[0-9]*)?[A-Za-z]{0,2}"
    r"|(?=[0-9.]*[1-9])[0-9]+(?:\.[0-9]*)?[eE]\+?0*[1-9][0-9]{2,}"
)
#: Memory as people write it elsewhere: `8GB`, `8g`, `1.5 GiB`.
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([kmgt])i?b?", re.IGNORECASE)


def units_per_whole(resource: str) -> int:
    """Return the integer units in one whole `resource` (1 byte, 1000 milli-cores …)."""
    return 1 if resource == MEMORY else 1000


def parse_quantity(resource: str, written: str | int | float) -> int:
    """Return the amount of `resource`, in its integer unit.

    Raises ValueError, with what was expected and found, for anything that is not a quantity, is
    negative, or is larger than 2^53 units.
    """
    if isinstance(written, bool) or not isinstance(written, str | int | float):
        raise ValueError(f"expected a quantity such as 500m, 2 or 64Gi, found {written!r}")
    text = str(written).strip()
    match = _GRAMMAR.fullmatch(text)
    if match is None or (match[3] or "") not in _SUFFIX:
        shown = text if len(text) <= 40 else text[:37] + "..."
        if text.startswith("-"):
            raise ValueError(f"expected a quantity of zero or more, found {shown!r}")
        if _HUGE.fullmatch(text):
            raise ValueError(f"expected a quantity of at most 2^53 units, found {shown!r}")
        size = _SIZE.fullmatch(shown) if resource == MEMORY else None
        meant = f"; did you mean {size[1]}{size[2].upper()}i?" if size else ""
        raise ValueError(f"expected a quantity such as 500m, 2 or 64Gi, found {shown!r}{meant}")
    number = Decimal(match[1] + (match[2] or "")) * _SUFFIX[match[3] or ""]
    units = int((number * units_per_whole(resource)).to_integral_value(ROUND_CEILING))
    if units > LARGEST:
        raise ValueError(f"expected a quantity of at most 2^53 units, found {text!r}")
    return units


#: A smaller number of bytes is too small for any process: a unit was forgotten.
_LEAST_BYTES = 1 << 20
#: A smaller number probably means Gi, a larger one Mi.
_LEAST_MEBIBYTES = 64


def doubtful_memory(written: object) -> str:
    """Return a question if memory is too little for any process, and has no unit; else "":
    `512 bytes; did you mean 512Mi or 512Gi?`
    """
    if isinstance(written, bool) or not isinstance(written, str | int):
        return ""
    text = str(written)
    if not (text.isascii() and text.isdecimal()) or not 0 < int(text[:20]) < _LEAST_BYTES:
        return ""
    likely = ("Gi", "Mi") if int(text) < _LEAST_MEBIBYTES else ("Mi", "Gi")
    return f"{text} bytes; did you mean {' or '.join(text + unit for unit in likely)}?"


def format_quantity(resource: str, units: int) -> str:
    """Return the canonical text: cpu `1500m` or `2`, memory in plain bytes, others as a decimal."""
    if resource == MEMORY:
        return str(units)
    sign, units = ("-", -units) if units < 0 else ("", units)
    whole, rest = divmod(units, 1000)
    if rest == 0:
        return f"{sign}{whole}"
    if resource == CPU:
        return f"{sign}{units}m"
    return f"{sign}{whole}.{rest:03d}".rstrip("0")


def describe_quantity(resource: str, units: int) -> str:
    """Return the text for people: memory in the largest binary unit that keeps it short."""
    if resource != MEMORY:
        return format_quantity(resource, units)
    size = float(units)
    for suffix in ("", "Ki", "Mi", "Gi", "Ti"):
        if abs(size) < 1024 or suffix == "Ti":
            return f"{size:.0f}{suffix}" if size == int(size) else f"{size:.1f}{suffix}"
        size /= 1024
    return str(units)
