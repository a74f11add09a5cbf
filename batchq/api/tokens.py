"""The texts of tokens: what a caller sends, what is kept of it, and how a typing error is found;
and the signatures of groups.

A token is `bqt_<id>_<secret>_<checksum>`, an invitation the same with `bqi_`, the token with which
an agent joins with `bqj_`, the token of a pod's attempt with `bqp_`, where the id is
`<pod>-<attempt>`. Only the SHA-256 of the secret is kept. It needs no slow hash because the secret
has 256 random bits. The checksum tells a typing error from an unknown token, and lets scanners
recognise tokens in text.

A group's *signature* proves to an agent that the HTTP API has seen the group's owner submit what
the group runs. Everything else in the server could have been written by any submitter's
credentials. The key is known to the API and to the agents only, and never to the server.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from batchq.api.node_report import PodAttempt
from batchq.api.objects import PodGroup, PodTemplate

TokenKind: TypeAlias = Literal["token", "invitation", "join", "pod"]

_PREFIXES: dict[str, TokenKind] = {
    "bqt": "token",
    "bqi": "invitation",
    "bqj": "join",
    "bqp": "pod",
}
_TOKEN = re.compile(
    r"(?:(bqt|bqi|bqj)_([a-z0-9]{10})|(bqp)_([a-z0-9-]{1,64}-[0-9]{1,19}))"
    r"_([A-Za-z0-9_-]{43})_([0-9a-f]{6})"
)


class TokenParts(NamedTuple):
    """What a token's text says: its kind, its id, and the digest of its secret."""

    kind: TokenKind
    id: str
    digest: str

    def matches(self, kind: TokenKind, digest: str) -> bool:
        """Whether this is the token of a kind whose secret has this digest."""
        return self.kind == kind and hmac.compare_digest(self.digest.encode(), digest.encode())


def parse_token(text: str) -> TokenParts | None:
    """Return the parts of a token; None if the text is none, or mistyped."""
    found = _TOKEN.fullmatch(text)
    if found is None:
        return None
    prefix, id_ = found[1] or found[3], found[2] or found[4]
    if _checksum(id_, found[5]) != found[6]:
        return None
    return TokenParts(_PREFIXES[prefix], id_, digest_of_secret(found[5]))


def attempt_of(id_: str) -> PodAttempt:
    """Return the attempt whose token has this id."""
    pod, _, attempt = id_.rpartition("-")
    return PodAttempt(pod, int(attempt))


def token_text(kind: TokenKind, id_: str, secret: str) -> str:
    """Return the text of a token, from its id and its secret (43 characters of base64url)."""
    prefix = next(prefix for prefix, known in _PREFIXES.items() if known == kind)
    return f"{prefix}_{id_}_{secret}_{_checksum(id_, secret)}"


def digest_of_secret(secret: str) -> str:
    """Return what is kept of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _checksum(id_: str, secret: str) -> str:
    return hashlib.sha256(f"{id_}_{secret}".encode()).hexdigest()[:6]


#: The parts of a template that say where, when and for how long its pods run, and which may change
#: after the submission. Everything else, fields to come included, says what they run.
_UNSIGNED = frozenset(
    {
        *("labels", "annotations", "requests", "node_selector", "nodes", "exclude_nodes"),
        *("tolerations", "priority", "scheduling_gates", "termination_grace"),
    }
)
_SIGNED = tuple(name for name in PodTemplate.__struct_fields__ if name not in _UNSIGNED)
_USUAL = PodTemplate()


def signature_of(key: bytes, group: PodGroup) -> str:
    """Return the signature of what a group runs, under which identity, and in whose name.

    A field with its default is left out, so that a version that does not know the field computes
    the same.
    """
    meta = group.metadata
    runs = [
        (
            task.name,
            {
                name: value
                for name in _SIGNED
                if (value := getattr(task.template, name)) != getattr(_USUAL, name)
            },
        )
        for task in group.spec.tasks
    ]
    told = ("PodGroup", meta.uid, meta.namespace, meta.name, group.status.submitted_by, runs)
    text = msgspec.json.encode(told, order="deterministic")
    return hmac.new(key, text, hashlib.sha256).hexdigest()


def is_signed(key: bytes, group: PodGroup) -> bool:
    """Whether the group's signature is that of its present content."""
    return hmac.compare_digest(signature_of(key, group).encode(), group.status.signature.encode())
