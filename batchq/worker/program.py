"""What is started for a pod: its template's command, or a process that calls its function.

A function runs in a process of its own, `batchq.worker.callee`, which is watched over and stopped
as any command is. The call goes to it in a file without a name that only the two of them hold, and
the answer comes back in it when the process has ended: nobody has to read meanwhile, nothing is
left on the disk, and `ps` shows no argument.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

import msgspec
from msgspec import Struct, structs

from batchq.api.objects import PodTemplate
from batchq.worker import callee
from batchq.worker.outcome import NOT_EXECUTABLE, Outcome
from batchq.worker.process import NotStarted

#: -P: neither the folder of the script nor that of the pod is searched for what the callee imports.
CALLEE = (sys.executable, "-P", callee.__file__)
#: A result and the braces around it, or a message in which every character is spelled out.
_ANSWER_MOST_BYTES = callee.RESULT_MOST_BYTES + 8192
_ENDED_EARLY = "its process ended before the function had returned; return instead of os._exit"


class _Answer(Struct):
    result: msgspec.Raw = msgspec.Raw(b"")
    message: str = ""


class Program:
    """What a template says is to run: `argv` with `stdin`; owned by the work-horse."""

    def __init__(self, template: PodTemplate) -> None:
        """Raises NotStarted."""
        self.is_function = bool(template.function)
        self.argv: Sequence[str] = CALLEE if template.function else template.command
        self.stdin: int = _file_of(template) if template.function else subprocess.DEVNULL

    def settled(self, outcome: Outcome) -> tuple[Outcome, bytes | None]:
        """Once it has ended: the outcome with what a function says of it, and its result as JSON.

        There is a result only of a process that ended with 0 and was not told to stop.
        """
        if self.stdin == subprocess.DEVNULL:
            return outcome, None
        answer = _answer_in(self.stdin)
        self.close()
        if outcome.stopped or outcome.signal is not None:
            return outcome, None
        if outcome.exit_code != 0:
            return _explained(outcome, answer.message[: callee.MESSAGE_MOST]), None
        result = bytes(answer.result)
        if not result or len(result) > callee.RESULT_MOST_BYTES:
            failed = structs.replace(outcome, exit_code=callee.RAISED)
            return _explained(failed, _ENDED_EARLY), None
        return outcome, result

    def close(self) -> None:
        """Let go of the call and the answer; may be called twice."""
        if self.stdin != subprocess.DEVNULL:
            os.close(self.stdin)
            self.stdin = subprocess.DEVNULL


def _file_of(template: PodTemplate) -> int:
    call = msgspec.json.encode((template.function, template.args, template.kwargs))
    try:
        file = os.memfd_create("batchq-call")
        os.pwrite(file, call, 0)
    except OSError as trouble:
        message = f"the call of {template.function} cannot be handed over: {trouble.strerror}"
        raise NotStarted(Outcome(exit_code=NOT_EXECUTABLE, message=message)) from None
    return file


def _answer_in(file: int) -> _Answer:
    """What stands in the file. The pod may have written anything: then it is no answer."""
    try:
        return msgspec.json.decode(os.pread(file, _ANSWER_MOST_BYTES, 0), type=_Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Answer()


def _explained(outcome: Outcome, message: str) -> Outcome:
    parts = (message, outcome.message)
    return structs.replace(outcome, message="; ".join(part for part in parts if part))
