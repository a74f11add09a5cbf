"""Counts round trips: each send to a server waits for the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis.connection import AbstractConnection


class Trips:
    """How often this process has sent something to a server and waited for the answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        send: Any = AbstractConnection.send_packed_command

        def sent(connection: AbstractConnection, *arguments: object, **options: object) -> object:
            self.made += 1
            return send(connection, *arguments, **options)

        monkeypatch.setattr(AbstractConnection, "send_packed_command", sent)

    def of(self, action: Callable[[], object]) -> int:
        """Return the number of round trips of `action`."""
        before = self.made
        action()
        return self.made - before
