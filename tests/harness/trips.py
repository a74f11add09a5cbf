"""Counting round trips: whoever has sent something to a server waits for the answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis.connection import AbstractConnection


class Trips:
    """How often something was sent to a server and waited for, by this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        send: Any = AbstractConnection.send_packed_command

        def sent(connection: AbstractConnection, *arguments: object, **options: object) -> object:
            self.made += 1
            return send(connection, *arguments, **options)

        monkeypatch.setattr(AbstractConnection, "send_packed_command", sent)

    def of(self, act: Callable[[], object]) -> int:
        """Those that `act` took."""
        before = self.made
        act()
        return self.made - before
