"""A small OpenID Connect provider: a process with HTTP, RSA keys and the device flow, for tests.

Run as a program, it prints its URL. Beside a provider's own paths it has some for tests:

    POST /test/approve   {"code": "…", "claims": {…}}: the user has entered the code
    POST /test/sign      {"claims": {…}, "by": "own" | "another" | "none" | "secret"} -> a token
    POST /test/rotate    sign with another key from now on; "keep" the former one among the keys
    POST /test/set       {"issuer": "…", "slow": N}: alter what it says, or how often it says so
    GET  /test/reads     how often its keys were read
"""

from __future__ import annotations

import http.client
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

CLIENT = "batchq"


class Keys:
    """The provider's keys by id; the last one signs."""

    def __init__(self) -> None:
        self.public: dict[str, RSAPrivateKey] = {}
        self.another = _new_key()
        self.count = 0
        self.reads = 0
        self.rotate(keep=False)

    def rotate(self, *, keep: bool) -> None:
        self.count += 1
        self.kid, self.own = f"key-{self.count}", _new_key()
        self.public = {**(self.public if keep else {}), self.kid: self.own}

    def document(self) -> dict[str, Any]:
        self.reads += 1
        keys = []
        for kid, key in self.public.items():
            form = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
            keys.append({**form, "kid": kid, "use": "sig", "alg": "RS256"})
        # What a client must ignore: a shared secret, a key for encryption, and nonsense.
        secret = {"kty": "oct", "k": "c2VjcmV0", "kid": "secret", "alg": "HS256"}
        return {"keys": [secret, {"kty": "RSA", "use": "enc"}, {"kty": "?"}, None, *keys]}

    def sign(self, claims: Mapping[str, Any], by: str, headers: Mapping[str, Any]) -> str:
        payload, kid = dict(claims), {"kid": self.kid, **headers}
        match by:
            case "none":
                return jwt.encode(payload, None, algorithm="none", headers=kid)
            case "secret":
                # The classic confusion: the public key as the secret of an HMAC.
                return jwt.encode(
                    payload, "c2VjcmV0" * 8, algorithm="HS256", headers={"kid": "secret"}
                )
            case "another":
                return jwt.encode(payload, self.another, algorithm="RS256", headers=kid)
        return jwt.encode(payload, self.own, algorithm="RS256", headers=kid)


def _new_key() -> RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


class ProviderServer(ThreadingHTTPServer):
    """The provider: its keys, and the logins under way by device code."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ProviderRequest)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.keys = Keys()
        self.issuer = self.url
        self.slow = 0
        self.interval = 1
        self.logins: dict[str, tuple[str, dict[str, Any] | None]] = {}

    def claims(self) -> dict[str, Any]:
        now = int(time.time())
        return {"iss": self.url, "aud": CLIENT, "sub": "1", "iat": now, "exp": now + 300}


class ProviderRequest(BaseHTTPRequestHandler):
    """One request."""

    server: ProviderServer

    def log_message(self, *words: object) -> None:
        """Be quiet."""

    def do_GET(self) -> None:
        server = self.server
        match self.path:
            case "/.well-known/openid-configuration":
                names = ("jwks_uri", "token_endpoint", "device_authorization_endpoint")
                places = {name: f"{server.url}/{name}" for name in names}
                self._answer({"issuer": server.issuer, **places})
            case "/jwks_uri":
                self._answer(server.keys.document())
            case "/test/reads":
                self._answer({"reads": server.keys.reads})
            case _:
                self._answer({}, status=404)

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
        if self.path.startswith("/test/"):
            self._test(json.loads(text))
            return
        fields = {name: values[0] for name, values in parse_qs(text).items()}
        if fields.get("client_id") != CLIENT:
            self._answer({"error": "invalid_client"}, status=400)
        elif self.path == "/device_authorization_endpoint":
            device, code = secrets.token_hex(8), secrets.token_hex(4).upper()
            self.server.logins[device] = code, None
            page = f"{self.server.url}/device"
            self._answer(
                {
                    "device_code": device, "user_code": code, "verification_uri": page,
                    "interval": self.server.interval, "expires_in": 60,
                }
            )  # fmt: skip
        else:
            self._exchange(fields["device_code"])

    def _exchange(self, device: str) -> None:
        _, claims = self.server.logins[device]
        if self.server.slow:
            self.server.slow -= 1
            self._answer({"error": "slow_down"}, status=400)
        elif claims is None:
            self._answer({"error": "authorization_pending"}, status=400)
        elif claims.get("denied"):
            self._answer({"error": "access_denied"}, status=400)
        else:
            token = self.server.keys.sign({**self.server.claims(), **claims}, "own", {})
            self._answer({"id_token": token, "access_token": "a", "token_type": "Bearer"})

    def _test(self, asked: dict[str, Any]) -> None:
        server = self.server
        match self.path.rpartition("/")[2]:
            case "approve":
                codes = {code: device for device, (code, _) in server.logins.items()}
                server.logins[codes[asked["code"]]] = asked["code"], asked["claims"]
                self._answer({})
            case "rotate":
                server.keys.rotate(keep=asked["keep"])
                self._answer({})
            case "set":
                server.issuer = asked.get("issuer", server.issuer)
                server.slow = asked.get("slow", 0)
                self._answer({})
            case _:
                claims = {**server.claims(), **asked["claims"]}
                claims = {name: value for name, value in claims.items() if value is not None}
                token = server.keys.sign(claims, asked["by"], asked["headers"])
                self._answer({"token": token})

    def _answer(self, document: object, *, status: int = 200) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class RunningProvider:
    """A provider in a process of its own; a context manager."""

    def __enter__(self) -> RunningProvider:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.http.identity_provider"], stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().decode().strip()
        assert self.url.startswith("http://"), "the provider did not start"
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def ask(self, path: str, asked: object = None) -> Any:
        """Send a request to one of the paths for tests."""
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=60)
        method = "GET" if asked is None else "POST"
        body = None if asked is None else json.dumps(asked)
        connection.request(method, f"/test/{path}", body)
        answer = connection.getresponse()
        document = json.loads(answer.read())
        connection.close()
        assert answer.status == 200
        return document

    def sign(self, by: str = "own", headers: Mapping[str, Any] = {}, **claims: Any) -> str:
        """Return a token with these claims instead of the usual ones; None leaves one out."""
        asked = {"claims": claims, "by": by, "headers": dict(headers)}
        return str(self.ask("sign", asked)["token"])


if __name__ == "__main__":
    provider = ProviderServer()
    sys.stdout.write(f"{provider.url}\n")
    sys.stdout.flush()
    provider.serve_forever()
