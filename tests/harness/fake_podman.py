"""A stand-in for podman on a PATH: it pulls when a file says so, and runs programs of the host.

Real containers need rights that the machines of tests may not give.
"""

from __future__ import annotations

from pathlib import Path

IMAGE = "registry.example/tiny:1"

#: `$0` is in a folder with `log`, a line for each call; `images`, what was pulled; and `answer`:
#: `wait` (a pull waits for another answer), `ok`, or what a pull says when it fails; and maybe
#: `before`, which each pull runs.
_SCRIPT = """#!/bin/sh
folder=$(dirname "$0")
case "$1" in
image)
    grep -qxF "$3" "$folder/images" 2>/dev/null
    ;;
pull)
    echo "pull $3 $$" >> "$folder/log"
    [ ! -e "$folder/before" ] || . "$folder/before"
    while [ "$(cat "$folder/answer")" = wait ]; do sleep 0.05; done
    if [ "$(cat "$folder/answer")" != ok ]; then cat "$folder/answer" >&2; exit 125; fi
    echo "$3" >> "$folder/images"
    ;;
run)
    while [ "$1" != "IMAGE" ]; do shift; done
    shift
    exec "$@"
    ;;
esac
""".replace("IMAGE", IMAGE)


class FakePodman:
    """The stand-in in a folder, which a test adds to its PATH."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        program = folder / "podman"
        program.write_text(_SCRIPT)
        program.chmod(0o755)
        self.answer("wait")

    def answer(self, word: str) -> None:
        """Say how pulls end from now on."""
        fresh = self.folder / "answer.new"
        fresh.write_text(word)
        fresh.replace(self.folder / "answer")

    def before_the_answer(self, command: str) -> None:
        """Have each pull run a command of the shell first, if it waits for an answer."""
        (self.folder / "before").write_text(f'[ "$(cat "$folder/answer")" != wait ] || {command}\n')

    def pulls(self) -> list[int]:
        """Return the pid of each pull."""
        log = self.folder / "log"
        return (
            [int(line.split()[2]) for line in log.read_text().splitlines()] if log.exists() else []
        )
