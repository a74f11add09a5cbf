"""One check of a consumer: a stack of its own, every promise in turn, nothing left behind."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct

from batchq.api.objects import Metadata, Queue
from batchq.client import Client
from batchq.consumercheck.promises import PROMISES
from batchq.consumercheck.stage import OTHERS, SERVED, USUAL_PATIENCE_S, Broken, Stage
from batchq.daemon import stack
from batchq.errors import BatchqError, InvalidInput
from batchq.paths import Home, default_url

#: A requeued group is admitted again soon: nobody wants to wait for that here.
_CONFIG = "backoffFirst: 1s\nschedulePeriod: 200ms\n"


class Finding(Struct, frozen=True, kw_only=True):
    """Whether one promise is kept; `why` says what was seen where it is not."""

    promise: str
    ok: bool
    why: str
    seconds: float

    def __str__(self) -> str:
        """One line for people."""
        word = "ok      " if self.ok else "FAILED  "
        return f"{word}{self.promise}{f': {self.why}' if self.why else ''}"


def check_consumer(
    command: Sequence[str],
    *,
    tell: Callable[[Finding], None],
    patience_s: float = USUAL_PATIENCE_S,
    only: Sequence[str] = (),
) -> list[Finding]:
    """Go through the promises (`only` those of these names), and tell of each as it is judged.

    `patience_s` is how long anything may take that nothing keeps from happening.

    Raises InvalidInput for a program that is not there, BatchqError where the stack cannot start.
    """
    program = shutil.which(command[0])
    if program is None:
        raise InvalidInput(
            f"there is no program {command[0]}", hint="give its path, or put it on PATH"
        )
    # Not under TMPDIR: the path of a socket is short.
    with tempfile.TemporaryDirectory(prefix="bq-check-", dir="/tmp") as place:
        folder = Path(place)
        home, config = Home(folder / "home"), folder / "scheduler.yaml"
        config.write_text(_CONFIG, encoding="utf-8")
        url = default_url(home)
        try:
            stack.up(home, stack.UpOptions(url=url, agents=0, config=config))
            with Client(url) as client:
                client.apply([Queue(metadata=Metadata(name=name)) for name in (SERVED, OTHERS)])
                words = (program, *command[1:])
                stage = Stage(client, url, folder, words, patience_s=patience_s)
                return _findings(stage, tell, only)
        finally:
            stack.down(home, url=url)


def _findings(stage: Stage, tell: Callable[[Finding], None], only: Sequence[str]) -> list[Finding]:
    findings = []
    for promise, judge, names in PROMISES:
        if only and judge.__name__ not in only:
            continue
        started = time.monotonic()
        why = _judge(stage, judge)
        stage.clear(names)
        finding = Finding(promise=promise, ok=not why, why=why, seconds=time.monotonic() - started)
        findings.append(finding)
        tell(finding)
    return findings


def _judge(stage: Stage, judge: Callable[[Stage], None]) -> str:
    """Empty where the promise is kept."""
    try:
        judge(stage)
    except Broken as broken:
        return str(broken)
    except BatchqError as problem:
        # A group that the consumer has deleted, say.
        return problem.message
    finally:
        stage.dismiss()
    return ""
