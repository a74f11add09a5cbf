"""From a request to an answer: identity, limits, parameters, the endpoint, and errors as problems.

Endpoints are plain functions, because the client is: they run in a pool of threads, each with a
connection of its own. Streams run in the event loop.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from time import monotonic
from typing import TYPE_CHECKING, ParamSpec, TypeVar
from urllib.parse import unquote

import msgspec
from msgspec import Struct, structs
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from batchq.api.access import USER, Identity, Tier, TokenParts, Verb, Visibility, attempt_of
from batchq.api_session import IMPERSONATED, REASON
from batchq.client import Client
from batchq.client.access_control import Delegate, PodHold
from batchq.client.node_users import NodeRegistrar
from batchq.client.requests import RecentQueues
from batchq.errors import BatchqError, printable
from batchq.http.access_endpoints import record_refusal, record_use
from batchq.http.calls import (
    EVENT_STREAM,
    JSON,
    NDJSON,
    PLAIN,
    ApiAnswer,
    ApiCall,
    ApiRoute,
    CallContext,
    GroupTable,
    StreamAnswer,
    check_impersonation,
)
from batchq.http.change_feed import WATCHED_KINDS, ChangeFeed
from batchq.http.connections import (
    FAILURES,
    MOST_EXPLANATIONS,
    MOST_EXPLANATIONS_WAITING,
    MOST_REMEMBERED,
    PEER,
    READS,
    REFUSALS,
    WRITES,
    StreamPlaces,
    TokenBuckets,
    Turns,
    TurnsByUser,
)
from batchq.http.identities import (
    AGENT_LOOK_EVERY_S,
    LOOK_S,
    AccessBook,
    AgentLooks,
    MachineAccount,
    OwnNames,
    SocketAccounts,
    SocketPeer,
    account_of,
    owner_name,
    parts_of,
    pod_has_ended,
)
from batchq.http.problems import (
    PROBLEM_JSON,
    ApiProblem,
    bad_request,
    not_ready,
    problem_of,
    too_large,
    too_many,
    unauthenticated,
)
from batchq.http.route_table import ROUTES
from batchq.system import structlog

_log = structlog.get_logger()

#: Endpoints that run at the same time; more wait.
THREADS = 16
LONGEST_BODY_S = 30.0
#: Threads that keep tokens, roles and what is known of pods and agents up to date.
_KEEPING_THREADS = 3
#: Threads that look accounts up by name, and as many by number, as for the callers on the socket:
#: the directory behind them may be far away, and slow.
_DIRECTORY_THREADS = 16
#: Pods that were not known a moment ago and are looked up at the same time.
MOST_UNKNOWN_PODS = 2
#: How long a pod is known after a request with its valid token.
_POD_KNOWN_S = 60.0
#: How long the name and the groups of an account are used before they are looked up again.
_ACCOUNT_S = 1.0
#: Of why a caller acts in the name of a user.
_LONGEST_REASON = 200
#: An encoded slash, backslash or NUL, or a dot segment: a proxy before us would read it otherwise.
_TRICKS = ("%2f", "%5c", "%00", "\\", "//", "/./", "/../", "%2e")
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}

if TYPE_CHECKING:
    from batchq.http.id_tokens import IdTokens

Connect = Callable[[], Delegate]
P = ParamSpec("P")
T = TypeVar("T")


class ApiSettings(Struct, frozen=True, kw_only=True):
    """What an API serves. `names` are its host names besides those of this machine."""

    accounts: SocketAccounts
    names: tuple[str, ...] = ()
    visibility: Visibility = Visibility.OPEN
    #: Whether a proxy in front adds the caller's address to X-Forwarded-For.
    behind_proxy: bool = False
    registrar: NodeRegistrar | None = None
    id_tokens: IdTokens | None = None
    #: The digest by which clients recognise the API's certificate, if they do.
    certificate: str = ""


class ApiApplication:
    """The application. `connect` opens a connection; `why` explains a group as a JSON document, and
    `table` lays groups out.
    """

    def __init__(
        self,
        settings: ApiSettings,
        connect: Connect,
        why: Callable[[Client, str], object],
        table: GroupTable,
    ) -> None:
        self._settings = settings
        self._connect = connect
        self._why = why
        self._table = table
        self._names = OwnNames(settings.names)
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="api")
        # Slow requests must not delay a revocation, nor slow accounts other requests.
        self._keeping = ThreadPoolExecutor(_KEEPING_THREADS, thread_name_prefix="api-keeping")
        self._by_name = ThreadPoolExecutor(_DIRECTORY_THREADS, thread_name_prefix="api-names")
        self._by_uid = ThreadPoolExecutor(_DIRECTORY_THREADS, thread_name_prefix="api-uids")
        self._own = threading.local()
        self._delegates: list[Delegate] = []
        self._queues = RecentQueues()
        self._book = AccessBook()
        self._feeds = {kind: ChangeFeed(connect, kind) for kind in WATCHED_KINDS}
        self._reads, self._writes = TokenBuckets(READS), TokenBuckets(WRITES)
        self._failures = TokenBuckets(FAILURES)
        self._refusals = TokenBuckets(REFUSALS)
        #: The accounts of this machine by uid or name, and until when they are used; and those that
        #: are being looked up.
        self._accounts: dict[int | str, tuple[float, MachineAccount]] = {}
        self._lookups: dict[int | str, asyncio.Future[MachineAccount]] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._looks = AgentLooks(settings.accounts.agents)
        #: Uses of tokens that are being recorded, and that requests wait for.
        self._first_uses: dict[str, asyncio.Future[bool]] = {}
        #: Anyone can make tokens that look like those of pods, and each is looked up.
        self._unknown_pods = asyncio.Semaphore(MOST_UNKNOWN_PODS)
        #: The tokens with which pods have come, and when.
        self._known_pods: dict[TokenParts, float] = {}
        self._places = StreamPlaces()
        self._calls = TurnsByUser()
        self._explanations = Turns(
            MOST_EXPLANATIONS,
            MOST_EXPLANATIONS_WAITING,
            "too many groups are being explained at this moment",
        )
        self._logins = Turns(
            MOST_EXPLANATIONS, MOST_EXPLANATIONS_WAITING, "too many users log in at this moment"
        )
        self._is_ending = False
        self._routes = _by_length(ROUTES)

    def start(self) -> None:
        """Begin to follow tokens, bindings and agents; call it in the event loop."""
        loop = asyncio.get_running_loop()
        self._keepers = [
            loop.create_task(one())
            for one in (self._keep_book, self._watch_pods, self._watch_agents)
        ]

    def end_streams(self) -> None:
        """Let all streams end within a second."""
        self._is_ending = True

    async def close(self) -> None:
        """End the threads and close their connections."""
        self._is_ending = True
        for keeper in self._keepers:
            keeper.cancel()
        for feed in self._feeds.values():
            await feed.stop()
        for pool in (self._pool, self._keeping, self._by_name, self._by_uid):
            await asyncio.get_running_loop().run_in_executor(None, pool.shutdown)
        for delegate in self._delegates:
            delegate.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request: the application as ASGI knows it."""
        request = Request(scope, receive, send)
        response = await self._answer(request)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        instance, route = secrets.token_hex(8), None
        try:
            route = self._route(request)
            return await self._checked(route, request)
        except ApiProblem as problem:
            return _refusal(problem, instance)
        except BatchqError as error:
            return _refusal(problem_of(error), instance)
        except ClientDisconnect:
            return Response(status_code=HTTPStatus.BAD_REQUEST)
        except Exception:  # a bug must not end the process, nor show its insides to the caller
            name = "" if route is None else route.name
            _log.exception("api.failed", route=name, request=instance)
            return _refusal(_FAILED, instance)

    async def _checked(self, route: ApiRoute, request: Request) -> Response:
        raw_path = request.scope.get("raw_path", b"").decode("latin-1").lower()
        if any(trick in raw_path for trick in _TRICKS):
            raise bad_request("the path: expected plain names between single slashes")
        self._names.check(request.headers)
        if not route.is_open and not self._book.is_read:
            # The first request after the start: without roles, its user would be refused.
            await self._in_thread(self._renew_rights)
        identity = _UNKNOWN if route.is_open else await self._identity(route, request)
        if not route.is_open:
            self._take(route, identity)
        query = _query(route, request)
        body = await _body(route, request)
        call = ApiCall(
            route,
            self._context(),
            identity,
            self._delegate,
            path=request.path_params,
            query=query,
            body=body,
            accept=request.headers.get("accept", ""),
            last_event=request.headers.get("last-event-id", ""),
            if_match=request.headers.get("if-match", ""),
            idempotency_key=request.headers.get("idempotency-key", ""),
            address=self._address(request),
        )
        name = request.headers.get(IMPERSONATED)
        if name is not None:
            call = await self._in_the_name_of(name, call, request)
        if identity.via == "token":
            await self._note_use(call)
        try:
            answer = await self._decided(route, call)
        except ApiProblem as problem:
            await self._note_problem(problem, call, request)
            raise
        if isinstance(answer, StreamAnswer):
            if request.method == "HEAD":
                return Response(headers={"Content-Type": answer.content_type, **_HEADERS})
            return await self._stream(answer, identity)
        if isinstance(answer.document, str):
            return Response(f"{answer.document}\n", media_type=PLAIN, headers=_HEADERS)
        headers = {**_HEADERS, **answer.headers}
        if isinstance(answer.document, list) and answer.is_lines:
            lines = msgspec.json.Encoder().encode_lines(answer.document)
            return Response(lines, int(answer.status), headers, NDJSON)
        body = msgspec.json.encode(answer.document)
        return Response(body, int(answer.status), headers, JSON)

    async def _identity(self, route: ApiRoute, request: Request) -> Identity:
        peer = request.scope.get(PEER)
        written = request.headers.getlist("authorization")
        parts = parts_of(written) if written else None
        if parts is not None and parts.kind == "pod" and route.credential == "token":
            return await self._identity_of_pod(parts, request)
        if written:
            try:
                return self._book.identity_of(written, route.credential)
            except ApiProblem:
                # Valid tokens are accepted even while others guess from the same address.
                wait_s = self._failures.wait_s(self._address(request))
                if wait_s > 0:
                    raise _too_many_failures(wait_s) from None
            # A token that another process has made a moment ago is not in the book yet.
            with suppress(BatchqError):
                await self._in_thread(self._renew_rights)
            return self._book.identity_of(written, route.credential)
        if route.credential == "invitation":
            raise unauthenticated("expected an invitation", hint="Authorization: Bearer bqi_…")
        if route.credential == "join":
            raise unauthenticated("expected a join token", hint="Authorization: Bearer bqj_…")
        if peer is None:
            raise unauthenticated("expected a token", hint="Authorization: Bearer bqt_…")
        return await self._peer(peer)

    async def _peer(self, peer: SocketPeer) -> Identity:
        """Return the identity of a process at the socket."""
        accounts = self._settings.accounts
        if not self._is_known(peer.uid):
            await self._looks.look(self._keeping)
        account = await self._account(peer.uid)
        # An agent may have been seen while the account was looked up, and at any time since.
        accounts.check(peer, account.name)
        return accounts.identity_of(account)

    def _is_known(self, who: int | str) -> bool:
        known = self._accounts.get(who)
        return known is not None and monotonic() < known[0]

    async def _account(self, who: int | str) -> MachineAccount:
        """Return an account, which is looked up once a second and once for all who ask."""
        if self._is_known(who):
            return self._accounts[who][1]
        lookup = self._lookups.get(who)
        if lookup is None:
            loop = asyncio.get_running_loop()
            threads = self._by_uid if isinstance(who, int) else self._by_name
            lookup = loop.run_in_executor(threads, account_of, who)
            self._lookups[who] = lookup
            lookup.add_done_callback(partial(self._note_account, who))
        return await asyncio.shield(lookup)

    def _note_account(self, who: int | str, lookup: asyncio.Future[MachineAccount]) -> None:
        del self._lookups[who]
        if lookup.cancelled() or lookup.exception() is not None:
            return
        if len(self._accounts) >= MOST_REMEMBERED:
            self._accounts.clear()
        self._accounts[who] = monotonic() + _ACCOUNT_S, lookup.result()

    async def _note_use(self, call: ApiCall) -> None:
        """Record the use of the caller's token; before the answer if its rotation depends on it."""
        token = call.identity.token
        is_first = self._book.is_first_use_of_successor(token)
        if self._book.is_use_due(token):
            noted = asyncio.wrap_future(self._pool.submit(_is_noted, call))
            if is_first:
                self._first_uses[token] = noted
                noted.add_done_callback(partial(self._forget_first_use, token))
        first_use = self._first_uses.get(token)
        if first_use is not None and not await asyncio.shield(first_use):
            raise not_ready("the first use of this token cannot be recorded")

    def _forget_first_use(self, token: str, noted: asyncio.Future[bool]) -> None:
        # Another one may have begun, if this one could not be recorded.
        if self._first_uses.get(token) is noted:
            del self._first_uses[token]

    async def _in_the_name_of(self, name: str, call: ApiCall, request: Request) -> ApiCall:
        """Return a call as one of another user. Raises ApiProblem if the caller may not do so."""
        reason = unquote(request.headers.get(REASON, "")).strip()
        if call.route.is_open or call.route.credential != "token":
            raise bad_request(f"{IMPERSONATED}: this path has no user")
        if not USER.fullmatch(name):
            raise bad_request(f"{IMPERSONATED}: expected the name of a user, found {name[:80]!r}")
        if not reason or len(reason) > _LONGEST_REASON or reason != printable(reason):
            raise bad_request(
                f"{REASON}: expected why you act in the name of {name}, in a line of at most"
                f" {_LONGEST_REASON} characters"
            )
        try:
            check_impersonation(call.identity, self._book.bindings, name)
        except ApiProblem as problem:
            await self._record_refusal(call, problem)
            raise
        account = await self._account(name)
        acting = call.of(self._settings.accounts.identity_of_user(account, call.identity, reason))
        if call.route.verb is Verb.READ:
            # Changes are recorded by the script that makes them.
            await self._in_thread(record_use, acting, "")
        return acting

    async def _identity_of_pod(self, parts: TokenParts, request: Request) -> Identity:
        if monotonic() - self._known_pods.get(parts, -_POD_KNOWN_S) < _POD_KNOWN_S:
            hold = await self._in_thread(self._pod_hold, parts)
        else:
            async with self._unknown_pods:
                hold = await self._in_thread(self._pod_hold, parts)
        if hold is None:
            wait_s = self._failures.wait_s(self._address(request))
            if wait_s > 0:
                raise _too_many_failures(wait_s)
            raise pod_has_ended()
        if len(self._known_pods) >= MOST_REMEMBERED:
            self._known_pods.clear()
        self._known_pods[parts] = monotonic()
        owner = await self._account(owner_name(hold.owner))
        return self._settings.accounts.identity_of_pod(owner, parts.id, hold.group)

    def _pod_hold(self, parts: TokenParts) -> PodHold | None:
        """Return what is known of the pod that has this token."""
        hold = self._delegate().pod_hold(attempt_of(parts.id))
        return hold if hold is not None and parts.matches("pod", hold.digest) else None

    def _address(self, request: Request) -> str:
        forwarded = request.headers.getlist("x-forwarded-for")
        if self._settings.behind_proxy and forwarded:
            # The proxy appends the address that it has seen; the caller may have set the rest.
            return forwarded[-1].rpartition(",")[2].strip()[:64]
        return request.client.host if request.client else "socket"

    def _take(self, route: ApiRoute, identity: Identity) -> None:
        if route.verb in (None, Verb.READ):
            self._reads.take(f"user {identity.user}", "reads")
        else:
            self._writes.take(f"user {identity.user}", "writes")

    def _context(self) -> CallContext:
        bindings, memberships = self._book.rights
        return CallContext(
            book=self._book,
            bindings=bindings,
            memberships=memberships,
            visibility=self._settings.visibility,
            feeds=self._feeds,
            connect=self._connect,
            is_ending=lambda: self._is_ending,
            why=self._why,
            table=self._table,
            id_tokens=self._settings.id_tokens,
            registrar=self._settings.registrar,
            certificate=self._settings.certificate,
        )

    async def _decided(self, route: ApiRoute, call: ApiCall) -> ApiAnswer | StreamAnswer:
        """Return the answer of an endpoint, by the rights of this moment: another process may have
        granted one since the book was read.
        """
        try:
            return await self._in_turn(route, call)
        except ApiProblem as problem:
            if problem.status is not HTTPStatus.FORBIDDEN:
                raise
            with suppress(BatchqError):
                await self._in_thread(self._renew_rights)
            if self._book.bindings is call.context.bindings:
                raise
        return await self._in_turn(route, call.of(call.identity, self._context()))

    async def _in_turn(self, route: ApiRoute, call: ApiCall) -> ApiAnswer | StreamAnswer:
        if route.is_login:
            # The provider may be slow, and all threads would wait for it.
            async with self._logins:
                return await self._run(route, call)
        if route.is_open:
            return await self._run(route, call)
        async with self._calls.of(call.identity.user):
            if not route.is_explanation:
                return await self._run(route, call)
            async with self._explanations:
                return await self._run(route, call)

    async def _note_problem(self, problem: ApiProblem, call: ApiCall, request: Request) -> None:
        """Record a refusal, and count a login that failed. Raises ApiProblem for too many."""
        if call.route.is_login and problem.status is HTTPStatus.UNAUTHORIZED:
            wait_s = self._failures.wait_s(self._address(request))
            if wait_s > 0:
                raise _too_many_failures(wait_s) from None
        if problem.status is HTTPStatus.FORBIDDEN:
            await self._record_refusal(call, problem)

    async def _record_refusal(self, call: ApiCall, problem: ApiProblem) -> None:
        """Record a refusal in the audit trail, up to a number a minute for each user."""
        if self._refusals.wait_s(call.identity.user) == 0:
            await self._in_thread(record_refusal, call, problem)

    async def _keep_book(self) -> None:
        """Renew the book of tokens and bindings on and on."""
        await self._keep("tokens and roles", self._renew_rights, LOOK_S)

    async def _watch_pods(self) -> None:
        """Look up the pods that have open streams."""
        await self._keep("pods", lambda: self._book.renew_pods(self._delegate().pod_holds), LOOK_S)

    async def _keep(self, what: str, renew: Callable[[], object], every_s: float) -> None:
        """Call a function on and on, and log the first of several failures."""
        loop = asyncio.get_running_loop()
        is_renewed = True
        while True:
            try:
                await loop.run_in_executor(self._keeping, renew)
                is_renewed = True
            except BatchqError as error:
                if is_renewed:
                    _log.warning("api.not_renewed", what=what, error=error.message)
                is_renewed = False
            except Exception:  # a bug must not end what keeps revoked tokens out
                if is_renewed:
                    _log.exception("api.not_renewed", what=what)
                is_renewed = False
            await asyncio.sleep(every_s)

    async def _watch_agents(self) -> None:
        """Look for agents of this machine: a pod that kills its agent later is known by then."""
        while True:
            await self._looks.look(self._keeping)
            await asyncio.sleep(AGENT_LOOK_EVERY_S)

    def _renew_rights(self) -> None:
        self._book.renew(self._delegate().access)

    async def _run(self, route: ApiRoute, call: ApiCall) -> ApiAnswer | StreamAnswer:
        return await self._in_thread(_run_endpoint, route, call)

    async def _in_thread(self, function: Callable[P, T], *given: P.args, **more: P.kwargs) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, partial(function, *given, **more))

    def _delegate(self) -> Delegate:
        """Return this thread's connection. Raises StoreUnavailable."""
        delegate: Delegate | None = getattr(self._own, "delegate", None)
        if delegate is None:
            delegate = self._own.delegate = self._connect()
            delegate.queues = self._queues
            self._delegates.append(delegate)
        return delegate

    async def _stream(self, answer: StreamAnswer, identity: Identity) -> Response:
        """Return a streaming answer, once its first part is there."""
        parts = self._placed(answer, identity)
        try:
            first = await anext(parts)
        except StopAsyncIteration:
            first = b""
        return StreamingResponse(
            _after(first, parts, answer.content_type),
            media_type=answer.content_type,
            headers={**_HEADERS, "X-Accel-Buffering": "no"},
        )

    async def _placed(self, answer: StreamAnswer, identity: Identity) -> AsyncIterator[bytes]:
        with self._places.place(identity.user, answer.stream), self._book.stream_of(identity):
            parts = answer.parts()
            try:
                async for part in parts:
                    yield part
            finally:
                with suppress(RuntimeError):
                    await parts.aclose()  # type: ignore[attr-defined]  # it is a generator

    def _route(self, request: Request) -> ApiRoute:
        """Return the route of a request, whose scope gets the values in its path.

        Raises ApiProblem.
        """
        parts = request.scope["path"].split("/")
        wanted = "GET" if request.method == "HEAD" else request.method
        methods = []
        for pattern, route in self._routes.get(len(parts), ()):
            if not _matches(pattern, parts):
                continue
            if route.method == wanted:
                request.scope["path_params"] = {
                    name[1:-1]: part
                    for name, part in zip(pattern, parts, strict=True)
                    if name.startswith("{")
                }
                return route
            methods.append(route.method)
        hint = "see /v1/openapi.json for all paths"
        if methods:
            raise ApiProblem(
                HTTPStatus.METHOD_NOT_ALLOWED, "NoSuchRoute",
                f"{request.method} is not possible on this path", hint=hint,
                headers={"Allow": ", ".join(sorted(set(methods)))},
            )  # fmt: skip
        raise ApiProblem(HTTPStatus.NOT_FOUND, "NoSuchRoute", "there is no such path", hint=hint)


