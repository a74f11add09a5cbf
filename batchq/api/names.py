"""What a name may look like, as in Kubernetes: one rule and one sentence for each sort of name.

Each function returns an empty text if the name is fine, else what was expected and found.
"""

from __future__ import annotations

import re

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_WORD = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")

LABEL_MOST = 63
SUBDOMAIN_MOST = 253


def shown(value: object, most: int = 48) -> str:
    """`value` for an error message: quoted, and never longer than `most` characters."""
    if isinstance(value, str):
        if "://" in value:
            # Where a password may be, wherever it was typed.
            return "a URL"
        # Cut before quoting: repr of a megabyte is a megabyte.
        text = repr(value[:most])
        return text if len(value) <= most else f"{text[:-1]}...' ({len(value)} characters)"
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value) if abs(value) < 10**20 else "a number of more than 20 digits"
        case dict():
            return f"a mapping of {counted(len(value), 'field')}" if value else "an empty mapping"
        case list() | tuple():
            return f"a list of {counted(len(value), 'item')}" if value else "an empty list"
        case _:
            return repr(value)[:most]


def counted(count: int, noun: str) -> str:
    """`1 pod`, `2 pods`"""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def label_problem(name: str) -> str:
    """Names of groups, quotas, tasks and namespaces: DNS labels."""
    if len(name) <= LABEL_MOST and _LABEL.fullmatch(name):
        return ""
    return (
        f"expected at most {LABEL_MOST} lower-case letters, digits and '-',"
        f" with a letter or digit at both ends, found {shown(name)}"
    )


def subdomain_problem(name: str) -> str:
    """Names of queues, nodes, priority classes, checks and pods: DNS subdomains."""
    if len(name) <= SUBDOMAIN_MOST and _SUBDOMAIN.fullmatch(name):
        return ""
    return (
        f"expected at most {SUBDOMAIN_MOST} lower-case letters, digits, '-' and '.',"
        f" with a letter or digit at both ends, found {shown(name)}"
    )


def qualified_problem(name: str) -> str:
    """Names of resources, gates and labels: `gpu`, or with a domain in front `example.com/gpu`."""
    domain, slash, word = name.rpartition("/") if len(name) <= 317 else ("", "", "")
    if (
        len(word) <= LABEL_MOST
        and _WORD.fullmatch(word)
        and (not slash or not subdomain_problem(domain))
    ):
        return ""
    return f"expected a name such as gpu or example.com/gpu, found {shown(name)}"


def label_value_problem(value: str) -> str:
    """Values of labels: short plain words, or nothing."""
    if not value or (len(value) <= LABEL_MOST and _WORD.fullmatch(value)):
        return ""
    return (
        f"expected at most {LABEL_MOST} letters, digits, '-', '_' and '.',"
        f" with a letter or digit at both ends, found {shown(value)}"
    )
