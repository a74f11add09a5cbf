from batchq.client import Client as Client

__all__ = ["Client", "__version__"]

__version__: str
