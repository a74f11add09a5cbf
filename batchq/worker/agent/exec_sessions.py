"""The agent's part in commands in pods: from a request to the work-horse and the relay.

The agent's loop never waits for a command or its user. It opens the descriptors, hands the
command's ends to the work-horse of the pod, forks a relay with the others, and forgets both until
the relay ends.
"""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from batchq.api.exec_session import (
    REQUEST_TTL_MS,
    ExecRequest,
    decoded_request,
    is_request_signed,
)
from batchq.api.node_report import PodAttempt
from batchq.errors import StoreUnavailable
from batchq.store.exec_channels import ExecChannel, open_requests
from batchq.store.link import is_forbidden
from batchq.store.redis import RedisStore
from batchq.system import structlog
from batchq.worker.agent.exec_relay import fork_relay, open_ends
from batchq.worker.agent.slots import Slots
from batchq.worker.agent.wakeups import WakeUpListener
from batchq.worker.host.accounts import PodAccounts
from batchq.worker.host.processes import collect, mark_of
from batchq.worker.workhorse.inner_commands import InnerOrder

log = structlog.get_logger(__name__)

#: Commands in the pods of one node at a time: each has a process and two connections.
MOST_SESSIONS = 64
#: The most of one user, so that other users can run commands as well.
MOST_SESSIONS_OF_USER = 32
#: Requests that are remembered. A forgotten one could be served twice, so more are refused.
MOST_REQUESTS = 4_096


