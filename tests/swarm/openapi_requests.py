"""`python -m tests.swarm.openapi_requests --seconds 3600`: exits with 1 if a request has failed.

The requests are made by schemathesis from the OpenAPI of a live API, half of them with every right,
and half as a stranger. A request fails with any 5xx, and with a traceback in the log.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from batchq.api.access import parse_binding
from batchq.client import Client
from batchq.client.access_control import Actor, Delegate
from batchq.store.redis import RedisStore
from tests.client.stage import Stage, a_cluster
from tests.harness.server import Server
from tests.http.api_process import ApiProcess, Caller

_ROOT = Actor(user="root@host", via="redis")
#: Names that exist, among random ones; streams have no end.
_CONFIGURATION = """
[parameters]
"path.namespace" = ["default", "other"]
"path.name" = ["waiting", "running", "ended", "default", "high", "n1"]
"query.watch" = false
"query.follow" = false
"query.timeout" = 1

# schemathesis cannot write lines of JSON.
[[operations]]
include-operation-id = "submitGroups"
enabled = false
"""


def main() -> int:
    """Run schemathesis, and print what it and the API say."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.swarm.openapi_requests", description=__doc__
    )
    parser.add_argument("--seconds", type=int, default=60, help="how long (60)")
    parser.add_argument("--schemathesis", default="schemathesis", help="its program")
    chosen = parser.parse_args()
    with Server() as server, ApiProcess(server.url, "--listen", "127.0.0.1:0") as api:
        port = int(api.log.read_text().partition("http://127.0.0.1:")[2].split()[0])
        _furnish(server)
        is_clean = True
        for token in _tokens(server):
            is_clean &= _sent(chosen.schemathesis, port, token, chosen.seconds // 2)
        log = api.log.read_text()
        is_clean &= "Traceback" not in log and "api.failed" not in log
        if not is_clean:
            sys.stdout.write(log[-20_000:])
        # A process that has ended answers nothing.
        alive = Caller(api.socket, 0)("GET", "/livez").status
    sys.stdout.write("clean\n" if is_clean and alive == 200 else "not clean\n")
    return 0 if is_clean and alive == 200 else 1


def _furnish(server: Server) -> None:
    store = RedisStore(server.url)
    with Client(server.url) as client:
        stage = Stage(store, client)
        stage.furnish(*a_cluster())
        client.submit(command=["true"], name="ended")
        stage.turn()
        stage.run("ended")
        client.submit(command=["true"], name="running", gates=["data"], suspend=True)
        client.open_gate("running", "data")
        client.resume("running")
        stage.turn()
        stage.start("running")
        client.submit(command=["true"], name="waiting", cpus=100, gates=["data"])
    store.close()


def _tokens(server: Server) -> tuple[str, str]:
    """Return a token with every right, and one of a user who may read in one namespace."""
    with Delegate(server.url) as delegate:
        access = delegate.access
        for user, role, namespace in (
            ("ada", "operator", "*"),
            ("ada", "admin", "*"),
            ("vera", "viewer", "other"),
        ):
            access.grant(parse_binding(f"user:{user}", role, namespace), _ROOT)
        ada, vera = (access.create_token(user, _ROOT).text for user in ("ada", "vera"))
    return ada, vera


def _sent(program: str, port: int, token: str, seconds: int) -> bool:
    url = f"http://127.0.0.1:{port}"
    words = [
        *(program, "run", f"{url}/v1/openapi.json", "--url", url, "--no-color"),
        *("--header", f"Authorization: Bearer {token}", "--checks", "not_a_server_error"),
        *("--request-timeout", "30", "--max-time", str(seconds), "--warnings", "off"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "schemathesis.toml").write_text(_CONFIGURATION)
        return subprocess.run(words, check=False, cwd=folder).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
