"""ID tokens of an OpenID Connect provider: their validation, and the user and groups in them.

PyJWT checks signatures and claims: it binds each key of the provider to one algorithm, so that a
token cannot choose another one, and has nothing but `cryptography` below it. What it leaves to its
callers is here: which algorithms there may be, whose token it is (`azp`), its age, and when the
provider's keys are read again.

Users get names with an `@`, and groups the origin `oidc:`, so that a provider cannot name an
account or a Unix group of this machine.
"""

from __future__ import annotations

import hashlib
import re
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic, time
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import jwt

from batchq.api.access import USER
from batchq.errors import StoreUnavailable, printable
from batchq.http.problems import ApiProblem, unauthenticated
from batchq.identity_provider import IdentityProvider, OidcSettings
from batchq.system import structlog

_log = structlog.get_logger()

#: Signatures with public keys. No `none`, and no shared secrets (HS256).
_ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
_SHORTEST_RSA_BITS = 2048
_LONGEST_TOKEN = 16 * 1024
#: By how much the clocks of the provider and of this machine may differ.
_SKEW_S = 60
#: An older token is refused even if it has not expired: clients exchange a token at once.
_OLDEST_S = 600
#: Keys are read again after the first time; for a token with an unknown key after the second, since
#: otherwise each forged token would cause a request to the provider.
_KEYS_LAST_S, _KEYS_AGAIN_S = 3600.0, 10.0
#: How long a login waits for another one that reads the keys.
_LOCK_S = 10.0
_REQUIRED = ("exp", "iat", "iss", "aud", "sub")
_MOST_GROUPS = 100
_GROUP = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@:+-]{0,100}")


class OidcLogin(NamedTuple):
    """A user who logs in. `proof` is a digest of the token, which permits one login."""

    user: str
    groups: tuple[str, ...]
    proof: str


