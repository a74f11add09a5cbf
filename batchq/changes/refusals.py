"""Looking up the objects that a request names, and the errors for missing or refused ones."""

from __future__ import annotations

from typing import TypeVar

from batchq.api.notation import counted, nearest, shown
from batchq.api.objects import Object, full_name, kind_of
from batchq.api.resources import describe_quantity
from batchq.api.transaction import POD_GROUPS, Answer, Refusal, Transaction, Word
from batchq.errors import BatchqError, Conflict, NotFound, Rejected
from batchq.ports import Reader

T = TypeVar("T")

_MOST_CANDIDATES_NAMED = 10
_FEW = 5


def title(obj: Object) -> str:
    """Return `PodGroup default/train`."""
    return f"{kind_of(obj)} {full_name(obj)}"


def find(reader: Reader, kind: type[T], key: str) -> T:
    """Return the object of that kind and key.

    Raises NotFound, with the nearest existing name.
    """
    item = reader.get(kind.__name__, key)
    if isinstance(item, kind):
        return item
    namespace = key.rpartition("/")[0]
    there = [full_name(other) for other in reader.list(kind.__name__, namespace=namespace)]
    name = shown(key)[1:-1]
    raise NotFound(f"{kind.__name__} {name} does not exist", hint=instead(key, there))


def instead(wanted: str, there: list[str]) -> str:
    """Return a hint after a name that does not exist."""
    # Compare names without namespaces, which would make any two of them similar.
    names = {full.rpartition("/")[2]: full for full in there}
    near = nearest(wanted.rpartition("/")[2], names)
    if near:
        return f"did you mean {names[near]}?"
    if not there:
        return "there is none"
    more = (
        f" and {len(there) - _MOST_CANDIDATES_NAMED} more"
        if len(there) > _MOST_CANDIDATES_NAMED
        else ""
    )
    return f"there are: {', '.join(there[:_MOST_CANDIDATES_NAMED])}{more}"


def few(names: list[str]) -> str:
    """Return the first few names, and the number of the others."""
    more = len(names) - _FEW
    return ", ".join(names[:_FEW]) + (f" and {more} more" if more > 0 else "")


_SCOPES = {
    "objects": "namespace",
    "ns": "namespace",
    "queue": "queue",
    "node": "node",
}


def explain_refusal(refusal: Refusal) -> BatchqError:
    """Return the error to raise for a transaction of `batchq.changes` that the store refused."""
    transaction, answer = refusal.transaction, refusal.answer
    subject = transaction.subject
    match answer.word:
        case Word.LIMIT:
            return _over_limit(subject, answer)
        case Word.CONFLICT if _forbids(transaction, answer):
            return Conflict(
                f"{subject}: {answer.subject} exists, and its pods could have the same names",
                hint="it has just been created; try again",
            )
        case Word.CONFLICT if _creates(transaction, answer):
            return Conflict(
                f"{answer.subject} exists already",
                hint="it has just been created; choose another name",
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
                f"{subject} was changed by another request at the same moment", hint="try again"
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
        f" use, and {need} more was requested"
    )


def _forbids(transaction: Transaction, answer: Answer) -> bool:
    """Whether the cause is the existence of an object that the transaction only requires to be
    absent.
    """
    return any(
        write.is_condition and f"{write.kind} {write.key}" == answer.subject
        for write in transaction.writes
    )


def _creates(transaction: Transaction, answer: Answer) -> bool:
    return any(
        write.expect == 0 and f"{write.kind} {write.key}" == answer.subject
        for write in transaction.writes
    )
