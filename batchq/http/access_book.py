"""What the API knows of tokens and bindings at this moment."""

from __future__ import annotations

from collections.abc import Sequence

from batchq.api.access import Binding, Identity
from batchq.http.problems import ApiProblem, unauthenticated


class AccessBook:
    """Tokens and bindings."""

    def __init__(self) -> None:
        self.bindings: Sequence[Binding] = ()

    def identity_of(self, written: Sequence[str]) -> Identity:
        """Return the identity of an Authorization header. Raises ApiProblem."""
        raise unauthenticated("this token is unknown", reason="unknown")

    def recheck(self, identity: Identity) -> ApiProblem | None:
        """Return why an identity may do nothing any more; None if it may go on."""
        return None
