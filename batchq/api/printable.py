"""Foreign text for a terminal, without characters that control it.

A pod's output, a name or a reason can contain escape sequences, which clear screens, set titles,
forge lines above, or make a terminal type; and characters that reverse the order of the following
text.
"""

from __future__ import annotations

import re

_LINE_END_AND_TAB = "\n\t"
#: C0 and C1 controls, DEL, line separators, directions of writing, and surrogates.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufff9-\ufffb]"
)
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    r"""Return one line with each such character as Python writes it: `\\x1b`, `\\n`, `\\u202e`."""
    return _UNPRINTABLE.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Return text of many lines, with line ends and tabs unchanged."""
    return _UNPRINTABLE.sub(_escape_but_lines, text)


def _escape_but_lines(found: re.Match[str]) -> str:
    return found[0] if found[0] in _LINE_END_AND_TAB else _escape(found)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    # Above ASCII as JSON writes it, too, so that the output of -o json stays valid JSON.
    return _NAMED.get(found[0]) or (f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}")
