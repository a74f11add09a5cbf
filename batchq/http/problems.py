"""Errors as answers: `application/problem+json` (RFC 9457) with the command line's words.

`detail` is the sentence that a command would print, `hint` what to do, `exit` the command's exit
code, and `code` the name of the error.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from msgspec import Struct

from batchq.errors import (
    BatchqError,
    Conflict,
    GroupCancelled,
    GroupFailed,
    InvalidInput,
    NotFound,
    Rejected,
    StoreUnavailable,
    UsageError,
    WaitTimedOut,
)

PROBLEM_JSON = "application/problem+json"
#: Where the codes are explained, relative to the documentation.
_PAGE = "http-api.md#problems"
#: What a refused user gets from a command, too.
REFUSED_EXIT = 9
RETRY_AFTER_S = 2

#: The first matching class decides.
_STATUS: tuple[tuple[type[BatchqError], HTTPStatus], ...] = (
    (NotFound, HTTPStatus.NOT_FOUND),
    (Conflict, HTTPStatus.CONFLICT),
    (GroupFailed, HTTPStatus.CONFLICT),
    (GroupCancelled, HTTPStatus.CONFLICT),
    (Rejected, HTTPStatus.UNPROCESSABLE_ENTITY),
    (StoreUnavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (WaitTimedOut, HTTPStatus.GATEWAY_TIMEOUT),
    (UsageError, HTTPStatus.BAD_REQUEST),
    (InvalidInput, HTTPStatus.BAD_REQUEST),
)


class ProblemDocument(Struct, frozen=True, kw_only=True):
    """The body of an error. `instance` is the id of the request, which the log has, too."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    exit: int
    hint: str = ""
    instance: str = ""


class ApiProblem(Exception):
    """An answer other than the one asked for."""

    def __init__(
        self,
        status: HTTPStatus,
        code: str,
        detail: str,
        *,
        hint: str = "",
        exit_code: int = REFUSED_EXIT,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.hint = hint
        self.exit_code = exit_code
        self.headers = dict(headers or {})

    def body(self, instance: str = "") -> bytes:
        """Return the JSON document."""
        document = ProblemDocument(
            type=_PAGE,
            title=self.status.phrase,
            status=int(self.status),
            detail=self.detail,
            code=self.code,
            exit=self.exit_code,
            hint=self.hint,
            instance=instance,
        )
        return msgspec.json.encode(document)


#: The client's own hints are for users who can start the server, or change its URL.
_IF_UNAVAILABLE = "try again later; if this lasts, tell the API's operator"


def problem_of(error: BatchqError) -> ApiProblem:
    """Return the answer for an error of the client."""
    status = next(
        (status for kind, status in _STATUS if isinstance(error, kind)),
        HTTPStatus.BAD_REQUEST,
    )
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status in _PASSES else None
    return ApiProblem(
        status,
        type(error).__name__,
        error.message,
        hint=_IF_UNAVAILABLE if type(error) is StoreUnavailable else error.hint,
        exit_code=error.exit_code,
        headers=headers,
    )


_PASSES = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT)


def unauthenticated(detail: str, *, hint: str = "", reason: str = "") -> ApiProblem:
    """Return 401. `reason` is for programs: expired, revoked or unknown."""
    about = f', error="invalid_token", error_description="{reason}"' if reason else ""
    return ApiProblem(
        HTTPStatus.UNAUTHORIZED,
        "Unauthenticated",
        detail,
        hint=hint,
        headers={"WWW-Authenticate": f'Bearer realm="batchq"{about}'},
    )


def not_ready(detail: str, *, hint: str = "") -> ApiProblem:
    """Return 503."""
    return ApiProblem(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "StoreUnavailable",
        detail,
        hint=hint,
        headers={"Retry-After": str(RETRY_AFTER_S)},
    )


def forbidden(because: str, *, hint: str = "") -> ApiProblem:
    """Return 403 with what is missing."""
    return ApiProblem(
        HTTPStatus.FORBIDDEN,
        "Forbidden",
        because,
        hint=hint or "an operator, or an admin of the namespace, can grant it: `batchq access`",
    )


def too_many(detail: str, *, retry_s: float = 1.0) -> ApiProblem:
    """Return 429."""
    return ApiProblem(
        HTTPStatus.TOO_MANY_REQUESTS,
        "TooManyRequests",
        detail,
        hint="send fewer requests at a time",
        headers={"Retry-After": str(max(1, round(retry_s)))},
    )


def bad_request(detail: str, *, hint: str = "") -> ApiProblem:
    """Return 400 for a request that no endpoint could understand."""
    return ApiProblem(HTTPStatus.BAD_REQUEST, "InvalidInput", detail, hint=hint, exit_code=1)


def too_large(detail: str) -> ApiProblem:
    """Return 413."""
    return ApiProblem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "TooLarge", detail, exit_code=1,
        headers={"Connection": "close"},
    )  # fmt: skip
