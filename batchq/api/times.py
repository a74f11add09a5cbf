"""Instants and durations: integer milliseconds internally, readable text in manifests and output.

Instants are RFC 3339 or integer seconds, durations `90s`, `2h`, `1d`, `1h30m` or integer seconds.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

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


def _in_utc(moment: datetime) -> datetime:
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _shown(written: object) -> str:
    text = repr(written)
    return text if len(text) <= 42 else text[:39] + "..."
