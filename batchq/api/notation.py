"""Conversion between structs and people's notation: `64Gi`, `90s`, `2026-01-31T12:00:00Z`.

The conversion walks the structs' own type information, so a field added to a struct is read,
checked and written without a change here. The markers on the types (`Amounts`, `Duration`,
`Instant`, `Factor` in `batchq.api.objects`) select the notation. Nothing is guessed: an unknown
field or a wrong type is a `Malformed` that names the path, what was expected and what was found.
Also the rules for names and for JSON values.

Instants and durations are integer milliseconds internally. People write instants in RFC 3339 or as
integer seconds, and durations as `90s`, `2h`, `1d`, `1h30m` or integer seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from functools import cache, partial
from math import isfinite
from typing import Any, TypeAlias, TypeVar, cast, overload

import msgspec
from msgspec import Struct, inspect

from batchq.api.reasons import Verdict
from batchq.api.resources import LARGEST, UNTYPED_ONLY, format_quantity, parse_quantity

#: The years of Python's calendar, 1 to 9999, in milliseconds.
FIRST_INSTANT, LAST_INSTANT = -62_135_596_800_000, 253_402_300_799_999
SECOND = 1000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

_UNITS_MS = {"ms": 1, "s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY}
_PART = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,3}))?(ms|s|m|h|d)")

#: A century: longer durations and later instants are typing errors.
_LONGEST_MS = 36525 * DAY


def parse_duration(written: str | int | float) -> int:
    """Return the milliseconds of `90s`, `1h30m`, `2d`, `250ms`, or of a plain number of seconds.

    Raises ValueError with what was expected and found.
    """
    expected = "expected a duration such as 90s, 2h or 1d"
    if isinstance(written, bool):
        raise ValueError(f"{expected}, found {written!r}")
    if isinstance(written, int | float):
        milliseconds = round(written * SECOND) if abs(written) < 1e15 else -1
    else:
        text = str(written).strip()
        if re.fullmatch(r"[0-9]{1,15}", text):
            milliseconds = int(text) * SECOND
        else:
            milliseconds, position = 0, 0
            while match := _PART.match(text, position):
                unit = _UNITS_MS[match[3]]
                milliseconds += (
                    int(match[1]) * unit + int((match[2] or "0").ljust(3, "0")) * unit // 1000
                )
                position = match.end()
            if position == 0 or position != len(text):
                raise ValueError(f"{expected}, found {_shown(text)}{_clock_hint(text)}")
    if not 0 <= milliseconds <= _LONGEST_MS:
        raise ValueError(f"expected a duration between 0 and 100 years, found {_shown(written)}")
    return milliseconds


def _clock_hint(text: str) -> str:
    """Return how to write a duration such as 1-02:30:00, the notation of Slurm; '' for others."""
    clock = re.fullmatch(r"(?:([0-9]{1,4})-)?([0-9]{1,4}):([0-5][0-9]):([0-5][0-9])", text)
    if clock is None:
        return ""
    parts = zip(clock.groups(default="0"), "dhms", strict=True)
    return (
        f"; write {''.join(f'{int(count)}{unit}' for count, unit in parts if int(count)) or '0s'}"
    )


def format_duration(milliseconds: int) -> str:
    """Return the shortest exact text: 90000 -> `90s`, 7200000 -> `2h`, 1500 -> `1500ms`."""
    if milliseconds == 0:
        return "0s"
    for unit, size in (("d", DAY), ("h", HOUR), ("m", MINUTE), ("s", SECOND)):
        if milliseconds % size == 0 and (
            milliseconds >= 2 * size or unit == "s" or milliseconds == size
        ):
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


def parse_instant(written: str | int | float | datetime) -> int:
    """Return the milliseconds since the epoch of an RFC 3339 text or of integer seconds.

    Raises ValueError with what was expected and found.
    """
    expected = "expected an RFC 3339 time such as 2026-01-31T12:00:00Z, or integer seconds"
    if isinstance(written, bool):
        raise ValueError(f"{expected}, found {written!r}")
    if isinstance(written, datetime):
        return round(_in_utc(written).timestamp() * SECOND)
    if isinstance(written, int | float):
        if not 0 <= written < 1e11:
            raise ValueError(f"{expected}, found {_shown(written)}")
        return round(written * SECOND)
    text = str(written).strip()
    if re.fullmatch(r"[0-9]{1,11}", text):
        return int(text) * SECOND
    if not re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ]", text):
        raise ValueError(f"{expected}, found {_shown(text)}")
    try:
        return round(_in_utc(datetime.fromisoformat(text)).timestamp() * SECOND)
    except (ValueError, OverflowError):
        raise ValueError(f"{expected}, found {_shown(text)}") from None


def format_instant(milliseconds: int) -> str:
    """Return RFC 3339 in UTC, with milliseconds only if they are not zero; beyond the calendar, its
    first or last instant.
    """
    milliseconds = max(FIRST_INSTANT, min(LAST_INSTANT, milliseconds))
    moment = datetime.fromtimestamp(milliseconds / SECOND, tz=UTC)
    precision = "milliseconds" if milliseconds % SECOND else "seconds"
    return moment.isoformat(timespec=precision).replace("+00:00", "Z")


def describe_age(milliseconds: int) -> str:
    """Return an age for lists: `12s`, `4m30s`, `2h5m`, `3d4h`."""
    if milliseconds < 0:
        milliseconds = 0
    for size, small, names in ((DAY, HOUR, "dh"), (HOUR, MINUTE, "hm"), (MINUTE, SECOND, "ms")):
        if milliseconds >= size:
            rest = milliseconds % size // small
            return f"{milliseconds // size}{names[0]}" + (f"{rest}{names[1]}" if rest else "")
    return f"{milliseconds // SECOND}s"


def describe_timeout(seconds: float) -> str:
    """Return how long something was waited for, as an age; below a second in milliseconds."""
    milliseconds = round(seconds * SECOND)
    return f"{milliseconds}ms" if 0 < milliseconds < SECOND else describe_age(milliseconds)


def _in_utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _shown(written: object) -> str:
    text = repr(written)
    return text if len(text) <= 42 else text[:39] + "..."


Path: TypeAlias = tuple[str | int, ...]
#: A field as written: its name, its value, and its path.
Entry: TypeAlias = tuple[str, object, Path]
#: Normalises a struct that may be written in more than one way.
Unfold: TypeAlias = Callable[[Mapping[str, object], Path], Iterable[Entry]]

S = TypeVar("S", bound=Struct)

#: In these fields a number is read as its text: `annotations: {batchq/runtime: 30}`.
_TEXT_OF_NUMBERS = frozenset({"annotations", "command", "env", "halfLife", "parameters"})
_LARGEST_FACTOR = 1_000_000
#: Short, and with a short exponent: an exponent of millions costs as many digits, or overflows.
_FACTOR = re.compile(r"[+-]?([0-9]{1,20}(\.[0-9]{0,20})?|\.[0-9]{1,20})([eE][+-]?[0-9]{1,2})?")


class Malformed(Exception):
    """Input that does not fit; `text` says what was expected and found at `path`."""

    def __init__(self, path: Path, text: str) -> None:
        super().__init__(f"{path_text(path)}: {text}" if path else text)
        self.path = path
        self.text = text


def path_text(path: Path) -> str:
    """Return `spec.tasks[0].template.requests["example.com/gpu"]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier() and len(part) <= 64:
            text += f".{part}" if text else part
        else:
            text += f"[{shown(part)}]"
    return text


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the entry of `known` that was probably meant; "" if none is near."""
    from difflib import get_close_matches

    by_lower = {name.lower(): name for name in known}
    found = get_close_matches(word[:80].lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else ""


#: What fields of manifests are called in requests.
_OF_REQUESTS = {"after": "dependsOn", "gates": "schedulingGates", "retries": "retry"}


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return `did you mean 'queue'?`, or the list of known words."""
    choices = list(known)
    meant = _OF_REQUESTS.get(word)
    near = meant if meant in choices else nearest(word, choices)
    if near:
        return f"did you mean {near!r}?"
    return f"known: {', '.join(choices)}" if choices else "none is known here"


def mapping_at(data: object, path: Path) -> Mapping[str, object]:
    """Return `data` as a mapping with text keys; an empty one for None. Raises Malformed."""
    if data is None:
        return {}
    if not isinstance(data, Mapping):
        raise Malformed(path, f"expected a mapping, found {shown(data)}")
    for key in data:
        if not isinstance(key, str):
            raise Malformed(path, f"expected text as the name of a field, found {shown(key)}")
    return data


def read(kind: type[S], data: object, path: Path = (), *, unfold: Mapping[type, Unfold] = {}) -> S:
    """Return the struct `kind` that `data` describes. Raises Malformed."""
    return cast(S, _read_struct(_struct_type(kind), data, path, unfold))


@cache
def _struct_type(kind: type[Struct]) -> inspect.StructType:
    return cast(inspect.StructType, inspect.type_info(kind))


def _read_struct(
    kind: inspect.StructType, data: object, path: Path, unfold: Mapping[type, Unfold]
) -> Struct:
    written = mapping_at(data, path)
    known = {field.encode_name: field for field in kind.fields}
    found: dict[str, Any] = {}
    for name, value, place in _entries(kind.cls, written, path, unfold):
        if name not in known:
            hint = suggestion(name, known)
            raise Malformed(place, f"there is no such field; {hint}")
        if value is not None:
            field = known[name]
            found[field.name] = _read(field.type, value, place, unfold)
    for field in kind.fields:
        if field.required and field.name not in found:
            raise Malformed((*path, field.encode_name), "this field is required")
    built: Struct = kind.cls(**found)
    return built


def _entries(
    kind: type, written: Mapping[str, object], path: Path, unfold: Mapping[type, Unfold]
) -> Iterable[Entry]:
    if kind is Verdict:
        return _verdict_entries(written, path)
    if kind in unfold:
        return unfold[kind](written, path)
    return fields_of(written, path)


def fields_of(written: Mapping[str, object], path: Path) -> Iterator[Entry]:
    """Yield each field of a mapping with its path."""
    return ((name, value, (*path, name)) for name, value in written.items())


def _read(kind: inspect.Type, data: object, path: Path, unfold: Mapping[type, Unfold]) -> object:
    match kind:
        case inspect.Metadata(type=inner, extra=extra):
            return (
                _read_form(extra["form"], data, path) if extra else _read(inner, data, path, unfold)
            )
        case inspect.StructType():
            return _read_struct(kind, data, path, unfold)
        case inspect.VarTupleType(item_type=item):
            return _read_list(item, data, path, unfold)
        case inspect.DictType(value_type=value):
            return {
                name: _read(value, item, (*path, _text(name, path)), unfold)
                for name, item in mapping_at(data, path).items()
            }
        case inspect.UnionType(types=types):
            member = _member_for(types, data)
            if isinstance(member, inspect.LiteralType) and len(types) > 1:
                return _word_or_number(types, member, data, path)
            return _read(member, data, path, unfold)
        case inspect.RawType():
            return _read_raw(data, path)
        case _:
            return _read_scalar(kind, data, path)


def _read_scalar(kind: inspect.Type, data: object, path: Path) -> object:
    match kind:
        case inspect.StrType():
            return _text(data, path)
        case inspect.BoolType():
            if not isinstance(data, bool):
                raise Malformed(path, f"expected true or false, found {shown(data)}")
            return data
        case inspect.IntType():
            return _whole(data, path)
        case inspect.LiteralType(values=values):
            return _choice(tuple(str(value) for value in values), data, path)
        case inspect.EnumType(cls=cls):
            return cls(_choice(tuple(str(member.value) for member in cls), data, path))
        case _:
            raise TypeError(f"no notation is defined for {kind!r} at {path_text(path)}")


def _read_list(
    item: inspect.Type, data: object, path: Path, unfold: Mapping[type, Unfold]
) -> tuple[object, ...]:
    if not isinstance(data, list | tuple):
        hint = ""
        if path[-1] == "command" and isinstance(data, str):
            hint = '; write the words as a list, or for a shell line ["sh", "-c", "…"]'
        raise Malformed(path, f"expected a list, found {shown(data)}{hint}")
    return tuple(_read(item, value, (*path, place), unfold) for place, value in enumerate(data))


def _member_for(types: tuple[inspect.Type, ...], data: object) -> inspect.Type:
    """Return the member of `X | None` or `int | Literal[...]` that `data` is meant for."""
    members = [kind for kind in types if not isinstance(kind, inspect.NoneType)]
    if len(members) == 1:
        return members[0]
    wanted = (
        inspect.IntType
        if isinstance(data, int) and not isinstance(data, bool)
        else inspect.LiteralType
    )
    return next(kind for kind in members if isinstance(kind, wanted))


def _text(data: object, path: Path) -> str:
    if isinstance(data, int | float) and not isinstance(data, bool):
        if _TEXT_OF_NUMBERS.intersection(path[-2:]):
            return str(data)
        raise Malformed(path, f"expected text, found {shown(data)}; put it in quotes")
    if isinstance(data, bool):
        raise Malformed(path, f"expected text, found {shown(data)}; put it in quotes")
    if not isinstance(data, str):
        raise Malformed(path, f"expected text, found {shown(data)}")
    try:
        data.encode()
    except UnicodeEncodeError:
        raise Malformed(
            path, "expected text, found characters that are not valid Unicode"
        ) from None
    return data


#: YAML reads a number with too many digits as text.
_MANY_DIGITS = re.compile(r"-?[0-9]{17,}")


def _whole(data: object, path: Path) -> int:
    if isinstance(data, bool) or not isinstance(data, int):
        too_large = isinstance(data, str) and _MANY_DIGITS.fullmatch(data[:1000])
        most = " of at most 2^53" if too_large else ""
        raise Malformed(path, f"expected a whole number{most}, found {shown(data)}")
    if abs(data) > LARGEST:
        raise Malformed(path, f"expected a whole number of at most 2^53, found {shown(data)}")
    return data


def _choice(values: tuple[str, ...], data: object, path: Path) -> str:
    # YAML reads True and 1 as a boolean and a number; the words are meant.
    word = str(data) if isinstance(data, bool | int) else data
    if isinstance(word, str) and word in values:
        return word
    near = nearest(word, values) if isinstance(word, str) else ""
    hint = f"; did you mean {near!r}?" if near else ""
    raise Malformed(path, f"expected one of {', '.join(values)}, found {shown(data)}{hint}")


def _word_or_number(
    types: tuple[inspect.Type, ...], member: inspect.LiteralType, data: object, path: Path
) -> str:
    """Return one of a few words, where a number would do as well (if one is among the types)."""
    values = tuple(str(value) for value in member.values)
    if data in values or not any(isinstance(kind, inspect.IntType) for kind in types):
        return _choice(values, data, path)
    wanted = " or ".join(("a whole number", *values))
    raise Malformed(path, f"expected {wanted}, found {shown(data)}")


def _read_raw(data: object, path: Path) -> msgspec.Raw:
    try:
        return as_json(data)
    except NotJson as wrong:
        at = f" at {wrong.place}" if wrong.place else ""
        raise Malformed(
            path, f"expected a value that JSON can hold, found {wrong.found}{at}"
        ) from None


def _read_form(form: str, data: object, path: Path) -> object:
    if form == "amounts":
        return {name: _amount(name, item, path) for name, item in mapping_at(data, path).items()}
    if isinstance(data, dict | list):
        raise Malformed(path, f"expected {_FORMS[form]}, found {shown(data)}")
    try:
        match form:
            case "duration":
                return parse_duration(cast(Any, data))
            case "instant":
                return parse_instant(cast(Any, data))
            case "factor":
                return parse_factor(cast(Any, data))
    except ValueError as error:
        raise Malformed(path, str(error)) from None
    raise TypeError(f"no notation is defined for {form!r}")


_FORMS = {
    "duration": "a duration such as 90s",
    "instant": "a time",
    "factor": "a number such as 1.5",
}


def _amount(resource: str, data: object, path: Path) -> int:
    problem = resource_problem(resource)
    if problem:
        raise Malformed(path, problem)
    try:
        return parse_quantity(resource, cast(Any, data))
    except ValueError as error:
        text = str(error)
        if isinstance(data, dict | list | None):
            text = f"expected a quantity such as 500m, 2 or 64Gi, found {shown(data)}"
        raise Malformed((*path, resource), text) from None


def parse_factor(written: object) -> int:
    """Return the thousandths of a decimal such as 1.5.

    Raises ValueError with what was expected and found.
    """
    problem = (
        f"expected a number from 0 to 1000 with at most three decimals, found {shown(written)}"
    )
    if isinstance(written, bool) or not isinstance(written, str | int | float):
        raise ValueError(problem)
    text = str(written).strip() if isinstance(written, str | float) or abs(written) < 1e9 else ""
    if not _FACTOR.fullmatch(text):
        raise ValueError(problem)
    thousandths = Decimal(text) * 1000
    if not 0 <= thousandths <= _LARGEST_FACTOR or thousandths % 1:
        raise ValueError(problem)
    return int(thousandths)


def _verdict_entries(written: Mapping[str, object], path: Path) -> Iterator[Entry]:
    """Yield a verdict's fields: its numbers are written as quantities, its message is derived."""
    resource = written.get("resource") or ""
    for name, value, place in fields_of(written, path):
        if name == "message":
            continue
        if name in ("need", "limit", "seen") and value is not None and isinstance(resource, str):
            try:
                value = parse_quantity(resource, cast(Any, value))
            except ValueError as error:
                raise Malformed(place, str(error)) from None
        yield name, value, place


def write(value: Struct, *, always: frozenset[str] = frozenset()) -> dict[str, object]:
    """Return `value` in people's notation: fields in the order of the struct, defaults omitted.

    Fields named in `always` (`phase`) are written even at their default.
    """
    written: dict[str, object] = {}
    for field in _struct_type(type(value)).fields:
        content = getattr(value, field.name)
        if field.encode_name in always or field.required or content != default_of(field):
            written[field.encode_name] = _write(field.type, content)
    if isinstance(value, Verdict):
        for name in ("need", "limit", "seen"):
            if name in written:
                written[name] = format_quantity(value.resource, cast(int, written[name]))
        written["message"] = value.message()
    return written


def default_of(field: inspect.Field) -> object:
    """Return what an absent field means."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return None if field.default is msgspec.NODEFAULT else field.default


def _write(kind: inspect.Type, value: Any) -> object:
    match kind:
        case _ if value is None:
            return None
        case inspect.UnionType(types=types):
            member = next(each for each in types if not isinstance(each, inspect.NoneType))
            return _write(member, value)
        case inspect.Metadata(type=inner, extra=extra):
            return write_form(extra["form"], value) if extra else _write(inner, value)
        case inspect.StructType():
            return write(value)
        case inspect.VarTupleType(item_type=item):
            return [_write(item, each) for each in value]
        case inspect.DictType(value_type=item):
            return {name: _write(item, each) for name, each in value.items()}
        case inspect.RawType():
            return msgspec.json.decode(value)
        case _:
            return value.value if isinstance(value, Enum) else value


@overload
def data_of(value: Struct | Mapping[str, object]) -> dict[str, object]: ...
@overload
def data_of(value: object) -> object: ...
def data_of(value: object) -> object:
    """Return a view as programs read it: every field of its structs, in order; quantities,
    durations and times as people write them.

    Lists and maps may contain structs. Unlike `write`, it omits no defaults and sorts no amounts.
    """
    match value:
        case Struct():
            return {
                written: None if (each := getattr(value, name)) is None else write(each)
                for written, name, write in _writers(type(value))
            }
        case Enum():
            return value.value
        case str() | int() | float() | None:
            return value
        case Mapping():
            return {name: data_of(each) for name, each in value.items()}
        case list() | tuple():
            return [data_of(each) for each in value]
        case _:
            return value


@cache
def _writers(kind: type[Struct]) -> tuple[tuple[str, str, Callable[[Any], object]], ...]:
    """Return the name as written, the name, and the writer of each field of a struct."""
    fields = _struct_type(kind).fields
    return tuple((field.encode_name, field.name, _writer(field.type)) for field in fields)


def _writer(kind: inspect.Type) -> Callable[[Any], object]:
    """Return what writes a value of this type that is not None."""
    match kind:
        case inspect.UnionType(types=types):
            return _writer(next(one for one in types if not isinstance(one, inspect.NoneType)))
        case inspect.Metadata(extra={"form": "amounts"}):
            return _quantities
        case inspect.Metadata(extra={"form": form}):
            return partial(write_form, form)
        case inspect.DictType(value_type=item):
            write = _writer(item)
            return lambda value: {
                name: None if each is None else write(each) for name, each in value.items()
            }
        case _:
            return data_of


def _quantities(amounts: Mapping[str, int]) -> dict[str, str]:
    return {name: format_quantity(name, units) for name, units in amounts.items()}


def write_form(form: str, value: Any) -> object:
    """Return an amount map, a duration, an instant or a factor as people write it."""
    match form:
        case "amounts":
            return {name: format_quantity(name, value[name]) for name in sorted(value)}
        case "duration":
            return format_duration(value)
        case "instant":
            return format_instant(value)
        case "factor":
            return value // 1000 if value % 1000 == 0 else value / 1000
    raise TypeError(f"no notation is defined for {form!r}")


_DEEPEST = 64
_LARGEST = 10**300


class NotJson(ValueError):
    """Not a JSON value: what was found, and where in the value (`[2].when`)."""

    def __init__(self, place: str, found: str) -> None:
        super().__init__(place, found)
        self.place = place
        self.found = found


def as_json(value: object) -> msgspec.Raw:
    """Return `value` as JSON, exactly: no value is converted to a similar one that JSON has.

    Raises NotJson.
    """
    _check(value, "", 0)
    # Encoded twice, so that subclasses of plain types (NumPy's float64) become plain, and 1e16 has
    # one form whatever its source.
    return msgspec.Raw(msgspec.json.encode(json.loads(json.dumps(value))))


def _check(value: object, place: str, depth: int) -> None:
    if depth > _DEEPEST:
        raise NotJson("", f"values nested deeper than {_DEEPEST}")
    match value:
        case None | bool():
            return
        case int():
            if abs(value) >= _LARGEST:
                raise NotJson(place, "a number of more than 300 digits")
        case float():
            if not isfinite(value):
                raise NotJson(place, str(value))
        case str():
            _check_text(value, place)
        case list() | tuple():
            for number, item in enumerate(value):
                _check(item, f"{place}[{number}]", depth + 1)
        case dict():
            _check_table(value, place, depth)
        case _:
            raise NotJson(place, f"a {type(value).__module__}.{type(value).__qualname__}")


def _check_table(table: dict[object, object], place: str, depth: int) -> None:
    for key, item in table.items():
        if not isinstance(key, str):
            raise NotJson(place, f"a key that is not text ({shown(key)})")
        _check_text(key, place)
        _check(item, f"{place}.{key[:40]}", depth + 1)


def _check_text(text: str, place: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise NotJson(place, "text that is not Unicode") from None


_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_WORD = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")

LABEL_MOST = 63
SUBDOMAIN_MOST = 253


def shown(value: object, most: int = 48) -> str:
    """Return `value` for an error message: quoted, and cut to `most` characters."""
    if isinstance(value, str):
        if "://" in value:
            # A URL may contain a password, wherever it was typed.
            return "a URL"
        # Cut before quoting: repr of a megabyte is a megabyte.
        text = repr(value[:most])
        return text if len(value) <= most else f"{text[:-1]}...' ({len(value)} characters)"
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value) if abs(value) < 10**20 else "a number of more than 20 digits"
        case dict():
            return f"a mapping of {counted(len(value), 'field')}" if value else "an empty mapping"
        case list() | tuple():
            return f"a list of {counted(len(value), 'item')}" if value else "an empty list"
        case _:
            text = "" if callable(value) else repr(value)
            # An object that is cut in the middle of a word tells less than its type.
            return text if 0 < len(text) <= most else f"an object of type {type(value).__name__}"


def counted(count: int, noun: str) -> str:
    """Return `1 pod`, `2 pods`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def label_problem(name: str) -> str:
    """Check a name of a group, quota, task or namespace, a DNS label; return the problem, or ""."""
    if len(name) <= LABEL_MOST and _LABEL.fullmatch(name):
        return ""
    return (
        f"expected at most {LABEL_MOST} lower-case letters, digits and '-',"
        f" with a letter or digit at both ends, found {shown(name)}"
    )


def subdomain_problem(name: str) -> str:
    """Return what is wrong with a name that must be a DNS subdomain; "" for a valid one."""
    if len(name) <= SUBDOMAIN_MOST and _SUBDOMAIN.fullmatch(name):
        return ""
    return (
        f"expected at most {SUBDOMAIN_MOST} lower-case letters, digits, '-' and '.',"
        f" with a letter or digit at both ends, found {shown(name)}"
    )


def resource_problem(name: str) -> str:
    """Check a name of a resource, `gpu` or `example.com/gpu`, and after a colon the type of a
    resource that has types, `gpu:h100`; return the problem, or "".
    """
    base, colon, kind = name.partition(":")
    if not colon:
        return qualified_problem(name)
    if base in UNTYPED_ONLY:
        return f"{base} has no types; expected {base}, found {shown(name)}"
    if len(kind) <= LABEL_MOST and _WORD.fullmatch(kind) and not qualified_problem(base):
        return ""
    return f"expected a name such as gpu or gpu:h100, found {shown(name)}"


def qualified_problem(name: str) -> str:
    """Check a name of a resource, gate or label, `gpu` or `example.com/gpu`; return the problem, or
    "".
    """
    domain, slash, word = name.rpartition("/") if len(name) <= 317 else ("", "", "")
    if (
        len(word) <= LABEL_MOST
        and _WORD.fullmatch(word)
        and (not slash or not subdomain_problem(domain))
    ):
        return ""
    return f"expected a name such as gpu or example.com/gpu, found {shown(name)}"


def label_value_problem(value: str) -> str:
    """Check a value of a label, a short plain word or nothing; return the problem, or ""."""
    if not value or (len(value) <= LABEL_MOST and _WORD.fullmatch(value)):
        return ""
    return (
        f"expected at most {LABEL_MOST} letters, digits, '-', '_' and '.',"
        f" with a letter or digit at both ends, found {shown(value)}"
    )
