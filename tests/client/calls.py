"""Functions for tests of the client: this module can be imported, so a worker could call them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any


def add(one: int, other: int = 1) -> int:
    return one + other


def make_local() -> Callable[[], None]:
    def inner() -> None:
        return

    return inner


def hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper() -> None:
        return

    return wrapper


def original() -> None:
    return


wrapped = hidden(original)
shout = lambda text: text.upper()  # noqa: E731 - what a test is about


class Model:
    def fit(self) -> None:
        return

    def __call__(self) -> None:
        return

    @classmethod
    def load(cls) -> None:
        return
