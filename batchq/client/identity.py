"""Who asks: the name under which a request is remembered, in events and with the group.

A server that knows users vouches for one; elsewhere it is who runs the program, and on which
machine. A program that is one of several adds what it is: several controllers may share a user.
"""

from __future__ import annotations

import os
import pwd
import socket

from batchq.errors import InvalidInput
from batchq.store.redis import RedisStore

_MOST = 128
#: The server's user for those who name none.
_NOBODY = ("", "default")


def checked_component(component: str) -> str:
    """What a program calls itself. Raises InvalidInput for what would not be one short line."""
    if len(component) > _MOST or not component.isprintable():
        raise InvalidInput(
            f"component: expected at most {_MOST} printable characters, found {component[:40]!r}",
            hint='as in Client(component="data-ready")',
        )
    return component


def user_of(store: RedisStore, component: str) -> str:
    """`alice@laptop`, the server's `submitter`, or `data-ready (submitter)` of a component."""
    name = store.link.user
    if name in _NOBODY:
        name = f"{_login()}@{socket.gethostname()}"
    return f"{component} ({name})" if component else name


def _login() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        # In a container, often.
        return f"uid-{os.getuid()}"
