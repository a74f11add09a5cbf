"""Users log in at an OpenID Connect provider, a process with real signatures."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from batchq.api.access import parse_binding
from batchq.client.access_control import Actor, Delegate
from batchq.errors import InvalidInput, StoreUnavailable
from batchq.http.id_tokens import IdTokens
from batchq.http.problems import ApiProblem
from batchq.identity_provider import IdentityProvider, OidcSettings, checked_issuer
from tests.client.stage import Stage
from tests.harness.server import Server
from tests.http.api_process import Got, RunningApi
from tests.http.identity_provider import CLIENT, RunningProvider

ROOT = Actor(user="root@host", via="redis")
ALICE: dict[str, Any] = {"email": "alice@example.org", "email_verified": True}


class Site(NamedTuple):
    provider: RunningProvider
    api: RunningApi
    delegate: Delegate

    def log_in(self, token: str) -> Got:
        return self.api.caller("")("POST", "/v1/login", {"token": token})


@pytest.fixture(scope="module")
def provider() -> Iterator[RunningProvider]:
    with RunningProvider() as found:
        yield found


@pytest.fixture
def site(server: Server, stage: Stage, provider: RunningProvider) -> Iterator[Site]:
    settings = OidcSettings(issuer=provider.url, client=CLIENT)
    with RunningApi(server.url, oidc=settings) as api, Delegate(server.url) as delegate:
        yield Site(provider, api, delegate)


def validated(provider: RunningProvider, **settings: str) -> IdTokens:
    return IdTokens(OidcSettings(issuer=provider.url, client=CLIENT, **settings))


def why_refused(tokens: IdTokens, text: str) -> str:
    with pytest.raises(ApiProblem) as caught:
        tokens.login_of(text)
    assert caught.value.status == 401
    return caught.value.detail.removeprefix("this ID token is not accepted: ")


def test_a_user_logs_in_with_groups_of_the_provider(site: Site) -> None:
    site.delegate.access.grant(parse_binding("group:oidc:ml", "submitter", "ml"), ROOT)
    made = site.log_in(site.provider.sign(**ALICE, groups=["ml", "gpu", "not a group", 7]))
    assert (made.status, made.data["owner"]) == (201, "alice@example.org")
    me = site.api.caller(made.data["token"])("GET", "/v1/me").data
    assert (me["user"], me["groups"]) == ("alice@example.org", ["oidc:gpu", "oidc:ml"])
    assert me["roles"] == [{"role": "submitter", "namespace": "ml", "subject": "group:oidc:ml"}]
    [record] = list(site.delegate.access.state().tokens.values())
    assert record.expires_at - record.made_at == 12 * 3600 * 1000
    [*_, last] = site.delegate.access.audit(10)
    assert (last.record.user, last.record.verb, last.record.because) == (
        "alice@example.org", "create", "the identity provider",
    )  # fmt: skip


def test_an_id_token_is_good_for_one_login(site: Site) -> None:
    text = site.provider.sign(**ALICE, jti="once")
    assert site.log_in(text).status == 201
    again = site.log_in(text)
    assert (again.status, again.data["detail"]) == (409, "this ID token has been used already")


def test_groups_of_the_provider_are_no_groups_of_this_machine(site: Site) -> None:
    site.delegate.access.grant(parse_binding("group:unix:gpu", "admin", "ml"), ROOT)
    names = ["unix:gpu", "oidc:x", "gpu"]
    made = site.log_in(site.provider.sign(**ALICE, groups=names))
    me = site.api.caller(made.data["token"])("GET", "/v1/me").data
    assert me["groups"] == ["oidc:gpu", "oidc:oidc:x", "oidc:unix:gpu"]
    assert me["roles"] == []


def test_groups_of_a_login_are_not_those_of_an_operator_in_the_users_name(site: Site) -> None:
    site.delegate.access.grant(parse_binding("group:oidc:ml", "viewer", "*"), ROOT)
    site.log_in(site.provider.sign(**ALICE, groups=["ml"]))
    acting = {"Batchq_As": "alice@example.org", "Batchq_Reason": "a%20test"}
    me = site.api.caller()("GET", "/v1/me", **acting).data
    assert (me["user"], me["groups"], me["roles"]) == ("alice@example.org", [], [])


def test_forged_tokens_are_refused(provider: RunningProvider) -> None:
    tokens = validated(provider)
    text = provider.sign(**ALICE)
    head, body, signature = text.split(".")
    other = base64.urlsafe_b64encode(
        json.dumps({"iss": provider.url, "aud": CLIENT, "email": "eve@example.org"}).encode()
    ).rstrip(b"=")
    unsigned = base64.urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    assert why_refused(tokens, f"{head}.{other.decode()}.{signature}") == (
        "Signature verification failed"
    )
    assert why_refused(tokens, provider.sign(by="another", **ALICE)) == (
        "Signature verification failed"
    )
    for none in (provider.sign(by="none", **ALICE), f"{unsigned}.{body}.", f"{unsigned}.{body}.eA"):
        assert why_refused(tokens, none) == "the algorithm 'none' is not accepted"
    assert why_refused(tokens, provider.sign(by="secret", **ALICE)) == (
        "the algorithm 'HS256' is not accepted"
    )
    assert "key that the provider does not have" in why_refused(
        tokens, provider.sign(headers={"kid": "elsewhere"}, **ALICE)
    )
    for broken in ("", "x", "a.b.c", f"{head}.{body}", f"{head}.{body}.", "é.é.é", "[" * 9000):
        why_refused(tokens, broken)
    assert why_refused(tokens, "a" * 20_000) == "it is too long"
    deep = base64.urlsafe_b64encode(b"[" * 9000).decode()
    why_refused(tokens, f"{deep}.{body}.{signature}")
    assert tokens.login_of(text).user == "alice@example.org"


def test_tokens_of_others_and_of_other_times_are_refused(provider: RunningProvider) -> None:
    tokens = validated(provider)
    now = int(time.time())
    for claims, why in (
        ({"aud": "another"}, "it was made for another program (aud)"),
        ({"aud": None}, 'Token is missing the "aud" claim'),
        ({"aud": [CLIENT, "another"]}, "it was made for another program (azp)"),
        ({"azp": "another"}, "it was made for another program (azp)"),
        ({"iss": "https://evil.example"}, "it was made by another provider (iss)"),
        ({"iss": f"{provider.url}/"}, "it was made by another provider (iss)"),
        ({"iss": None}, 'Token is missing the "iss" claim'),
        ({"exp": now - 90}, "it has expired"),
        ({"exp": None}, 'Token is missing the "exp" claim'),
        ({"iat": now + 90}, "it is not valid yet: is a clock wrong?"),
        ({"nbf": now + 90}, "it is not valid yet: is a clock wrong?"),
        ({"iat": now - 700, "exp": now + 9000}, "it was made too long ago"),
        ({"iat": None}, 'Token is missing the "iat" claim'),
        ({"sub": None}, 'Token is missing the "sub" claim'),
    ):
        assert why_refused(tokens, provider.sign(**{**ALICE, **claims})) == why
    access_token = provider.sign(headers={"typ": "at+jwt"}, **ALICE)
    assert why_refused(tokens, access_token) == "it is no ID token (typ)"


def test_clocks_may_differ_by_a_minute(provider: RunningProvider) -> None:
    tokens = validated(provider)
    now = int(time.time())
    for claims in ({"exp": now - 30}, {"iat": now + 30}, {"nbf": now + 30}):
        assert tokens.login_of(provider.sign(**ALICE, **claims)).user == "alice@example.org"
    shared = provider.sign(**ALICE, aud=[CLIENT, "another"], azp=CLIENT)
    assert tokens.login_of(shared).user == "alice@example.org"


def test_a_user_is_named_by_a_verified_address_or_with_the_providers_host(
    provider: RunningProvider,
) -> None:
    tokens = validated(provider)
    for verified in (False, None, "true"):
        claims = {**ALICE, "email_verified": verified}
        assert "not verified" in why_refused(tokens, provider.sign(**claims))
    for name in ("a b@example.org", "@example.org", f"root@{socket.gethostname()}", "é@x.org"):
        claims = {**ALICE, "email": name}
        assert "is not a valid user name" in why_refused(tokens, provider.sign(**claims))
    by_name = validated(provider, user_claim="preferred_username")
    # The user `root` of the provider is not the root of this machine.
    assert by_name.login_of(provider.sign(preferred_username="root")).user == "root@127.0.0.1"
    assert "no claim 'preferred_username'" in why_refused(by_name, provider.sign())


def test_a_rotated_key_is_read_and_a_removed_one_is_not_trusted_for_ever(
    provider: RunningProvider,
) -> None:
    now = 1000.0
    settings = OidcSettings(issuer=provider.url, client=CLIENT)
    tokens = IdTokens(settings, clock=lambda: now)
    before = provider.sign(**ALICE)
    tokens.login_of(before)
    provider.ask("rotate", {"keep": False})
    after = provider.sign(**ALICE)
    # The keys were read a moment ago.
    assert "key that the provider does not have" in why_refused(tokens, after)
    now += 11
    assert tokens.login_of(after).user == "alice@example.org"
    now += 3700
    assert "key that the provider does not have" in why_refused(tokens, before)


def test_forged_keys_do_not_make_the_provider_busy(provider: RunningProvider) -> None:
    now = 1000.0
    settings = OidcSettings(issuer=provider.url, client=CLIENT)
    tokens = IdTokens(settings, clock=lambda: now)
    before = provider.ask("reads")["reads"]
    for place in range(20):
        why_refused(tokens, provider.sign(headers={"kid": f"forged-{place}"}, **ALICE))
    assert provider.ask("reads")["reads"] == before + 1


def test_while_the_provider_is_away_its_keys_are_used_and_without_keys_it_is_said() -> None:
    now = 1000.0
    with RunningProvider() as provider:
        settings = OidcSettings(issuer=provider.url, client=CLIENT)
        tokens = IdTokens(settings, clock=lambda: now)
        text = provider.sign(**ALICE)
        tokens.login_of(text)
    now += 4000
    assert tokens.login_of(text).user == "alice@example.org"
    with pytest.raises(StoreUnavailable, match="does not answer"):
        IdTokens(settings).login_of(text)


def test_a_provider_that_calls_itself_otherwise_is_not_used(provider: RunningProvider) -> None:
    provider.ask("set", {"issuer": "https://evil.example"})
    try:
        with pytest.raises(StoreUnavailable, match="it calls itself"):
            IdentityProvider(provider.url).keys()
    finally:
        provider.ask("set", {"issuer": provider.url})


def test_an_issuer_is_asked_over_tls_only() -> None:
    for url in (
        "http://login.example.org", "ftp://login.example.org", "https://", "https://a@b",
        "https://a/?next=https://evil.example", "https://a/#b", "file:///etc/passwd", "https://a b",
    ):  # fmt: skip
        with pytest.raises(InvalidInput, match="expected https://HOST/PATH"):
            checked_issuer(url, "--oidc-issuer")
    assert checked_issuer("https://login.example.org/realms/lab", "x")


def test_wrong_tokens_from_one_address_are_bounded(site: Site) -> None:
    statuses = [site.log_in(f"a.b.{place}").status for place in range(25)]
    assert statuses[0] == 401
    assert statuses[-1] == 429


def test_an_api_without_a_provider_says_so(running_api: RunningApi) -> None:
    caller = running_api.caller()
    assert caller("GET", "/v1/login").data == {"oidc": None}
    refused = caller("POST", "/v1/login", {"token": "x"})
    assert (refused.status, refused.data["exit"]) == (404, 6)


def test_the_command_shows_a_code_and_logs_the_user_in(site: Site, tmp_path: Path) -> None:
    site.provider.ask("set", {"slow": 0})
    process = logging_in(site, tmp_path)
    assert process.stderr is not None
    line = process.stderr.readline()
    found = re.fullmatch(r"open (\S+) in a browser, and enter the code (\w+)\n", line)
    assert found is not None, line
    assert found[1] == f"{site.provider.url}/device"
    site.provider.ask("approve", {"code": found[2], "claims": {**ALICE, "groups": ["ml"]}})
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.startswith(f"alice@example.org is logged in to http://127.0.0.1:{site.api.port}")
    kept = json.loads((tmp_path / "home" / "credentials.json").read_bytes())
    assert kept["user"] == "alice@example.org"
    assert site.api.caller(kept["token"])("GET", "/v1/me").data["groups"] == ["oidc:ml"]


def test_a_user_who_refuses_is_not_logged_in(site: Site, tmp_path: Path) -> None:
    process = logging_in(site, tmp_path)
    assert process.stderr is not None
    code = process.stderr.readline().split()[-1]
    site.provider.ask("approve", {"code": code, "claims": {"denied": True}})
    _, err = process.communicate(timeout=120)
    assert process.returncode == 9
    assert "refuses to log you in: access_denied" in err
    assert not (tmp_path / "home" / "credentials.json").exists()


def logging_in(site: Site, folder: Path) -> subprocess.Popen[str]:
    server = f"http://127.0.0.1:{site.api.port}"
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "batchq.cli", "login", server, "--oidc"],
        env={"BATCHQ_HOME": str(folder / "home")},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_the_api_refuses_half_a_configuration() -> None:
    for words, why in (
        (("--oidc-issuer", "http://login.example.org"), "expected https://HOST/PATH"),
        (("--oidc-issuer", "https://login.example.org"), "--oidc-client"),
        (("--oidc-client", "batchq"), "--oidc-client needs --oidc-issuer"),
    ):
        done = subprocess.run(
            [
                *(sys.executable, "-P", "-m", "batchq.cli", "api"),
                *("--listen", "unix:/nonexistent/socket", *words),
            ],
            env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode in (1, 2)
        assert why in done.stderr
