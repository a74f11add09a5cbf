"""Which unix account runs a pod: the one of its group's owner, or one that the operator names; and
how an agent tells the HTTP API of this machine under which account it runs.

Only an agent that was started as root, with `--run-as owner`, changes accounts. It trusts the
owner of a group only if the HTTP API has signed the group (`batchq.api.access`), because a user of
the Redis server can write any owner.

The agent listens on an abstract unix socket of a random name, and answers nothing. The kernel says
which account listens there, and no process can forge that: see `batchq/http/identities.py`.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from batchq.api.access import is_signed
from batchq.api.node_report import AGENT_SOCKET
from batchq.api.objects import PodGroup, key_of
from batchq.errors import InvalidInput, UsageError
from batchq.paths import Home
from batchq.system import structlog
from batchq.worker.host import cgroup, privileges
from batchq.worker.host.privileges import Account, Capability, find_account

log = structlog.get_logger(__name__)

#: Accounts below are the system's own (`UID_MIN` of login.defs): only an operator can name them.
_FIRST_PERSON = 1000
_NOBODY = 65_534
_NEEDED = (Capability.SETUID, Capability.SETGID, Capability.KILL, Capability.CHOWN)
_LINE = re.compile(r"(?P<owner>\S+)\s+(?P<account>\S+)")
_MOST_BYTES = 1 << 20


class NoAccount(Exception):
    """No account of this machine may run a pod; the text says why."""


class PodAccounts(Struct, frozen=True, kw_only=True):
    """How an agent finds the account for a pod; the default is its own account for all pods.

    `agent` is the agent's account. `mapped`: the accounts of owners that the operator names.
    `unsigned`: the account for groups without a valid signature; "": they are refused.
    """

    agent: Account
    key: bytes
    mapped: Mapping[str, str] = {}
    unsigned: str = ""
    allows_root: bool = False

    def of(self, group: PodGroup) -> Account:
        """Return the account for the pods of a group. Raise NoAccount."""
        owner = group.status.submitted_by
        if not is_signed(self.key, group):
            if not self.unsigned:
                raise NoAccount(_why_unsigned(group))
            return self._checked(self.unsigned, f"PodGroup {key_of(group)}, which is not signed")
        name = self.mapped.get(owner, owner)
        if "/" in name or not name:
            raise NoAccount(f"its owner {owner[:80]!r} is not the name of an account")
        account = self._checked(name, f"owner {owner}")
        # A directory may ignore case, or take `ann@one.example` and `ann@two.example` for one.
        if owner not in self.mapped and (account.name != owner or "@" in owner):
            raise NoAccount(
                f"its owner {owner} is not the exact name of an account, without @; if account"
                f" {account.name} is meant, name it in the agent's --user-map"
            )
        if owner not in self.mapped and _is_of_system(account.uid):
            raise NoAccount(
                f"its owner {owner} has the name of a system account (uid {account.uid}) on this"
                " node; if that is meant, name it in the agent's --user-map"
            )
        return account

    def _checked(self, name: str, whose: str) -> Account:
        account = find_account(name)
        if account is None:
            raise NoAccount(
                f"{whose} has no account on this node: there is no unix account {name[:80]};"
                " create it, or name another one in the agent's --user-map"
            )
        if account.uid == 0 and not self.allows_root:
            raise NoAccount(
                f"{whose} has the account {name}, which is root, and the agent runs no pods as root"
                " without --allow-root"
            )
        if account.uid == self.agent.uid:
            raise NoAccount(
                f"{whose} has the account {name}, which is the agent's own: its pods could signal"
                " the agent"
            )
        return account


def _why_unsigned(group: PodGroup) -> str:
    if group.status.signature:
        return (
            "the signature of its group is not valid: what it runs, or its owner, was changed after"
            " the submission, or the HTTP API has another --signing-key than this node"
        )
    return (
        "its group has no signature of the HTTP API, which proves its owner, and this node runs"
        " pods as their owners; submit it through the API"
    )


def _is_of_system(uid: int) -> bool:
    return uid < _FIRST_PERSON or uid == _NOBODY


def read_user_map(path: Path) -> dict[str, str]:
    """Return the account of each owner in a file of lines `OWNER ACCOUNT`; `#` begins a comment.

    Raise InvalidInput, also for a file that others than root or this user could have written.
    """
    try:
        found = path.stat()
        text = path.read_text() if stat.S_ISREG(found.st_mode) else ""
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise InvalidInput(f"--user-map {path}: {why}") from None
    if found.st_uid not in (0, os.getuid()) or found.st_mode & 0o022 or found.st_size > _MOST_BYTES:
        raise InvalidInput(
            f"--user-map {path}: expected a file of root that no one else may write, found one of"
            f" user {found.st_uid} with mode {stat.S_IMODE(found.st_mode):04o}",
            hint="chown root FILE; chmod 644 FILE",
        )
    mapped: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        said = line.partition("#")[0].strip()
        if not said:
            continue
        match = _LINE.fullmatch(said)
        if match is None or match["owner"] in mapped:
            expected = "another owner" if match else "OWNER ACCOUNT"
            raise InvalidInput(
                f"--user-map {path}, line {number}: expected {expected}, found {said[:80]!r}"
            )
        mapped[match["owner"]] = match["account"]
    return mapped


def settle(accounts: PodAccounts, home: Home) -> None:
    """Become the agent's account, to which `home` then belongs, and keep what it needs to run pods
    under theirs.

    Raise InvalidInput or UsageError if the account could not serve as the agent's.
    """
    account = accounts.agent
    home.hand_over(account.uid, account.gid)
    try:
        cgroup.hand_over(account.uid, account.gid)
        privileges.settle_as(account)
        # A folder that only root may enter is of no use from here on.
        os.chdir("/")
    except OSError as error:
        raise UsageError(
            f"--run-as owner: account {account.name} cannot be taken: {error.strerror}"
        ) from error
    for part in (sys.prefix, sys.base_prefix, str(Path(__file__).parent)):
        if not os.access(part, os.R_OK | os.X_OK):
            raise UsageError(
                f"--run-as owner: account {account.name} may not read {part}, which is a part of"
                " this installation of batchq",
                hint="install it where all accounts may read it, such as in /opt/batchq",
            )


def announced(accounts: PodAccounts | None) -> str:
    """Log under which accounts this agent runs pods, and return that for the node's annotation."""
    if accounts is not None:
        log.info(
            "pods run as the accounts of their owners",
            agent=accounts.agent.name,
            unsigned=accounts.unsigned or "refused",
            root="allowed" if accounts.allows_root else "refused",
        )
        return "owner"
    if os.geteuid() == 0:
        log.warning(
            "agent runs as root",
            why="its pods run as root, too, and may change anything on this machine",
            do="give it a user of its own, or start it with --run-as owner",
        )
        return "root"
    log.info("pods run as the agent's account", uid=os.geteuid())
    return f"uid {os.geteuid()}"


