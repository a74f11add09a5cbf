"""What pods write about themselves while they run, which shows whether one ran twice at once."""

from __future__ import annotations

from pathlib import Path

#: For `sh -c`: $0 is the diary, $1 how many tenths of a second the pod lives.
SCRIPT = """
write() { echo "$BATCHQ_INDEX $$ $1" >> "$0"; }
write start; left=$1
while [ "$left" -gt 0 ]; do sleep 0.1; write alive; left=$((left - 1)); done
write end
"""


def command(diary: Path, tenths: int) -> list[str]:
    """Return the command of a pod that keeps a diary."""
    return ["sh", "-c", SCRIPT, str(diary), str(tenths)]


class Diary:
    """The entries in the order in which they were written: (index, pid, word)."""

    def __init__(self, path: Path) -> None:
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [line.split() for line in lines]
        self.entries = [(int(row[0]), int(row[1]), row[2]) for row in rows if len(row) == 3]

    def count(self, word: str) -> dict[int, int]:
        """Return how often each pod wrote the word, by its index."""
        found: dict[int, int] = {}
        for index, _, said in self.entries:
            found[index] = found.get(index, 0) + (said == word)
        return found

    def overlaps(self) -> list[str]:
        """Return the entries that a process of a pod wrote after the next one had started."""
        faults: list[str] = []
        seen: dict[int, list[int]] = {}
        for place, (index, pid, word) in enumerate(self.entries):
            pids = seen.setdefault(index, [])
            if pid not in pids:
                pids.append(pid)
            elif pid != pids[-1]:
                faults.append(f"entry {place}: pod {index}, process {pid} wrote {word} too late")
        return faults
