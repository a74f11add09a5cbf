"""Manifests and configurations as YAML, for tests that make many of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml

#: libyaml writes a world in a tenth of the time.
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def text_of(document: Any) -> str:
    """Return the text of a file with one document."""
    return text_of_all([document])


def text_of_all(documents: Iterable[Any]) -> str:
    """Return the text of a file with these documents, whose keys stay in order."""
    text: str = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False)
    return text