def agents_account(name: str) -> Account:
    """Return the account that an agent for `--run-as owner` takes itself.

    Raise UsageError if there is none, or this process could not take it.
    """
    if os.geteuid() != 0 or not all(privileges.holds(one) for one in _NEEDED):
        raise UsageError(
            "--run-as owner: only an agent that is started as root can run pods under other"
            f" accounts, and this one is started by user {os.geteuid()}",
            hint="start it as root, or leave --run-as out: its pods then run as its own account",
        )
    account = find_account(name)
    if account is None:
        raise UsageError(
            f"--agent-user {name[:80]}: this machine has no such account",
            hint="create one for the agent alone: useradd --system --shell /usr/sbin/nologin"
            f" {name[:80]}",
        )
    if account.uid == 0:
        raise UsageError(
            f"--agent-user {name[:80]}: expected an account without root's rights, found root"
        )
    return account


class Announcement:
    """A listening socket, from its creation on; owned by the agent's loop."""

    def __init__(self, *, is_wanted: bool, prefix: str = AGENT_SOCKET) -> None:
        self._socket: socket.socket | None = None
        #: The name of the socket, without the zero at its start.
        self.name = f"{prefix}{secrets.token_hex(16)}"
        if not is_wanted:
            return
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(f"\0{self.name}")
            listening.listen(0)
        except OSError as error:
            listening.close()
            log.warning(
                "account not announced",
                error=error.strerror,
                remedy="if an HTTP API runs on this machine, name this account with its"
                " --agent-user",
            )
            return
        self._socket = listening

    def close(self) -> None:
        """Stop listening."""
        if self._socket is not None:
            self._socket.close()
