"""When the agent acts: the listener on its wake-up channel, and its periodic tasks."""

from __future__ import annotations

import select
from collections import Counter
from collections.abc import Callable

from batchq.api.notation import SECOND
from batchq.api.objects import Pod
from batchq.errors import BatchqError, InvariantBroken, StoreUnavailable, UnreadableRecord
from batchq.store import records
from batchq.store.link import is_damaged
from batchq.store.node_channels import WakeReason, WakeUpChannel
from batchq.store.outage import Backoff, Outage
from batchq.system import structlog

#: The pause between two looks at an empty queue without a wake-up: an older leader may send none,
#: and a server may lose its last second.
LOOK_MS = 1 * SECOND
#: How many jobs the first look after a wake-up asks for, and a later one that finds more.
_ANNOUNCED, _MANY = 2, 1_000
#: How many jobs that came along wait for a turn of the agent.
_MOST_ARRIVED = 8


class WakeUpListener:
    """Listens on the node's wake-up channel; owned by the agent's loop, which polls its descriptor.

    Instants are monotonic milliseconds.
    """

    def __init__(self, url: str, node: str, poll: select.poll) -> None:
        self._channel = WakeUpChannel(url, node)
        self._poll = poll
        self._polled: int | None = None
        #: When to look at the queue next, and for how many jobs.
        self.look_at = 0
        self._most = 1
        #: The jobs that came along with notifications, with their pods.
        self._arrived: dict[bytes, bytes] = {}

    def listen(self) -> None:
        """Subscribe to the channel and register its descriptor. Raise StoreUnavailable."""
        try:
            self._channel.listen()
        finally:
            self._poll_on(self._channel.fileno())

    def is_at(self, descriptor: int) -> bool:
        """Return whether this is the channel's descriptor."""
        return descriptor == self._polled

    def answer(self) -> frozenset[WakeReason]:
        """Read and return the wake reasons; note arrived pods."""
        reasons = self._channel.hear()
        # Each reconnection has a new descriptor.
        self._poll_on(self._channel.fileno())
        if WakeReason.PODS in reasons:
            self._most = max(self._most, _ANNOUNCED)
            arrived = self._channel.take_arrived()
            if arrived is None or len(self._arrived) + len(arrived) > _MOST_ARRIVED:
                self.look_at = 0
            else:
                self._arrived |= arrived
        return reasons

    def take_arrived(self, *, free: int, now_ms: int) -> dict[bytes, bytes]:
        """Return and forget the jobs that need not be taken from the queue, with their pods. If the
        queue is due for a look, or has more than are `free`, it is looked at instead.
        """
        arrived, self._arrived = self._arrived, {}
        if len(arrived) > free:
            self.look_at = 0
        if now_ms >= self.look_at:
            return {}
        self._channel.take_announced()
        return arrived

    def listen_to_requests(self, after: str) -> None:
        """Also hear requests for commands in pods; see `WakeUpChannel`."""
        self._channel.listen_to_requests(after)

    def take_requests(self) -> list[bytes]:
        """Return the requests for commands in pods that were heard since the last call."""
        return self._channel.take_requests()

    def take_announced(self) -> list[bytes]:
        """Return and forget the jobs that notifications have named; see `WakeUpChannel`."""
        return self._channel.take_announced()

    def take_claimed(self) -> tuple[Pod, ...]:
        """Return and forget the pods of the claims that were applied; none if they are to be read
        (see `WakeUpChannel`).
        """
        found = [records.pod_if_readable(raw) for raw in self._channel.take_claimed()]
        pods = tuple(pod for pod in found if pod is not None)
        return pods if len(pods) == len(found) else ()

    def limit(self, free: int) -> int:
        """Return how many jobs to ask for, of the `free` ones: one if no wake-up announced any,
        and few at first, because most wake-ups announce one pod.
        """
        return min(self._most, free)

    def note_look(self, *, now_ms: int, has_more: bool) -> None:
        """Note that the queue was read, and whether it has more."""
        self.look_at = now_ms if has_more else now_ms + LOOK_MS
        self._most = _MANY if has_more else 1

    def close(self) -> None:
        """Stop listening."""
        self._poll_on(None)
        self._channel.close()

    def _poll_on(self, descriptor: int | None) -> None:
        if descriptor == self._polled:
            return
        if self._polled is not None:
            self._poll.unregister(self._polled)
        if descriptor is not None:
            self._poll.register(descriptor, select.POLLIN)
        self._polled = descriptor


log = structlog.get_logger(__name__)

_AGAIN_MS = 500
_AGAIN_MAX_MS = 2000


class PeriodicTasks:
    """Tasks with their periods; owned by one loop. Instants are monotonic milliseconds.

    A task that finds the server unavailable reports that to `outage`. The loop reports the
    recovery, because only the loop knows that the server has answered.
    """

    def __init__(
        self, steps: dict[Callable[[], object], int], *, now_ms: int, outage: Outage
    ) -> None:
        self._outage = outage
        #: How often each task has failed, by its name.
        self.failures: Counter[str] = Counter()
        self._backoff = Backoff(first_ms=_AGAIN_MS, longest_ms=_AGAIN_MAX_MS)
        self._periods = dict(steps)
        self._due_at = dict.fromkeys(steps, now_ms)
        #: Tasks that are to run again before their period is over.
        self._hurried: dict[Callable[[], object], int] = {}

    def add(self, step: Callable[[], object], period_ms: int, *, now_ms: int) -> None:
        """Add a task that is due now."""
        self._periods[step] = period_ms
        self._due_at[step] = now_ms

    def hurry(self, step: Callable[[], object], *, now_ms: int) -> None:
        """Make a task due at `now_ms` at the latest, even while it runs."""
        self._hurried[step] = min(now_ms, self._hurried.get(step, now_ms))
        self._due_at[step] = min(now_ms, self._due_at[step])

    def next_due_at(self) -> int:
        """Return when `do` has something to do."""
        return min(self._due_at.values())

    def do(self, *, now_ms: int) -> None:
        """Run the tasks that are due.

        A task that finds the server unavailable is tried again soon, and the remaining tasks wait
        for the next turn: a request to such a server takes seconds, and the loop looks at signals
        between turns. A task that fails for another reason, or reads data that batchq never writes,
        is logged, counted, and due again after its period, so that running pods survive the
        failure.
        """
        for step, due_at in list(self._due_at.items()):
            if now_ms < due_at:
                continue
            self._hurried.pop(step, None)
            try:
                step()
            except StoreUnavailable as trouble:
                if not is_damaged(trouble):
                    self._outage.failed(trouble)
                    self._due_at[step] = now_ms + self._backoff.next_ms()
                    return
                self._note_failure(step, trouble)
            except UnreadableRecord as error:
                self._note_failure(step, error)
            except (BatchqError, InvariantBroken):
                # The agent ends in these cases: another agent serves its node, or batchq has a bug.
                raise
            except Exception as error:  # RQ raises anything if its keys hold foreign data
                self._note_failure(step, error)
            if not self._outage.unavailable:
                self._backoff.reset()
            due_at = now_ms + self._periods[step]
            self._due_at[step] = min(due_at, self._hurried.get(step, due_at))

    def _note_failure(self, step: Callable[[], object], error: Exception) -> None:
        name = getattr(step, "__name__", "step").strip("_")
        self.failures[name] += 1
        log.error("chore failed", chore=name, times=self.failures[name], error=str(error)[:200])
