"""Pages of other ports and names, in a real browser, against an API that knows the user already.

The API itself knows no cookies. Beside it, a proxy adds a token to every request, as a login that
the browser remembers would: it must not help a page that is not the API's own.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar, NamedTuple
from urllib.parse import urlencode

import pytest

from batchq.api.access import parse_binding
from batchq.api.objects import PodGroup
from batchq.client.access_control import Actor, Delegate
from tests.client.stage import Stage
from tests.harness.server import Server
from tests.http.api_process import RunningApi
from tests.http.manifests import manifest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
ATTACKS = Path(__file__).with_name("attacks.html")
ROOT = Actor(user="root@host", via="redis")
#: Resolves to this machine in the browser: the name of a page that is rebound to the API.
REBOUND = "evil.example"

#: Opens the pages of the parameter `page`, each in a frame.
START = """<!doctype html><title>start</title><script>
for (const page of new URLSearchParams(location.search).getAll("page"))
  document.documentElement.append(Object.assign(document.createElement("iframe"), {src: page}));
</script>"""


class Asked(NamedTuple):
    """A request that has gone through the proxy, and the answer's status."""

    method: str
    path: str
    site: str
    status: int


class Proxy(BaseHTTPRequestHandler):
    """Passes requests on to the API with a token; serves the page, and takes its reports."""

    port: ClassVar = 0
    token: ClassVar = ""
    asked: ClassVar[list[Asked]] = []
    reports: ClassVar[dict[str, dict[str, str]]] = {}
    is_told: ClassVar = threading.Condition()

    def do_GET(self) -> None:
        if self.path.startswith("/page"):
            self._answer(200, {"Content-Type": "text/html"}, ATTACKS.read_bytes())
        elif self.path.startswith("/start"):
            self._answer(200, {"Content-Type": "text/html"}, START.encode())
        elif self.path == "/favicon.ico":
            self._answer(404, {}, b"")
        else:
            self._pass_on()

    def do_POST(self) -> None:
        if not self.path.startswith("/report?"):
            self._pass_on()
            return
        found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.is_told:
            self.reports[self.path.partition("?")[2]] = found
            self.is_told.notify_all()
        self._answer(200, {}, b"")

    def do_DELETE(self) -> None:
        self._pass_on()

    def do_OPTIONS(self) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        headers = {
            name: value
            for name, value in self.headers.items()
            if name.lower() not in ("connection", "upgrade", "content-length")
        }
        headers["Authorization"] = f"Bearer {self.token}"
        try:
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
            site = self.headers.get("Sec-Fetch-Site", "")
            self.asked.append(Asked(self.command, self.path, site, answer.status))
            self._answer(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in ("content-length", "date", "server", "transfer-encoding"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def served() -> Iterator[int]:
    """Serve on a free port of 127.0.0.1; yield the port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@contextmanager
def browser(folder: Path, page: str) -> Iterator[None]:
    """Open a page in a browser."""
    assert CHROMIUM is not None
    words = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--no-first-run", "--disable-background-networking", "--disable-sync"),
        *(f"--user-data-dir={folder}", f"--host-resolver-rules=MAP {REBOUND} 127.0.0.1"),
        *("--disable-features=HttpsUpgrades,HttpsFirstBalancedMode", page),
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log, start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def page(name: str, host: str, port: int, target: str, token: str) -> str:
    """Return the address of a page that attacks the target."""
    body = json.dumps(manifest(f"by-{name}"))
    given = {"name": name, "target": target, "token": token, "body": body}
    return f"http://{host}:{port}/page?{urlencode(given | {'victim': f'for-{name}'})}"


#: What a page of another port reads. The browser does not let it see why it is refused.
OF_ANOTHER_PORT = {
    **dict.fromkeys(("read", "readWithCredentials", "readOpaque", "readWithToken"), "refused"),
    **dict.fromkeys(("postPlain", "postForm", "postJson", "postOwnHeader"), "refused"),
    **dict.fromkeys(("remove", "cancel"), "refused"),
    **dict.fromkeys(("script", "image", "style", "events", "socket"), "refused"),
    "form text/plain": "sent",
    "form multipart/form-data": "sent",
    "form application/x-www-form-urlencoded": "sent",
    "frame": "closed",
}


@pytest.mark.skipif(CHROMIUM is None, reason="needs the program chromium (Debian: chromium)")
def test_a_page_of_another_port_or_name_reads_and_changes_nothing(
    server: Server, stage: Stage, tmp_path: Path
) -> None:
    names = ("other", "direct", "rebound", "own")
    with Delegate(server.url) as delegate, RunningApi(server.url) as api:
        delegate.access.grant(parse_binding("user:ada", "admin", "*"), ROOT)
        token = delegate.access.create_token("ada", ROOT).text
        for name in names:
            delegate.client_of("ada").submit(manifest(f"for-{name}", cpu="100"))
        Proxy.port, Proxy.token, Proxy.asked, Proxy.reports = api.port, token, [], {}
        with served() as proxy, served() as other:
            by_proxy, by_port = f"http://127.0.0.1:{proxy}", f"http://127.0.0.1:{api.port}"
            pages = (
                page("other", "127.0.0.1", other, by_proxy, token),
                page("direct", "127.0.0.1", other, by_port, token),
                page("rebound", REBOUND, proxy, f"http://{REBOUND}:{proxy}", token),
                page("own", "127.0.0.1", proxy, by_proxy, token),
            )
            start = f"http://127.0.0.1:{other}/start?{urlencode({'page': pages}, doseq=True)}"
            with browser(tmp_path, start), Proxy.is_told:
                Proxy.is_told.wait_for(lambda: len(Proxy.reports) == len(names), 120)
    assert sorted(Proxy.reports) == sorted(names)
    reports, asked = Proxy.reports, Proxy.asked
    # A page of the API's own port may do all of it, so the attacks are what they seem to be.
    own = reports["own"]
    assert own["readWithCredentials"].startswith("200 ")
    assert (own["postJson"][:3], own["cancel"][:3]) == ("201", "200")
    assert {one.status for one in asked if one.site == "same-origin"} == {200, 201, 405, 415}
    assert reports["other"] == reports["direct"] == OF_ANOTHER_PORT
    refused = [one for one in asked if one.site == "same-site" and one.method != "OPTIONS"]
    assert {one.status for one in refused} == {403}
    assert {one.method for one in refused} == {"GET", "POST"}
    # To the browser, a rebound page is the API's own: it reads why it is refused.
    assert {answer[:3] for answer in reports["rebound"].values()} == {"421", "405"}
    assert {group.metadata.name: str(group.status.phase) for group in groups(stage)} == {
        "by-own": "Pending",
        "for-other": "Pending",
        "for-direct": "Pending",
        "for-rebound": "Pending",
        "for-own": "Cancelled",
    }


def groups(stage: Stage) -> list[PodGroup]:
    return [one for one in stage.client.list("PodGroup") if isinstance(one, PodGroup)]
