"""What the pods of a replay wrote themselves, and what it proves.

Every pod appends a line when it starts and one when it ends to one file; lines this short are
appended whole, so their order in the file is the order in which they happened. The file knows
nothing of batchq and is therefore its judge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

#: The pod's command, after `sh -c`: $0 is the journal, $1 the job's number, $2 seconds to sleep.
SCRIPT = 'echo "start $1 $$" >> "$0" && sleep "$2" && echo "end $1 $$" >> "$0"'


class Line(Struct, frozen=True):
    """`word` is start or end; `pid` is the pod's process."""

    word: str
    job: int
    pid: int


def command(journal: Path, job: int, sleep_s: float) -> tuple[str, ...]:
    """What the pod of a job runs."""
    return ("sh", "-c", SCRIPT, str(journal), str(job), f"{sleep_s:.6f}")


def read_journal(path: Path) -> list[Line]:
    """Every line, in order; none if no pod has written yet. What is no such line is left out."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    lines = []
    for row in text.splitlines():
        parts = row.split()
        if len(parts) == 3 and parts[0] in ("start", "end") and (parts[1] + parts[2]).isdigit():
            lines.append(Line(parts[0], int(parts[1]), int(parts[2])))
    return lines


def not_exactly_once(lines: Sequence[Line], jobs: Iterable[int]) -> Mapping[int, str]:
    """The jobs that did not start once and end once, each with what was found instead."""
    counts = Counter((line.word, line.job) for line in lines)
    found = {}
    for job in jobs:
        starts, ends = counts["start", job], counts["end", job]
        if (starts, ends) != (1, 1):
            found[job] = f"started {times(starts)}, ended {times(ends)}"
    return found


def times(count: int) -> str:
    """`never`, `once`, `3 times`."""
    return {0: "never", 1: "once"}.get(count, f"{count} times")
