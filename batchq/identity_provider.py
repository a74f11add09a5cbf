"""An OpenID Connect provider over HTTP: its description, its keys, and the device flow.

The device flow (RFC 8628) needs no redirect and no browser on this machine, so that it works over
ssh, and there is no redirect to misuse. Nothing here follows a redirect of the provider either:
each URL of its description is used as it is, over TLS.
"""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Mapping
from http import HTTPStatus
from time import monotonic, sleep
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from batchq.errors import InvalidInput, StoreUnavailable, WaitTimedOut, printable

_TIMEOUT_S = 5.0
#: Descriptions, keys and answers have some kilobytes.
_MOST_BYTES = 512 * 1024
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
#: The defaults of RFC 8628, in seconds: the time between two polls, and how much longer it becomes
#: each time the provider answers `slow_down`.
_USUAL_INTERVAL_S, _SLOWER_S = 5, 5
_LONGEST_INTERVAL_S, _LONGEST_LOGIN_S = 60, 1800


class OidcSettings(NamedTuple):
    """The provider that an API trusts. `client` is the API's id there, which its tokens are for;
    `user_claim` and `groups_claim` name the claims with the user and its groups.
    """

    issuer: str
    client: str
    user_claim: str = "email"
    groups_claim: str = "groups"
    scope: str = "openid email profile"
    authority: str = ""


class DeviceLogin(NamedTuple):
    """A login that waits for the user, who opens `url` and enters `code` there."""

    url: str
    code: str


def checked_issuer(text: str, what: str) -> str:
    """Return the URL of a provider, `http://` only on this machine. Raises InvalidInput."""
    if not _is_safe(text):
        raise InvalidInput(
            f"{what}: expected https://HOST/PATH without a query, found {text[:120]!r}",
            hint="as in https://login.example.org/realms/lab: the provider's documentation calls"
            " it the issuer",
        )
    return text


def _is_safe(url: str) -> bool:
    """Return whether a request to this URL can be neither read nor altered on its way."""
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0
    except ValueError:
        return False
    is_plain = url.isascii() and url.isprintable() and " " not in url
    is_whole = bool(parts.hostname) and has_port and "@" not in parts.netloc and is_plain
    is_private = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    return is_whole and is_private and not parts.query and not parts.fragment


class IdentityProvider:
    """A provider by its issuer URL. `authority` is a file of certificates to trust besides the
    system's. Any thread may use it.
    """

    def __init__(self, issuer: str, authority: str = "") -> None:
        self.issuer = issuer
        self._authority = authority

    def description(self) -> Mapping[str, Any]:
        """Return the provider's description of itself. Raises StoreUnavailable."""
        url = f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"
        found = self._json(url)
        if found.get("issuer") != self.issuer:
            raise self._wrong(f"it calls itself {str(found.get('issuer'))[:120]!r}")
        return found

    def keys(self) -> Mapping[str, Any]:
        """Return the keys with which it signs at this moment. Raises StoreUnavailable."""
        return self._json(self._place(self.description(), "jwks_uri"))

    def log_in(self, client: str, scope: str, show: Callable[[DeviceLogin], None]) -> str:
        """Return the ID token of the user who has entered the code that `show` shows.

        Raises StoreUnavailable, WaitTimedOut if it is not entered in time.
        """
        description = self.description()
        asked = {"client_id": client, "scope": scope}
        status, begun = self._posted(
            self._place(description, "device_authorization_endpoint"), asked
        )
        if status != HTTPStatus.OK:
            raise self._wrong(f"it refuses the device flow: {_reason_of(begun)}")
        login = DeviceLogin(str(begun.get("verification_uri", "")), str(begun.get("user_code", "")))
        if (
            not _is_safe(login.url.partition("?")[0])
            or not login.code
            or not login.code.isprintable()
        ):
            raise self._wrong("its answer names no page, or no code")
        show(login)
        interval_s = _bounded(begun.get("interval"), _USUAL_INTERVAL_S, _LONGEST_INTERVAL_S)
        lasts_s = _bounded(begun.get("expires_in"), _LONGEST_LOGIN_S, _LONGEST_LOGIN_S)
        until = monotonic() + lasts_s
        place = self._place(description, "token_endpoint")
        asked = {
            "grant_type": _DEVICE_GRANT,
            "device_code": str(begun.get("device_code", "")),
            "client_id": client,
        }
        while monotonic() + interval_s < until:
            sleep(interval_s)
            status, answer = self._posted(place, asked)
            if status == HTTPStatus.OK:
                token = answer.get("id_token")
                if not isinstance(token, str):
                    raise self._wrong("it gives no ID token: is `openid` among the scopes?")
                return token
            match answer.get("error"):
                case "authorization_pending":
                    continue
                case "slow_down":
                    interval_s += _SLOWER_S
                case "expired_token":
                    break
                case _:
                    raise self._wrong(f"it refuses to log you in: {_reason_of(answer)}")
        raise WaitTimedOut(
            "the code was not entered in time", hint="begin again: `batchq login --oidc`"
        )

    def _place(self, description: Mapping[str, Any], name: str) -> str:
        url = description.get(name)
        if not isinstance(url, str) or not _is_safe(url):
            raise self._wrong(f"its description has no {name} over https")
        return url

    def _json(self, url: str) -> Mapping[str, Any]:
        status, found = self._exchanged("GET", url, None)
        if status != HTTPStatus.OK:
            raise self._wrong(f"{urlsplit(url).path} answers with status {status}")
        return found

    def _posted(self, url: str, fields: Mapping[str, str]) -> tuple[int, Mapping[str, Any]]:
        return self._exchanged("POST", url, urlencode(fields))

    def _exchanged(self, method: str, url: str, body: str | None) -> tuple[int, Mapping[str, Any]]:
        parts = urlsplit(url)
        assert parts.hostname is not None
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = ssl.create_default_context()
            if self._authority:
                context.load_verify_locations(self._authority)
            connection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=_TIMEOUT_S, context=context
            )
        else:
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S)
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            connection.request(method, parts.path or "/", body, headers)
            answer = connection.getresponse()
            text = answer.read(_MOST_BYTES)
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise StoreUnavailable(
                f"the identity provider {self.issuer} does not answer: {why}"
            ) from None
        finally:
            connection.close()
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._wrong(f"{parts.path} answers with status {answer.status} and no JSON")
        return answer.status, found

    def _wrong(self, why: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"the identity provider {self.issuer}: {printable(why)}", lasts=True
        )


def _reason_of(answer: Mapping[str, Any]) -> str:
    words = [str(answer.get(name, ""))[:200] for name in ("error", "error_description")]
    return ": ".join(filter(None, words)) or "no reason given"


def _bounded(found: object, usual: int, most: int) -> int:
    return min(found, most) if isinstance(found, int) and found > 0 else usual
