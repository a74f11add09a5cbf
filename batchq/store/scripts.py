"""The Lua scripts, by name: their text, and the digest by which the server knows them.

`commit` is twelve files, in this order: bounds, the change stream, batched reads and writes of
hashes, the words of the transactions, the checks of writes, the records and the arithmetic of
charges, the records and the checks of limits, the counting of charges, what is written, and the
commit itself.
"""

from __future__ import annotations

import hashlib
from importlib import resources

from msgspec import Struct


class Script(Struct, frozen=True):
    """One file of `lua/`. `may_fail`: an error is an answer, and its caller has other means."""

    name: str
    text: str
    sha: str
    may_fail: bool = False


def _read(name: str, *parts: str, may_fail: bool = False) -> Script:
    folder = resources.files("batchq.store").joinpath("lua")
    text = "".join(folder.joinpath(f"{part}.lua").read_text("utf-8") for part in (*parts, name))
    # The server identifies scripts by SHA-1; nothing secret depends on it.
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(name, text, sha, may_fail)


COMMIT = _read(
    "commit",
    *("bounds", "stream", "hashes", "words", "moves", "held", "charges", "limit_records", "limits"),
    *("counting", "writing"),
)
CREATE = _read("create")
DISCARD = _read("discard", "stream")
LEAD = _read("lead", "stream")
MEND = _read("mend", "bounds", "stream")
RECOUNT = _read("recount", "bounds", "stream")
RESIGN = _read("resign")
ATTEND = _read("attend")
READ_REPORTS = _read("read_reports", "bounds")
REMOVE_REPORTS = _read("remove_reports", "bounds")
ACKNOWLEDGE = _read("acknowledge", "bounds", "notification")
DELIVER = _read("deliver", "bounds", "notification", may_fail=True)
LOG = _read("log")
RAISE = _read("raise", "bounds", "instants")
CLAIM = _read("claim", "bounds", "instants")
PUBLISH = _read("publish")
ACCESS = _read("access", "bounds", "stream")

ALL: tuple[Script, ...] = (
    *(
        COMMIT,
        CREATE,
        DISCARD,
        MEND,
        RECOUNT,
        LEAD,
        RESIGN,
        ATTEND,
        READ_REPORTS,
        REMOVE_REPORTS,
        ACKNOWLEDGE,
        DELIVER,
    ),
    *(LOG, RAISE, CLAIM, PUBLISH, ACCESS),
)