def _by_length(
    routes: Sequence[ApiRoute],
) -> Mapping[int, Sequence[tuple[Sequence[str], ApiRoute]]]:
    """Return routes with the parts of their paths, by the number of these."""
    found: dict[int, list[tuple[Sequence[str], ApiRoute]]] = {}
    for route in routes:
        parts = route.path.split("/")
        found.setdefault(len(parts), []).append((parts, route))
    return found


def _matches(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    return all(
        part if name.startswith("{") else name == part
        for name, part in zip(pattern, parts, strict=True)
    )


def _too_many_failures(wait_s: float) -> ApiProblem:
    return too_many("too many wrong tokens came from this address", retry_s=wait_s)


def _is_noted(call: ApiCall) -> bool:
    """Record the use of a token, and return whether that was possible."""
    try:
        call.delegate.access.note_use(call.identity.token)
    except Exception as error:  # of any kind: the next request records the use
        call.context.book.forget_use(call.identity.token)
        if not isinstance(error, BatchqError):
            raise
        return False
    return True


def _run_endpoint(route: ApiRoute, call: ApiCall) -> ApiAnswer | StreamAnswer:
    answer = route.endpoint(call)
    if not call.is_decided:
        raise AssertionError(f"route {route.name} answers without a decision about it")
    # A caller who may read the output reads it as it was written, whatever names it contains.
    if isinstance(answer, ApiAnswer) and not route.is_open and route.tier is not Tier.OUTPUT:
        return structs.replace(answer, document=call.shown(answer.document))
    return answer


_UNKNOWN = Identity(user="", via="socket")
_FAILED = ApiProblem(
    HTTPStatus.INTERNAL_SERVER_ERROR, "InternalError", "the API has failed: this is a bug",
    hint="the log of `batchq api` has the details, under this request's id", exit_code=1,
)  # fmt: skip


async def _after(
    first: bytes, rest: AsyncIterator[bytes], content_type: str
) -> AsyncIterator[bytes]:
    """Yield the parts; an error after the first one becomes the last part."""
    try:
        if first:
            yield first
        async for part in rest:
            if part:
                yield part
    except ApiProblem as problem:
        yield _last_part(problem, content_type)
    except BatchqError as error:
        yield _last_part(problem_of(error), content_type)
    finally:
        await rest.aclose()  # type: ignore[attr-defined]  # it is a generator


def _last_part(problem: ApiProblem, content_type: str) -> bytes:
    if content_type == EVENT_STREAM:
        return b"event: ERROR\ndata: " + problem.body() + b"\n\n"
    if content_type == NDJSON:
        return (
            msgspec.json.encode({"type": "ERROR", "problem": msgspec.Raw(problem.body())}) + b"\n"
        )
    return b""


def _refusal(problem: ApiProblem, instance: str) -> Response:
    return Response(
        problem.body(instance),
        int(problem.status),
        {**_HEADERS, **problem.headers},
        PROBLEM_JSON,
    )


def _query(route: ApiRoute, request: Request) -> Mapping[str, str]:
    """Return the parameters of a query. Raises ApiProblem for unknown and repeated ones."""
    known = [parameter.name for parameter in route.parameters]
    pairs = request.query_params.multi_items()
    names = [name for name, _ in pairs]
    for name in names:
        if name not in known:
            expected = f"expected {', '.join(known)}" if known else "expected none"
            raise bad_request(f"there is no parameter {name[:80]!r} here; {expected}")
        if names.count(name) > 1:
            raise bad_request(f"{name}: expected once, found {names.count(name)} times")
    return dict(pairs)


async def _body(route: ApiRoute, request: Request) -> bytes:
    """Read the body. Raises ApiProblem if it is too large, too slow or of another type."""
    stated = request.headers.get("content-length", "0")
    most = route.most_body_bytes
    if stated.isdigit() and int(stated) > most:
        raise too_large(f"the body has {stated} bytes; expected at most {most}")
    parts: list[bytes] = []
    length = 0
    try:
        async with asyncio.timeout(LONGEST_BODY_S):
            async for part in request.stream():
                length += len(part)
                if length > most:
                    raise too_large(f"the body has more than {most} bytes")
                parts.append(part)
    except TimeoutError:
        raise ApiProblem(
            HTTPStatus.REQUEST_TIMEOUT, "TooSlow",
            f"the body did not arrive within {LONGEST_BODY_S:.0f} s",
            exit_code=1, headers={"Connection": "close"},
        ) from None  # fmt: skip
    body = b"".join(parts)
    if not body:
        return b""
    if not route.body:
        raise bad_request("expected no body on this path")
    # A page of another site may send a form, but no JSON, without being asked first.
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != route.takes:
        raise ApiProblem(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "InvalidInput",
            f"Content-Type: expected {route.takes}, found {kind[:80]!r}", exit_code=1,
        )  # fmt: skip
    return body
