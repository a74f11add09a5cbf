from batchq.client import Client as Client
from batchq.client.api_client import ApiClient as ApiClient

__all__ = ["ApiClient", "Client", "__version__"]

__version__: str
