"""The tokens and bindings as this process knows them, and the identity behind a token.

The revision of these records is checked twice a second, and they are read again when it changes; a
change through this process is read at once. Open streams check their token again and again, so
they end within a second of its revocation. While the records cannot be read, tokens are refused
after `STALE_S`, because one of them may have been revoked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic, time

from msgspec import UNSET

from batchq.api.access import Binding, Identity
from batchq.api.node_report import PodAttempt
from batchq.api.tokens import TokenKind, TokenParts, attempt_of, parse_token
from batchq.client.access_control import AccessControl, AccessState, PodHold, TokenRecord
from batchq.http.problems import ApiProblem, not_ready, unauthenticated

#: How often the revision is asked for.
LOOK_S = 0.5
#: A book that is older is not used for tokens.
STALE_S = 30.0
#: A pod's token that was used within this time is looked up again and again.
_POD_WATCHED_S = 60.0
#: How often the use of a token is recorded at most.
_NOTE_EVERY_S = 60.0


class AccessBook:
    """Tokens and bindings. Any thread may read and renew it."""

    def __init__(self, *, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._state = AccessState()
        self._bindings: tuple[Binding, ...] = ()
        self._read_at: float | None = None
        self._noted_at: dict[str, float] = {}
        #: When each pod's token was last used, and those of pods that have ended since.
        self._pods_used_at: dict[str, float] = {}
        self._ended_pods: frozenset[str] = frozenset()

    @property
    def bindings(self) -> Sequence[Binding]:
        """All bindings; another object after each change."""
        return self._bindings

    @property
    def is_read(self) -> bool:
        """Whether it has been read at all."""
        return self._read_at is not None

    @property
    def state(self) -> AccessState:
        """All tokens and bindings."""
        return self._state

    def renew(self, access: AccessControl) -> None:
        """Read what has changed. Raises StoreUnavailable."""
        began_at = self._clock()
        state = self._state
        if self._read_at is None or access.revision() != state.revision:
            state = access.state()
        if self._read_at is not None and began_at < self._read_at:
            # Another thread has begun later, and has read at least as much.
            return
        if state is not self._state:
            self._state = state
            self._bindings = tuple(sorted(one.binding for one in state.bindings.values()))
        self._read_at = began_at

    def identity_of(self, written: Sequence[str], kind: TokenKind = "token") -> Identity:
        """Return the identity of an Authorization header with a token of a kind. Raises
        ApiProblem.
        """
        parts = parts_of(written)
        if parts is None:
            raise unauthenticated(
                "expected one token, whole: Authorization: Bearer bqt_…", reason="malformed"
            )
        if parts.kind != kind:
            if (parts.kind, kind) == ("invitation", "token"):
                raise unauthenticated(
                    "an invitation is not a token: it is exchanged for one, once",
                    hint="see `batchq login --help`",
                    reason="malformed",
                )
            raise unauthenticated(f"expected {_EXPECTED[kind]}", reason="malformed")
        self._refuse_if_stale()
        record = self._state.tokens.get(parts.id)
        if record is None or not parts.matches(record.kind, record.digest):
            raise unauthenticated("this token is unknown", reason="unknown")
        problem = _problem_of(record)
        if problem is not None:
            raise problem
        groups = () if record.groups is UNSET else record.groups
        return Identity(
            user=record.owner, via="token", groups=groups, scope=record.scope, token=record.id
        )

    def recheck(self, identity: Identity) -> ApiProblem | None:
        """Return why an identity may do nothing any more; None if it may go on."""
        if not identity.token:
            return None
        try:
            self._refuse_if_stale()
        except ApiProblem as problem:
            return problem
        if identity.via == "pod":
            self.note_pod(identity.token)
            return pod_has_ended() if identity.token in self._ended_pods else None
        record = self._state.tokens.get(identity.token)
        if record is None:
            return unauthenticated("this token is unknown", reason="unknown")
        return _problem_of(record)

    def note_pod(self, token: str) -> None:
        """Note that a pod's token is used now."""
        self._pods_used_at[token] = self._clock()

    def renew_pods(self, hold: Callable[[PodAttempt], PodHold | None]) -> None:
        """Look up the tokens of pods that are in use; `hold` is `Delegate.pod_hold`."""
        now = self._clock()
        # Another thread may note a token meanwhile.
        for token, at in self._pods_used_at.copy().items():
            if now - at >= _POD_WATCHED_S:
                self._pods_used_at.pop(token, None)
        used = tuple(self._pods_used_at)
        self._ended_pods = frozenset(token for token in used if hold(attempt_of(token)) is None)

    def is_use_due(self, token: str) -> bool:
        """Return whether the use of a token should be recorded now."""
        now = self._clock()
        if now - self._noted_at.get(token, -_NOTE_EVERY_S) < _NOTE_EVERY_S:
            return False
        if len(self._noted_at) > len(self._state.tokens):
            self._noted_at.clear()
        self._noted_at[token] = now
        return True

    def _refuse_if_stale(self) -> None:
        if self._read_at is None or self._clock() - self._read_at > STALE_S:
            raise not_ready("the tokens cannot be read: the server does not answer")


def parts_of(written: Sequence[str]) -> TokenParts | None:
    """Return the parts of the token in Authorization headers; None if there is no single one."""
    scheme, _, text = written[0].partition(" ") if len(written) == 1 else ("", "", "")
    return parse_token(text.strip()) if scheme.lower() == "bearer" else None


def pod_has_ended() -> ApiProblem:
    """Return 401 for the token of a pod."""
    return unauthenticated(
        "the pod of this token has ended, or is unknown",
        hint="a pod's token is valid from its start to its end",
        reason="ended",
    )


#: What a request shows, by what its path expects.
_EXPECTED: dict[TokenKind, str] = {
    "token": "a token, bqt_…",
    "invitation": "an invitation, bqi_…",
    "join": "a join token, bqj_…",
    "pod": "the token of a pod, bqp_…",
}


def _problem_of(record: TokenRecord) -> ApiProblem | None:
    if record.revoked_at is not None and record.kind == "invitation":
        return unauthenticated(
            f"invitation {record.id} has been used already, or was revoked",
            hint="ask for another one",
            reason="revoked",
        )
    # An agent that has lost the answer shows its join token again.
    if record.revoked_at is not None and record.kind != "join":
        return unauthenticated(f"token {record.id} was revoked", reason="revoked")
    if record.expires_at <= time() * 1000:
        what = "join token" if record.kind == "join" else record.kind
        return unauthenticated(f"{what} {record.id} has expired", reason="expired")
    return None