class ExecSessions:
    """The commands in the pods of one node; owned by the agent's loop."""

    def __init__(
        self,
        store: RedisStore,
        node: str,
        slots: Slots,
        *,
        poll: select.poll,
        run_dir: Path,
        accounts: PodAccounts | None,
    ) -> None:
        """`run_dir`: by which the next agent recognizes relays that have been left. `accounts`: if
        pods run under the accounts of their owners, only the HTTP API may start commands in them.
        """
        self._accounts = accounts
        self._store, self._url, self._link = store, store.url, store.link
        self._node = node
        self._slots = slots
        self._poll = poll
        self._mark = mark_of(run_dir)
        #: The pid of each relay and its request, by its pidfd.
        self._relays: dict[int, tuple[int, ExecRequest]] = {}
        #: When each requested session may be forgotten: a request may come twice.
        self._known: dict[str, int] = {}
        #: Older requests may have been served by the former agent of the node.
        self._since = 0
        self._is_refused = False

    def keep_open(self, listener: WakeUpListener) -> None:
        """Take requests from now on, or continue to. Raise StoreUnavailable."""
        try:
            newest = open_requests(self._link, self._node)
            self._since = self._since or self._store.now_ms()
        except StoreUnavailable as trouble:
            if not is_forbidden(trouble):
                raise
            # The ACL of this user is that of a former version. Everything else works.
            if not self._is_refused:
                log.warning("no commands in pods", why=trouble.message, do="batchq acl worker")
            self._is_refused = True
            return
        listener.listen_to_requests(newest)

    def open_all(self, requests: Sequence[bytes], waiting: frozenset[PodAttempt]) -> None:
        """Open a session for each request, or say why not. `waiting`: attempts that will start.

        Raise StoreUnavailable; the user repeats a request that is lost then.
        """
        if not requests:
            return
        now_ms = self._store.now_ms()
        self._known = {one: until for one, until in self._known.items() if until > now_ms}
        trouble: StoreUnavailable | None = None
        for data in requests:
            request = decoded_request(data)
            if request is None:
                log.warning("request for a command refused", why="it is malformed")
            elif request.session not in self._known:
                try:
                    self._answer(request, waiting, now_ms)
                except StoreUnavailable as error:
                    self._known.pop(request.session, None)
                    trouble = error
        if trouble is not None:
            raise trouble

    def _answer(self, request: ExecRequest, waiting: frozenset[PodAttempt], now_ms: int) -> None:
        channel = ExecChannel(self._link, self._node, request.session, is_node=True)
        until = now_ms + REQUEST_TTL_MS
        if self._accounts is not None:
            if why := self._why_invalid(self._accounts.key, request, now_ms):
                channel.refuse(why)
                return
            until = request.expires_at
        if len(self._known) >= MOST_REQUESTS:
            channel.refuse(
                f"{MOST_REQUESTS} commands were requested in pods of node {self._node} within"
                f" {REQUEST_TTL_MS // 1000} seconds, the most there may be; try again later"
            )
            return
        self._known[request.session] = until
        self._open(channel, request, waiting)

    def _why_invalid(self, key: bytes, request: ExecRequest, now_ms: int) -> str:
        """Return why a request is not a valid one of the HTTP API; "" if it is."""
        if not is_request_signed(key, request):
            return (
                f"node {self._node} runs pods under the accounts of their owners, and the request"
                " has no valid signature of the HTTP API: use the API, with the --signing-key of"
                " this node"
            )
        if request.expires_at <= now_ms:
            return (
                f"the request is too old: expected one of the last {REQUEST_TTL_MS // 1000} seconds"
                " by the clock of the Redis server; try again"
            )
        if request.expires_at - REQUEST_TTL_MS < self._since:
            return f"the agent of node {self._node} has been started since; try again"
        return ""

    def _open(
        self, channel: ExecChannel, request: ExecRequest, waiting: frozenset[PodAttempt]
    ) -> None:
        attempt = PodAttempt(request.pod, request.attempt)
        if attempt not in self._slots.attempts():
            is_early = attempt in waiting
            state = "has not started yet" if is_early else "does not run any more"
            channel.refuse(f"the pod {state} on node {self._node}", is_early=is_early)
            return
        if len(self._relays) >= MOST_SESSIONS:
            channel.refuse(
                f"{MOST_SESSIONS} commands run in pods of node {self._node}, which is the limit"
            )
            return
        of_user = sum(one.user == request.user for _, one in self._relays.values())
        if of_user >= MOST_SESSIONS_OF_USER:
            channel.refuse(
                f"{of_user} commands of user {request.user} run in pods of node {self._node}, the"
                " most that one user may have there"
            )
            return
        try:
            self._start(request, attempt)
        except OSError as trouble:
            channel.refuse(f"node {self._node} cannot start a command: {trouble.strerror}")

    def _start(self, request: ExecRequest, attempt: PodAttempt) -> None:
        """Hand the command over and fork its relay. Raise OSError."""
        command = request.command
        ends, theirs = open_ends(command.terminal, has_input=command.has_input)
        order = InnerOrder(
            argv=command.command,
            has_terminal=command.terminal is not None,
            term=command.term,
            ends_pod=command.ends_pod,
            attaches=command.attaches is True,
        )
        try:
            # The relay tells the user if the work-horse has ended meanwhile.
            self._slots.hand_over(attempt, order, theirs)
            for descriptor in theirs:
                os.close(descriptor)
            theirs = ()
            pid = fork_relay(self._url, self._node, request.session, ends, mark=self._mark)
        finally:
            for descriptor in (*theirs, *ends.descriptors()):
                os.close(descriptor)
        pidfd = os.pidfd_open(pid)
        self._relays[pidfd] = pid, request
        self._poll.register(pidfd, select.POLLIN)
        log.info("command in pod", pod=attempt.pod, command=command.command[0], relay=pid)

    def pids(self) -> frozenset[int]:
        """Return the relays."""
        return frozenset(pid for pid, _ in self._relays.values())

    def owns(self, descriptor: int) -> bool:
        """Whether this is the descriptor of a relay."""
        return descriptor in self._relays

    def collect(self, descriptor: int) -> None:
        """Collect a relay that has ended; tell its user if it was killed."""
        pid, request = self._relays.pop(descriptor)
        self._poll.unregister(descriptor)
        os.close(descriptor)
        with suppress(ChildProcessError, StoreUnavailable):
            if collect(pid) != 0:
                log.warning("relay of a command killed", relay=pid)
                channel = ExecChannel(self._link, self._node, request.session, is_node=True)
                channel.end_abruptly(
                    "its relay, the process that passes input and output on, was killed"
                )
