"""Mistakes in submitting a function or in reading its result."""

from __future__ import annotations

from tests.cli.bad_input import CMD, SUBMIT, Bad

FUNCTIONS = [
    Bad(
        "a function and a command",
        2,
        "expected a command after `--`, a file with -f or a --function, found more than one",
        (*SUBMIT, "--function", "a:b", *CMD),
    ),
    Bad(
        "arguments of a command",
        2,
        "--args and --kwargs apply to a function, not to a command",
        (*SUBMIT, "--args", "[1]", *CMD),
    ),
    Bad(
        "a function without a module",
        1,
        "spec.tasks[0].template.function: expected package.module:name, found 'train'",
        (*SUBMIT, "--function", "train"),
    ),
    Bad(
        "arguments that are no JSON",
        2,
        "'--args': expected a JSON list such as [1, 2], found '1, 2'",
        (*SUBMIT, "--function", "a:b", "--args", "1, 2"),
    ),
    Bad(
        "arguments that are no list",
        2,
        "'--args': expected a JSON list such as [1, 2], found a mapping of 1 field",
        (*SUBMIT, "--function", "a:b", "--args", '{"a": 1}'),
    ),
    Bad(
        "arguments without an end",
        2,
        "'--args': expected a JSON list such as [1, 2], found '[[[[",
        (*SUBMIT, "--function", "a:b", "--args", "[" * 100_000),
    ),
    Bad(
        "a number that JSON does not have",
        1,
        "kwargs.a[0]: expected a value that JSON can hold, found nan",
        (*SUBMIT, "--function", "a:b", "--kwargs", '{"a": [NaN]}'),
    ),
    Bad(
        "the result of a command",
        6,
        "PodGroup default/ended runs a command, which returns nothing",
        ("result", "ended"),
    ),
    Bad(
        "the result of no group",
        6,
        "PodGroup default/nobody does not exist",
        ("result", "nobody"),
    ),
]
