"""The client over the HTTP API: the methods that everyday commands need, on `http.client`.

It needs no credentials of the Redis server, and does not import redis-py. Each method returns what
`Client` returns, as much of it as the API lets its user see. A method that the API does not serve
raises InvalidInput.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct, structs

from batchq.api.lifecycle import ON_NODE, TERMINAL
from batchq.api.manifest import decode, encode
from batchq.api.notation import describe_timeout
from batchq.api.objects import (
    DEFAULT,
    NAMESPACED,
    Metadata,
    Node,
    Object,
    Pod,
    PodGroup,
    Queue,
    ResourceQuota,
    ResourceQuotaSpec,
    Unreadable,
    key_of,
)
from batchq.api.transaction import Event, Ledger
from batchq.api.views import (
    Applied,
    Change,
    Effect,
    Goal,
    LogLine,
    Page,
    Plan,
    Result,
    Schedulers,
    WaitState,
    Why,
)
from batchq.api_session import ApiCredentials, ApiSession, credentials_for, error_of, sealed
from batchq.client import Client
from batchq.client.api_views import (
    ApiChecks,
    ApiGates,
    ApiGroupPages,
    ApiOverview,
    ApiReader,
    group_path,
)
from batchq.client.request import (
    Act,
    GroupName,
    Objects,
    Permit,
    Quantity,
    Submitted,
    amounts_of,
    check_lines,
    class_of,
    decoded,
    key_named,
    key_of_kind,
)
from batchq.errors import (
    BatchqError,
    Conflict,
    InvalidInput,
    NotFound,
    StoreUnavailable,
    WaitTimedOut,
)

if TYPE_CHECKING:
    from batchq.client.checks import Checks, Gates
    from batchq.client.overview import Overview
    from batchq.client.pods import PodCommands
    from batchq.client.request_fields import Drafts, GroupManifests
    from batchq.client.submission import Submission
    from batchq.client.watch import GroupPages
    from batchq.ports import Store
    from batchq.store.outage import Patience
    from batchq.store.redis import Listing

#: The paths of the kinds, below /v1 or below a namespace.
_PATHS = {
    "PodGroup": "groups",
    "Pod": "pods",
    "Queue": "queues",
    "PriorityClass": "priorityclasses",
    "AdmissionCheck": "admissionchecks",
    "Node": "nodes",
    "ResourceQuota": "quotas",
}
_PAGE = 1_000
#: More names than this do not fit into the head of a request (32 KiB). Without names, any change
#: counts.
_LONGEST_NAMES = 8_000
#: The kinds whose changes the API sends.
_WATCHED = ("PodGroup", "Queue", "Node")
#: How long one request waits for a change.
_WAIT_S = 20
#: Without a change of its group, a caller that waits looks again: pods may end later.
_LOOK_S = 2.0
#: The pause before a stream that has ended is opened again.
_AGAIN_S = 0.2


class _ServerStatus(Struct, frozen=True, rename="camel"):
    now: int
    revision: int
    schedulers: Schedulers
    object_limit: int | None
    groups: int
    ledger: dict[str, dict[str, int]]


class _ObjectPage(Struct, frozen=True):
    items: list[dict[str, Any]]
    unreadable: list[dict[str, str]]
    following: str = msgspec.field(name="continue", default="")


class _AppliedRow(Struct, frozen=True):
    object: dict[str, Any]
    effect: Effect
    changes: str = ""
    warnings: tuple[str, ...] = ()


class _AppliedRows(Struct, frozen=True):
    items: list[_AppliedRow]


class _WatchEvent(Struct, frozen=True):
    type: str
    revision: int = 0
    object: dict[str, Any] | None = None


class _Change(Struct, frozen=True):
    revision: int
    changed: bool


class ApiClient(Client):
    """A client over the HTTP API; see `Client`. `purpose` names a command in refusals."""

    def __init__(
        self,
        api: ApiCredentials | str | None = None,
        *,
        tell: Callable[[str], None] = lambda sentence: None,
        patience_s: float | None = 0.0,
        purpose: str = "this request",
    ) -> None:
        """Use `api`, the address of an API as in BATCHQ_SERVER or its credentials; else the API
        that commands use: that of BATCHQ_SERVER, or of `batchq login`.

        With an address, the token is the one of BATCHQ_SERVER or of `batchq login` if that is the
        same API. Raises as `Client` does, and InvalidInput if no API is named.
        """
        credentials = api if isinstance(api, ApiCredentials) else credentials_for(api)
        self._tell = tell
        self._purpose = purpose
        self._credentials = credentials
        self._session = ApiSession(credentials)
        self._patience: Patience | None = None
        self._revision: int | None = None
        self._overview: ApiOverview | None = None
        self.waited_s = 0.0
        if patience_s != 0:
            began_at = monotonic()
            try:
                with self.patiently(patience_s):
                    self._get("/v1/me")
            except StoreUnavailable as error:
                if error.lasts:
                    raise
                after = describe_timeout(patience_s or 0)
                raise WaitTimedOut(
                    f"the API did not answer within {after}: {error.message}", hint=error.hint
                ) from error
            self.waited_s = monotonic() - began_at

    @property
    def _store(self) -> NoReturn:  # type: ignore[override]  # what needs it is not served
        self.refuse()

    def refuse(self, what: str = "") -> NoReturn:
        """Raise InvalidInput for what the API does not serve; "" stands for the whole command."""
        raise InvalidInput(
            f"{what or self._purpose} is not possible over the HTTP API",
            hint="name the Redis server for it, with its own credentials: `--redis-url URL`",
        )

    def ask(self, path: str, answer: Any, **query: object) -> Any:
        """Return what a path answers to GET, decoded as `answer`."""
        return self._get(path, answer=answer, **query)

    def tell(self, path: str, document: object) -> Any:
        """Return what a path answers to POST."""
        return self._post(path, document)

    def close(self) -> None:
        self._session.close()

    @contextmanager
    def patiently(self, timeout_s: float | None = None) -> Iterator[None]:
        from batchq.client.connection import patience_of

        before, self._patience = self._patience, patience_of(self._tell, timeout_s)
        try:
            yield
        finally:
            self._patience = before

    def now_ms(self) -> int:
        return self._status().now

    @cached_property
    def user(self) -> str:
        return str(self._get("/v1/me")["user"])

    def _get(self, path: str, *, answer: Any = Any, **query: object) -> Any:
        """Return what a path answers; parameters that are empty are left out."""
        asked = _with(path, query)
        return self._patient(lambda: self._session.request("GET", asked, kind=answer))

    def _post(self, path: str, document: object = None, *, kind: Any = Any) -> Any:
        return self._session.request("POST", path, document, kind=kind)

    def _patient(self, ask: Callable[[], Any]) -> Any:
        while True:
            try:
                answer = ask()
            except StoreUnavailable as error:
                wait_s = None if self._patience is None else self._patience.next_wait_s(error)
                if wait_s is None:
                    raise
                sleep(wait_s)
            else:
                if self._patience is not None:
                    self._patience.answered()
                return answer

    def _status(self) -> _ServerStatus:
        found: _ServerStatus = self._get("/v1/views/status", answer=_ServerStatus)
        return found

    def submit_many(
        self,
        requests: Iterable[Submitted],
        /,
        **options: Any,
    ) -> Submission:
        from batchq.client.submission import ApiSubmission

        # Of its own: the caller may use this client between two outcomes.
        session = ApiSession(self._credentials)
        submission = ApiSubmission(session, self._patient, self._ids.new_uid, requests, **options)
        # The same methods.
        return cast("Submission", submission)

    def checker(self, **defaults: Any) -> Callable[[Submitted], BatchqError | None]:
        from batchq.client.submission import Checker

        # Only queues and priority classes are read.
        return Checker(cast("Store", ApiReader(self)), defaults)

    def delete_all(
        self,
        places: Sequence[tuple[str, str]],
        *,
        dry_run: bool = False,
        permit: Permit | None = None,
    ) -> Sequence[Applied]:
        keys = [{"kind": kind, "key": key} for kind, key in places]
        return self._applied({"verb": "delete", "keys": keys, "dryRun": dry_run})

    def _write(
        self,
        verb: Literal["submit", "apply"],
        objects: Objects,
        dry_run: bool,
        keep_stop: Collection[str],
        permit: Permit | None,
    ) -> Sequence[Applied]:
        wanted, silent = decoded(objects)
        return self._applied(
            {
                "verb": verb,
                "objects": [encode(item) for item in wanted],
                "keepStop": sorted(silent.union(keep_stop)),
                "dryRun": dry_run,
            }
        )

    def _applied(self, document: object) -> Sequence[Applied]:
        rows: _AppliedRows = self._post("/v1/requests", document, kind=_AppliedRows)
        return [
            Applied(
                object=decode(row.object),
                effect=row.effect,
                changes=row.changes,
                warnings=row.warnings,
            )
            for row in rows.items
        ]

    def set_quota(self, namespace: str, hard: Mapping[str, Quantity]) -> bool:
        quota = ResourceQuota(
            metadata=Metadata(name=DEFAULT, namespace=namespace),
            spec=ResourceQuotaSpec(hard=amounts_of(hard)),
        )
        [applied] = self.apply([quota])
        return applied.effect is not Effect.UNCHANGED

    def set_stop_policy(self, queue: str, policy: Literal["None", "Hold", "HoldAndDrain"]) -> bool:
        stored = self.get("Queue", queue)
        assert isinstance(stored, Queue)
        spec = structs.replace(stored.spec, stop_policy=policy)
        [applied] = self.apply([structs.replace(stored, spec=spec)])
        return applied.effect is not Effect.UNCHANGED

    def check_group_limit(self, keys: Collection[str], file: str) -> int | None:
        # The API checks the whole request.
        return None

    def submit_likely(
        self, what: Submitted, fields: Mapping[str, Any], permit: Permit | None = None
    ) -> PodGroup | None:
        from batchq.client.request_fields import stored_group

        drafts, manifests = self._similar
        try:
            group = drafts.draft_of(what, fields, self._ids.new_uid()[-5:]).group
        except BatchqError:
            # The check of the whole request says why.
            return None
        manifest = manifests.of(group)
        asked = {"verb": "submit", "objects": [manifest]}
        try:
            [row] = self._post("/v1/requests", asked, kind=_AppliedRows).items
        except Conflict:
            # Another generated name may be free.
            return None
        return stored_group(group, manifest, row.object)

    @cached_property
    def _similar(self) -> tuple[Drafts, GroupManifests]:
        from batchq.client.request_fields import Drafts, GroupManifests

        return Drafts({}), GroupManifests()

    def _act(self, verb: Act, place: str, **given: Any) -> bool:
        is_of_node = verb in ("cordon", "uncordon")
        path = f"/v1/nodes/{quote(place, safe='')}" if is_of_node else group_path(place, DEFAULT)
        reason = given.get("message")
        asked = _with(f"{path}/{verb}", {"uid": given.get("uid", "")})
        done = self._post(asked, {"reason": reason} if reason else None)
        return bool(done.get("changed", True))

    def get(self, kind: str, name: GroupName, *, namespace: str = DEFAULT) -> Object:
        space, slash, bare = key_of_kind(kind, name, namespace).rpartition("/")
        within = f"namespaces/{space}/" if slash else ""
        return decode(self._get(f"/v1/{within}{_path_of(kind)}/{quote(bare, safe='')}"))

    def listing(self, kind: str, *, namespace: str = "") -> Listing:
        found = list(self.pages(kind, namespace=namespace, size=_PAGE))
        objects = tuple(item for page in found for item in page.objects)
        # The API names a record again if a page ends before it.
        damaged = tuple({one.key: one for page in found for one in page.unreadable}.values())
        # The same fields as a Listing, whose module needs redis-py.
        return cast("Listing", Page(objects=objects, unreadable=damaged))

    def pages(
        self, kind: str, *, namespace: str = "", after: str = "", size: int = 500
    ) -> Iterator[Page]:
        following = sealed(after)
        while True:
            found: _ObjectPage = self._get(
                f"/v1/{_path_of(kind)}",
                answer=_ObjectPage,
                namespace=namespace if kind in NAMESPACED else "",
                limit=min(size, _PAGE),
                **{"continue": following},
            )
            yield Page(
                objects=tuple(decode(item) for item in found.items),
                unreadable=tuple(
                    Unreadable(kind=kind, key=one["name"], why=one["why"])
                    for one in found.unreadable
                ),
            )
            following = found.following
            if not following:
                return

    def count(self, kind: str) -> int:
        return self._status().groups if kind == "PodGroup" else len(self.list(kind))

    def unreadable(self, kind: str, *, namespace: str = "") -> Sequence[Unreadable]:
        found = () if self._overview is None else self._overview.unreadable
        return [one for one in found if one.kind == kind]

    def pods(self, group: PodGroup) -> Sequence[Pod]:
        uid = group.metadata.uid
        found = [
            pod
            for pod in self.list("Pod", namespace=group.metadata.namespace)
            if isinstance(pod, Pod) and pod.status.group_uid == uid
        ]
        return sorted(found, key=lambda pod: (pod.spec.task, pod.spec.index, key_of(pod)))

    def nodes(self) -> Sequence[Node]:
        return [item for item in self.list("Node") if isinstance(item, Node)]

    def ledger(self) -> Ledger:
        return self._status().ledger

    def schedulers(self) -> Schedulers:
        return self._status().schedulers

    def object_limit(self) -> int | None:
        return self._status().object_limit

    def events(self, *, since_ms: int = 0, most: int = 100, **wanted: str) -> Sequence[Event]:
        found: list[Event] = self._get(
            "/v1/events", answer=list[Event], since=since_ms or "", limit=most, **wanted
        )
        return found

    def follow_events(self, **wanted: Any) -> NoReturn:
        self.refuse("`batchq events -w`")

    def starts(self, **place: str) -> NoReturn:
        self.refuse("`batchq jobs --start`")

    def overview(self) -> Overview:
        self._overview = ApiOverview(self._get)
        # The same methods, as far as commands over the API call them.
        return cast("Overview", self._overview)

    def job_pages(
        self,
        *,
        phases: Sequence[str] = (),
        active: bool = False,
        finished: int | None = None,
        after: str = "",
        size: int = 500,
        **place: str,
    ) -> GroupPages:
        query: dict[str, object] = {
            **place,
            "phase": ",".join(phases),
            "active": "true" if active else "",
            "finished": "" if finished is None else finished,
            "limit": min(size, _PAGE),
            "paged": "true",
        }
        return cast("GroupPages", ApiGroupPages(self._get, query, sealed(after)))

    def why(self, group: GroupName, *, namespace: str = DEFAULT, or_defaults: bool = False) -> Why:
        path = f"/v1/views/explanations/{key_named(group, namespace)}"
        found: Why = self._get(path, answer=Why, defaults="true" if or_defaults else "")
        return found

    def plan(
        self, objects: Objects, *, keep_stop: Collection[str] = (), advise: bool = True
    ) -> Plan:
        wanted, silent = decoded(objects)
        document = {
            "objects": [encode(item) for item in wanted],
            "keepStop": sorted(silent.union(keep_stop)),
            "advise": advise,
        }
        plan: Plan = self._post("/v1/views/plans", document, kind=Plan)
        return plan

    @cached_property
    def gates(self) -> Gates:
        # The same methods.
        return cast("Gates", ApiGates(self))

    @cached_property
    def commands(self) -> PodCommands:
        from batchq.client.pods import ApiPodCommands

        return ApiPodCommands(self._credentials, self._post)

    @cached_property
    def checks(self) -> Checks:
        # The same methods, as far as commands over the API call them.
        return cast("Checks", ApiChecks(self))

    def wait_state(
        self, group: GroupName, *, for_: Goal = "finished", namespace: str = DEFAULT
    ) -> WaitState:
        path = f"{group_path(group, namespace)}/outcome"
        found: WaitState = self._get(path, answer=WaitState, **{"for": for_})
        return found

    def _wait(self, keys: Sequence[str], goal: Goal, timeout_s: float | None) -> Sequence[Result]:
        from batchq.client.watch import check_goal

        check_goal(goal)
        deadline = None if timeout_s is None else monotonic() + timeout_s
        return self._settled(keys, goal, deadline, timeout_s or 0.0)

    def _settled(
        self, keys: Sequence[str], goal: Goal, deadline: float | None, limit_s: float
    ) -> Sequence[Result]:
        states: dict[str, WaitState] = {}
        while True:
            # The revision comes first, so that no change between two looks is missed.
            self._revision = self._status().revision
            for key in keys:
                if key in states and states[key].is_settled:
                    continue
                state = self._state_of(key, goal, states.get(key))
                states[key] = state
            settled = [state for state in states.values() if state.is_settled]
            if len(settled) == len(states) or (
                goal == "succeeded" and any(not state.result.reached for state in settled)
            ):
                return [states[key].result for key in keys]
            left_s = None if deadline is None else deadline - monotonic()
            if left_s is not None and left_s <= 0:
                waiting = [key for key in keys if not states[key].is_settled]
                raise self._timed_out(waiting, limit_s)
            open_keys = [key for key, state in states.items() if not state.is_settled]
            # Processes of a group that has ended may end later, which is no change of the group.
            longest_s = _LOOK_S if _has_ended(states, open_keys) else _WAIT_S
            self._await_change(open_keys, longest_s if left_s is None else min(longest_s, left_s))

    def _state_of(self, key: str, goal: Goal, before: WaitState | None) -> WaitState:
        try:
            state = self.wait_state(key, for_=goal)
        except NotFound:
            if before is None:
                raise
            state = None
        if before is not None and (state is None or state.uid != before.uid):
            raise NotFound(f"PodGroup {key} was deleted while it was waited for")
        assert state is not None
        return state

    def _timed_out(self, waiting: Sequence[str], limit_s: float) -> WaitTimedOut:
        from batchq.client.watch import timed_out

        group = self.get("PodGroup", waiting[0])
        assert isinstance(group, PodGroup)
        return timed_out(waiting, group, limit_s, unled=lambda: self.schedulers().unled)

    def watch(
        self, *kinds: str, namespace: str = "", timeout_s: float | None = None
    ) -> Iterator[Change]:
        """See `Client.watch`; one kind at a time: PodGroup, Queue or Node."""
        if len(kinds) != 1 or kinds[0] not in _WATCHED:
            raise InvalidInput(
                f"watch: expected one kind of {', '.join(_WATCHED)}, found"
                f" {', '.join(kinds) or 'none'}",
                hint="over the HTTP API, each kind has a stream of its own",
            )
        deadline = None if timeout_s is None else monotonic() + timeout_s
        return self._watched(kinds[0], namespace, deadline)

    def _watched(self, kind: str, namespace: str, deadline: float | None) -> Iterator[Change]:
        from batchq.client.connection import patience_of

        query = {"watch": "true", "namespace": namespace if kind in NAMESPACED else ""}
        path = _with(f"/v1/{_PATHS[kind]}", query)
        patience = patience_of(self._tell, None if deadline is None else deadline - monotonic())
        known: dict[str, int] = {}
        while deadline is None or monotonic() < deadline:
            listed: set[str] | None = set()
            try:
                for line in self._session.lines(path, deadline=deadline):
                    patience.answered()
                    event = msgspec.json.decode(line, type=_WatchEvent)
                    if event.type == "BOOKMARK" and listed is not None:
                        # What was known and is not in the list was deleted meanwhile.
                        for key in known.keys() - listed:
                            del known[key]
                            yield Change(kind=kind, key=key, revision=event.revision, value=None)
                        listed = None
                    if event.object is None:
                        continue
                    item = decode(event.object)
                    key, revision = key_of(item), item.metadata.revision
                    if listed is not None:
                        listed.add(key)
                    if event.type == "DELETED":
                        known.pop(key, None)
                        yield Change(kind=kind, key=key, revision=event.revision, value=None)
                    elif known.get(key) != revision:
                        known[key] = revision
                        yield Change(kind=kind, key=key, revision=event.revision, value=item)
            except StoreUnavailable as error:
                wait_s = patience.next_wait_s(error)
                if wait_s is None:
                    raise
                sleep(wait_s)
            else:
                # An API that is ending, or whose rights have changed, ends its streams.
                sleep(_AGAIN_S)

    def wait_for_change(self, *, most_s: float, least_s: float = 0.0) -> None:
        began_at = monotonic()
        self._await_change((), most_s)
        pause_s = least_s - (monotonic() - began_at)
        if pause_s > 0:
            sleep(pause_s)

    def _await_change(self, keys: Sequence[str], most_s: float) -> None:
        since = "" if self._revision is None else self._revision
        names = ",".join(keys)
        if len(names) > _LONGEST_NAMES:
            names = ""
        path = _with(
            "/v1/changes", {"groups": names, "since": since, "timeout": max(1, round(most_s))}
        )

        def ask() -> None:
            for line in self._session.lines(path):
                self._revision = msgspec.json.decode(line, type=_Change).revision

        self._patient(ask)

    def wait_until_empty(self, node: str, *, timeout_s: float | None = None) -> int:
        self.get("Node", node)
        deadline = None if timeout_s is None else monotonic() + timeout_s
        with self.patiently(timeout_s):
            while True:
                here = sum(
                    isinstance(pod, Pod) and pod.status.node == node and pod.status.phase in ON_NODE
                    for pod in self.list("Pod")
                )
                left_s = _LOOK_S if deadline is None else min(_LOOK_S, deadline - monotonic())
                if not here or left_s <= 0:
                    return here
                sleep(left_s)

    def results(
        self,
        group: GroupName,
        *,
        partial: bool = False,
        timeout_s: float | None = None,
        namespace: str = DEFAULT,
    ) -> dict[str, Any]:
        from batchq.client.pods import check_calls

        check_calls(self.get("PodGroup", key_named(group, namespace)))
        self.wait(group, timeout_s=timeout_s, namespace=namespace)
        path = f"{group_path(group, namespace)}/results"
        found = self._get(path, answer=dict[str, str], partial="true" if partial else "")
        return {pod: json.loads(text) for pod, text in found.items()}

    def logs(
        self,
        group: GroupName,
        *,
        pod: str = "",
        follow: bool = False,
        tail: int | None = None,
        attempt: int | Literal["all"] | None = None,
        namespace: str = DEFAULT,
        stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[LogLine]:
        check_lines(tail, attempt)
        path = f"{group_path(group, namespace)}/logs"
        if follow:
            return self._followed(path, pod, tail, stop)
        return self._lines(_with(path, {"pod": pod, "tail": tail, "attempt": attempt}))

    def _lines(self, path: str) -> Iterator[LogLine]:
        decoder = msgspec.json.Decoder(LogLine)
        for line in self._session.lines(path):
            if line.startswith(b'{"type":"ERROR"'):
                problem = json.loads(line)["problem"]
                raise error_of(problem, problem["status"])
            yield decoder.decode(line)

    def _followed(
        self, path: str, pod: str, tail: int | None, stop: Callable[[], bool]
    ) -> Iterator[LogLine]:
        """Follow a log. After an interruption it is read again, without the lines seen before."""
        from batchq.client.connection import patience_of

        seen: Counter[tuple[str, int, str]] = Counter()
        if tail is not None:
            existing = list(self._lines(_with(path, {"pod": pod})))
            seen.update(map(_place, existing))
            yield from _last_of_each(existing, tail)
        asked = _with(path, {"pod": pod, "follow": "true"})
        patience = patience_of(self._tell, None)
        while True:
            skipped = Counter(seen)
            try:
                for line in self._lines(asked):
                    patience.answered()
                    if skipped[_place(line)] > 0:
                        skipped[_place(line)] -= 1
                        continue
                    seen[_place(line)] += 1
                    yield line
                    if stop():
                        return
            except StoreUnavailable as error:
                wait_s = patience.next_wait_s(error)
                if wait_s is None:
                    raise
                sleep(wait_s)
            else:
                return


def _has_ended(states: Mapping[str, WaitState], keys: Sequence[str]) -> bool:
    return any(states[key].result.phase in TERMINAL for key in keys)


def _place(line: LogLine) -> tuple[str, int, str]:
    return line.pod, line.attempt, line.stream


def _last_of_each(lines: Sequence[LogLine], most: int) -> Iterator[LogLine]:
    """Yield the last lines of each pod, in the order of the lines."""
    left = Counter(line.pod for line in lines)
    for line in lines:
        left[line.pod] -= 1
        if left[line.pod] < most:
            yield line


def _path_of(kind: str) -> str:
    return _PATHS[class_of(kind).__name__]


def _with(path: str, query: Mapping[str, object]) -> str:
    given = {name: value for name, value in query.items() if value not in ("", None)}
    return f"{path}?{urlencode(given)}" if given else path
