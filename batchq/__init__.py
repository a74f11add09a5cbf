"""batchq: a batch job queue for your own machines.

    import batchq

    with batchq.Client() as client:
        ...

`import batchq` loads very little; `Client` and `ApiClient` are loaded at their first use.
Type checkers read `__init__.pyi`.
"""

from __future__ import annotations

from importlib import import_module

__all__ = ["ApiClient", "Client", "__version__"]

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Load a client at its first use, so that the command line starts quickly."""
    if name == "Client":
        return import_module("batchq.client").Client
    if name == "ApiClient":
        return import_module("batchq.client.api_client").ApiClient
    raise AttributeError(f"module 'batchq' has no attribute {name!r}")
