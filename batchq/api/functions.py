"""Pods that are functions: how one is named, and what may be passed to it.

A function is named `package.module:name`, as entry points are; the name may have dots
(`Model.train`). It must be importable where the pod runs. Its arguments are JSON.
"""

from __future__ import annotations

from keyword import iskeyword

from batchq.api.names import shown
from batchq.api.objects import PodTemplate

MOST_NAME = 512
#: `args` and `kwargs` of a pod together, as they are stored. Whatever is larger belongs in a file.
MOST_ARGUMENT_BYTES = 64 * 1024


def function_problem(name: str) -> str:
    """Empty if `name` has the form of a function's name, else what was expected and found."""
    module, _, path = name.partition(":")
    if len(name) > MOST_NAME or not all(map(_is_name, (*module.split("."), *path.split(".")))):
        return f"expected package.module:name, found {shown(name)}"
    if module == "__main__":
        return "__main__ is another module in every process; put the function in a module"
    return ""


def argument_bytes(template: PodTemplate) -> int:
    """The size of a template's arguments, as they are stored."""
    named = sum(len(name.encode()) for name in template.kwargs)
    return named + sum(len(bytes(raw)) for raw in (*template.args, *template.kwargs.values()))


def _is_name(word: str) -> bool:
    return word.isidentifier() and not iskeyword(word)