class IdTokens:
    """Validates ID tokens of one provider. Any thread may use it."""

    def __init__(
        self,
        settings: OidcSettings,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.settings = settings
        self._provider = IdentityProvider(settings.issuer, settings.authority)
        self._clock = clock
        self._lock = threading.Lock()
        self._keys: Sequence[jwt.PyJWK] = ()
        self._read_at: float | None = None

    def login_of(self, text: str) -> OidcLogin:
        """Return who logs in with an ID token.

        Raises ApiProblem for a token that is not valid, StoreUnavailable if the provider's keys
        cannot be read.
        """
        claims = self._claims(text)
        settings = self.settings
        audience = claims["aud"]
        party = claims.get("azp")
        is_shared = isinstance(audience, list) and len(audience) > 1
        if (is_shared or party is not None) and party != settings.client:
            raise _invalid("it was made for another program (azp)")
        groups = claims.get(settings.groups_claim, [])
        return OidcLogin(
            user=self._user(claims),
            groups=tuple(_groups(groups)),
            proof=hashlib.sha256(text.encode()).hexdigest(),
        )

    def _claims(self, text: str) -> Mapping[str, Any]:
        if len(text) > _LONGEST_TOKEN:
            raise _invalid("it is too long")
        settings = self.settings
        try:
            header = jwt.get_unverified_header(text)
            if header.get("alg") not in _ALGORITHMS:
                raise _invalid(f"the algorithm {str(header.get('alg'))[:20]!r} is not accepted")
            if str(header.get("typ", "JWT")).upper() != "JWT":
                raise _invalid("it is no ID token (typ)")
            key = self._key(header.get("kid"), str(header["alg"]))
            claims: dict[str, Any] = jwt.decode(
                text,
                key,
                algorithms=_ALGORITHMS,
                audience=settings.client,
                issuer=settings.issuer,
                leeway=_SKEW_S,
                options={"require": list(_REQUIRED)},
            )
        except jwt.ExpiredSignatureError:
            raise _invalid("it has expired") from None
        except jwt.InvalidAudienceError:
            raise _invalid("it was made for another program (aud)") from None
        except jwt.InvalidIssuerError:
            raise _invalid("it was made by another provider (iss)") from None
        except jwt.ImmatureSignatureError:
            raise _invalid("it is not valid yet: is a clock wrong?") from None
        except (jwt.PyJWTError, RecursionError, ValueError, TypeError) as error:
            raise _invalid(printable(str(error))[:120] or type(error).__name__) from None
        if time() - int(claims["iat"]) > _OLDEST_S + _SKEW_S:
            raise _invalid("it was made too long ago")
        return claims

    def _key(self, kid: object, algorithm: str) -> jwt.PyJWK:
        """Return the key of a token; the provider's keys are read again if it is a new one."""
        found = self._known_key(kid, algorithm)
        if found is None or self._age_s() > _KEYS_LAST_S:
            self._renew_keys()
            found = self._known_key(kid, algorithm)
        if found is None:
            raise _invalid("it is signed with a key that the provider does not have")
        return found

    def _known_key(self, kid: object, algorithm: str) -> jwt.PyJWK | None:
        fitting = [one for one in self._keys if one.algorithm_name == algorithm]
        if kid is None:
            # A token that names no key is accepted only if there is a single key.
            return fitting[0] if len(fitting) == 1 else None
        return next((one for one in fitting if one.key_id == kid), None)

    def _age_s(self) -> float:
        return float("inf") if self._read_at is None else self._clock() - self._read_at

    def _renew_keys(self) -> None:
        if not self._lock.acquire(timeout=_LOCK_S):
            raise StoreUnavailable("the identity provider answers too slowly")
        try:
            if self._age_s() < _KEYS_AGAIN_S:
                return
            try:
                document = self._provider.keys()
            except StoreUnavailable as error:
                _log.warning("api.provider_keys_not_read", error=error.message)
                if self._read_at is None:
                    raise
                # The last keys stay valid for a while: the provider may answer again soon.
                self._read_at = self._clock()
                return
            self._keys = _usable(document.get("keys"))
            self._read_at = self._clock()
        finally:
            self._lock.release()

    def _user(self, claims: Mapping[str, Any]) -> str:
        claim = self.settings.user_claim
        name = claims.get(claim)
        if not isinstance(name, str) or not name:
            raise _invalid(f"it has no claim {claim!r}, which names the user")
        if claim == "email" and claims.get("email_verified") is not True:
            raise _invalid("the provider has not verified the user's e-mail address")
        if "@" not in name:
            name = f"{name}@{urlsplit(self.settings.issuer).hostname}"
        # Commands without the API record users of this machine so.
        if not USER.fullmatch(name) or name.rpartition("@")[2] == socket.gethostname():
            raise _invalid(f"the claim {claim!r} is not a valid user name: {name[:80]!r}")
        return name


def _usable(found: object) -> Sequence[jwt.PyJWK]:
    """Return the keys that may sign ID tokens; others are ignored."""
    keys = []
    for one in found if isinstance(found, list) else []:
        if not isinstance(one, dict) or one.get("use", "sig") != "sig":
            continue
        try:
            key = jwt.PyJWK(one)
        except (jwt.PyJWTError, ValueError, TypeError):
            continue
        bits = getattr(key.key, "key_size", 0)
        is_short = key.algorithm_name[:2] in ("RS", "PS") and bits < _SHORTEST_RSA_BITS
        if key.algorithm_name in _ALGORITHMS and not is_short:
            keys.append(key)
    return keys


def _groups(found: object) -> Sequence[str]:
    """Return groups with their origin. Names that no binding could have are left out."""
    names = found if isinstance(found, list) else []
    fitting = [name for name in names if isinstance(name, str) and _GROUP.fullmatch(name)]
    return [f"oidc:{name}" for name in sorted(set(fitting))[:_MOST_GROUPS]]


def _invalid(why: str) -> ApiProblem:
    return unauthenticated(
        f"this ID token is not accepted: {why}",
        hint="log in again: `batchq login URL --oidc`",
        reason="id token",
    )
