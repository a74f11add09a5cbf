"""batchq: a batch job queue for your own machines.

    import batchq

    with batchq.Client() as client:
        ...

`import batchq` loads next to nothing; `batchq.Client` is loaded when it is first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from batchq.client import Client

__all__ = ["Client", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Load `Client` at its first use, so that the command line starts quickly."""
    if name == "Client":
        from batchq.client import Client

        return Client
    raise AttributeError(f"module 'batchq' has no attribute {name!r}")
