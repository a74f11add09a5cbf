"""What the store's refusal of a request means to the person who made it."""

from __future__ import annotations

from batchq.api.names import counted
from batchq.api.quantity import describe_quantity
from batchq.api.transaction import POD_GROUPS, Answer, Refusal, Transaction, Word
from batchq.errors import BatchqError, Conflict, Rejected

_SCOPES = {
    "objects": "namespace",
    "ns": "namespace",
    "queue": "queue",
    "node": "node",
}


def explain_refusal(refusal: Refusal) -> BatchqError:
    """The error to raise for a transaction of `batchq.changes` that the store refused."""
    transaction, answer = refusal.transaction, refusal.answer
    subject = transaction.subject
    match answer.word:
        case Word.LIMIT:
            return _over_limit(subject, answer)
        case Word.CONFLICT if _forbids(transaction, answer):
            return Conflict(
                f"{subject}: {answer.subject} is there, whose pods could have the same names",
                hint="somebody else has just created it; try again",
            )
        case Word.CONFLICT if _creates(transaction, answer):
            return Conflict(
                f"{answer.subject} exists already",
                hint="somebody else has just created it; choose another name",
            )
        case Word.MOVE:
            return Conflict(
                f"{subject} is no longer in a state that allows this",
                hint="look at it again: batchq describe",
            )
        case Word.EPOCH:
            return Conflict(f"{subject}: another scheduler leads now", hint="try again")
        case _:
            return Conflict(
                f"{subject} was changed by somebody else at the same moment", hint="try again"
            )


def _over_limit(subject: str, answer: Answer) -> Rejected:
    kind, _, name = answer.subject.partition(":")
    where = f"{_SCOPES.get(kind, kind)} {name}".strip()
    if answer.resource == POD_GROUPS:
        limit, seen = answer.limit // 1000, answer.seen // 1000
        return Rejected(
            f"{subject}: {where} allows at most {counted(limit, 'unfinished pod group')},"
            f" and has {seen}",
            hint="wait for some to finish, cancel some, or have an operator raise podgroups in a"
            " ResourceQuota of the namespace (`batchq quota --help`)",
        )
    need, limit_text, seen_text = (
        describe_quantity(answer.resource, units)
        for units in (answer.need, answer.limit, answer.seen)
    )
    return Rejected(
        f"{subject}: {where} allows at most {limit_text} of {answer.resource}, has {seen_text} in"
        f" use, and {need} more was asked for"
    )


def _forbids(transaction: Transaction, answer: Answer) -> bool:
    """Whether it was refused for an object that must not be there, beside what it writes."""
    return any(
        write.is_condition and f"{write.kind} {write.key}" == answer.subject
        for write in transaction.writes
    )


def _creates(transaction: Transaction, answer: Answer) -> bool:
    return any(
        write.expect == 0 and f"{write.kind} {write.key}" == answer.subject
        for write in transaction.writes
    )
