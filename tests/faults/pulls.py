"""The pulls of images on a machine: how long they take and how they end is known from their names,
so that a seed reproduces them.
"""

from __future__ import annotations

from zlib import crc32

from batchq.api.node_report import MOST_PULLS, PodAttempt
from batchq.api.objects import Pod
from batchq.errors import InvariantBroken
from batchq.worker.agent import messages
from batchq.worker.agent.pod_states import PodState
from batchq.worker.agent.state_machine import AgentState
from tests.faults.machines import Machine

_TAKES_MS = (0, 200, 1_000, 3_000, 12_000, 70_000)


class Pulls:
    """The processes of one agent that pull images; they end with it. What they have pulled stays
    on the machine.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        #: Image -> (when its pull ends, the attempts that wait for it).
        self._running: dict[str, tuple[int, list[PodAttempt]]] = {}
        self._tries: dict[str, int] = {}

    def next_at(self) -> list[int]:
        """Return when pulls end."""
        return [ends_at for ends_at, _ in self._running.values()]

    def carry_out(
        self, instruction: messages.PullImage | messages.StopPull, now_ms: int
    ) -> messages.AgentEvent | None:
        """Start or end a pull, and return the event that answers it."""
        if isinstance(instruction, messages.PullImage):
            return self._pull(instruction.attempt, instruction.pod, now_ms)
        for image, (_, attempts) in list(self._running.items()):
            if instruction.attempt in attempts:
                attempts.remove(instruction.attempt)
            if not attempts:
                del self._running[image]
        return None

    def _pull(self, attempt: PodAttempt, pod: Pod, now_ms: int) -> messages.AgentEvent:
        image = pod.spec.image
        if image in self._machine.images:
            return messages.PullEnded(now_ms=now_ms, attempts=(attempt,))
        if image not in self._running:
            chance = crc32(f"{self._machine.name} {image} {self._tries.get(image, 0)}".encode())
            self._running[image] = (now_ms + _TAKES_MS[chance % len(_TAKES_MS)], [])
        waiting = self._running[image][1]
        if attempt not in waiting:
            waiting.append(attempt)
        return messages.PullStarted(now_ms=now_ms, attempt=attempt)

    def ended(self, now_ms: int) -> list[messages.PullEnded]:
        """Return the ends of pulls; some fail, but never so often that a pod fails."""
        found: list[messages.PullEnded] = []
        for image, (ends_at, attempts) in list(self._running.items()):
            if ends_at > now_ms:
                continue
            del self._running[image]
            tries = self._tries[image] = self._tries.get(image, 0) + 1
            fails = crc32(f"{image} {self._machine.name}".encode()) % MOST_PULLS
            trouble = "i/o timeout" if tries <= fails else ""
            if not trouble:
                self._machine.images.add(image)
            found.append(
                messages.PullEnded(now_ms=now_ms, attempts=tuple(attempts), trouble=trouble)
            )
        return found

    def check(self, state: AgentState) -> None:
        """Raise InvariantBroken if an image is pulled for a pod that does not wait for it."""
        for image, (_, attempts) in self._running.items():
            for attempt in attempts:
                if state.state_of(attempt) != PodState.PULLING:
                    raise InvariantBroken(
                        f"{image} is pulled on {self._machine.name} for {attempt.id}, which is"
                        f" {state.state_of(attempt)}"
                    )
