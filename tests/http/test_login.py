"""`batchq login`, `whoami` and `logout`, against an API on a socket and over TLS."""

from __future__ import annotations

import json
import os
import pwd
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchq.api.access import parse_binding
from batchq.api_session import ApiCredentials, ApiSession
from batchq.client.access_control import Actor, Delegate
from batchq.errors import StoreUnavailable
from tests.cli.conftest import Ran, run
from tests.client.stage import Stage
from tests.daemon.waiting import until
from tests.harness.server import Server
from tests.harness.tls import AUTHORITY, CERTIFICATES
from tests.http.api_process import RunningApi

EXPECTED = "expected https://HOST:PORT, ssh://HOST or unix:PATH"
ROOT = Actor(user="root@host", via="redis")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATCHQ_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def secured(server: Server, stage: Stage, tmp_path: Path) -> Iterator[RunningApi]:
    """An API with TLS."""
    key = tmp_path / "api.key"
    shutil.copy(CERTIFICATES / "server.key", key)
    key.chmod(0o600)
    with RunningApi(server.url, certificate=CERTIFICATES / "server.crt", key=key) as api:
        yield api


@pytest.fixture
def token(server: Server) -> str:
    """A token of alice, who is a viewer."""
    with Delegate(server.url) as delegate:
        delegate.access.grant(parse_binding("user:alice", "viewer", "ml"), ROOT)
        return delegate.access.create_token("alice", ROOT).text


def log_in(api: RunningApi, token: str, *words: str) -> Ran:
    address = f"https://localhost:{api.port}"
    return run("login", address, "--token-file", "-", *words, stdin=f"{token}\n")


@pytest.mark.usefixtures("stage")
def test_a_token_is_kept_closed_to_others_used_and_revoked(
    token: str, secured: RunningApi, home: Path
) -> None:
    done = log_in(secured, token, "--ca-file", str(AUTHORITY))
    path = home / "credentials.json"
    assert done.out == (
        f"alice is logged in to https://localhost:{secured.port}; the token is kept in {path}\n"
    )
    assert token not in done.out + done.err
    assert path.stat().st_mode & 0o777 == 0o600

    me = run("whoami", "-o", "json")
    assert json.loads(me.out)["user"] == "alice"
    assert token not in me.out
    fields = dict(line.split(None, 1) for line in run("whoami").lines)
    assert (fields["User:"], fields["Roles:"]) == ("alice", "viewer in ml")

    assert run("logout").out.endswith(f"; token {token.split('_')[1]} is revoked\n")
    again = log_in(secured, token, "--ca-file", str(AUTHORITY))
    assert (again.code, again.err.splitlines()[0]) == (
        9,
        f"error: token {token.split('_')[1]} was revoked",
    )
    assert (run("whoami").code, run("logout").code) == (6, 6)


def test_on_the_socket_no_token_is_needed(running_api: RunningApi, home: Path) -> None:
    account = pwd.getpwuid(os.getuid()).pw_name
    address = f"unix:{running_api.socket}"
    kept = f"the address is kept in {home / 'credentials.json'}"
    assert run("login", address).out == f"{account} is logged in to {address}; {kept}\n"
    assert json.loads(run("whoami", "-o", "json").out)["via"] == "socket"
    assert run("logout").out == f"logged out of unix:{running_api.socket}\n"


def test_whoami_asks_the_server_that_other_commands_use(
    token: str, running_api: RunningApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("login", f"unix:{running_api.socket}")
    assert json.loads(run("whoami", "-o", "json").out)["via"] == "socket"

    file = tmp_path / "token"
    file.write_text(f"{token}\n")
    monkeypatch.setenv("BATCHQ_SERVER", f"unix:{running_api.socket}")
    monkeypatch.setenv("BATCHQ_TOKEN_FILE", str(file))
    me = json.loads(run("whoami", "-o", "json").out)
    assert (me["user"], me["via"]) == ("alice", "token")

    monkeypatch.setenv("BATCHQ_SERVER", "unix:/nowhere/api")
    away = run("whoami")
    assert (away.code, "the API at unix:/nowhere/api does not answer" in away.err) == (9, True)


def test_an_api_without_tls_is_suspected_where_https_is_asked_for(
    token: str, running_api: RunningApi
) -> None:
    refused = log_in(running_api, token)
    address = f"https://localhost:{running_api.port}"
    assert (refused.code, refused.err.splitlines()) == (
        9,
        [
            f"error: the API at {address} does not answer: it does not speak TLS",
            (
                "hint: it may speak http without TLS: then use http:// on its own machine, and"
                " ssh://HOST from others; `batchq api --tls-cert` adds TLS"
            ),
        ],
    )


def test_a_token_that_was_revoked_meanwhile_is_forgotten_without_an_error(
    server: Server, token: str, secured: RunningApi, home: Path
) -> None:
    log_in(secured, token, "--ca-file", str(AUTHORITY))
    name = token.split("_")[1]
    with Delegate(server.url) as delegate:
        delegate.access.revoke_token(name, ROOT)
    # The API hears of it within a second.
    until(lambda: run("whoami").code == 9)
    done = run("logout")
    assert (done.code, done.err, done.out) == (
        0,
        "",
        f"logged out of https://localhost:{secured.port}: token {name} was revoked\n",
    )
    assert not (home / "credentials.json").exists()


def test_whoami_says_that_commands_use_a_redis_server(running_api: RunningApi) -> None:
    run("login", f"unix:{running_api.socket}")
    refused = run("whoami", url="redis://127.0.0.1:1/0")
    assert refused.code == 1
    assert refused.err == (
        "error: commands here use the Redis server that --redis-url or the environment names, and"
        " users are known only to the API\n"
        "hint: without --redis-url and BATCHQ_REDIS_URL, they use the API at"
        f" unix:{running_api.socket}\n"
    )


@pytest.mark.usefixtures("stage")
def test_whoami_names_a_role_once_that_a_user_has_twice(server: Server) -> None:
    # The account that runs the API is an operator anyway.
    account = pwd.getpwuid(os.getuid()).pw_name
    with Delegate(server.url) as delegate:
        delegate.access.grant(parse_binding(f"user:{account}", "operator", "*"), ROOT)
    with RunningApi(server.url) as api:
        run("login", f"unix:{api.socket}")
        fields = dict(line.split(None, 1) for line in run("whoami").lines)
    assert fields["Roles:"] == "operator in all namespaces, admin in all namespaces"


def test_a_certificate_of_an_unknown_authority_is_refused(
    token: str, secured: RunningApi, home: Path
) -> None:
    refused = log_in(secured, token)
    assert refused.code == 9
    assert "cannot be verified" in refused.err
    missing = log_in(secured, token, "--ca-file", "missing.pem")
    assert (missing.code, missing.err) == (1, "error: --ca-file: there is no file missing.pem\n")
    assert not (home / "credentials.json").exists()


def test_a_token_that_others_may_read_is_not_used(running_api: RunningApi, home: Path) -> None:
    run("login", f"unix:{running_api.socket}")
    (home / "credentials.json").chmod(0o644)
    refused = run("whoami")
    assert refused.code == 1
    assert "other users may read the token in it" in refused.err


def test_a_file_closed_from_its_beginning_whatever_the_umask(
    running_api: RunningApi, home: Path
) -> None:
    before = os.umask(0)
    try:
        run("login", f"unix:{running_api.socket}")
    finally:
        os.umask(before)
    assert (home / "credentials.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("hpc.example", EXPECTED),
        ("ftp://hpc.example", EXPECTED),
        ("https://", EXPECTED),
        ("https://host:port", EXPECTED),
        ("https://alice:secret@host", "expected no user, password or parameters in it"),
        ("http://hpc.example", "others could read the token on the way"),
        ("unix:/nowhere/api", "does not answer: No such file or directory"),
    ],
)
def test_a_wrong_address_is_refused_in_a_sentence(address: str, sentence: str) -> None:
    refused = run("login", address)
    assert refused.code in (1, 9)
    assert sentence in refused.err
    assert "secret" not in refused.err


@pytest.mark.parametrize("text", ["", "secret", "bqt_a", "bqt_a_b_c bqt_a_b_c"])
def test_something_else_than_a_token_is_not_repeated(text: str) -> None:
    refused = run("login", "https://localhost:1", "--token-file", "-", stdin=text)
    assert refused.code == 1
    assert refused.err == "error: expected a token, bqt_…, and nothing else\n"


def test_logging_out_without_an_answer_forgets_the_token_and_says_that_it_is_valid(
    token: str, secured: RunningApi, home: Path
) -> None:
    log_in(secured, token, "--ca-file", str(AUTHORITY))
    path = home / "credentials.json"
    path.write_text(path.read_text().replace(str(secured.port), "1"))
    failed = run("logout")
    assert failed.code == 9
    assert "is forgotten here, and was not revoked" in failed.err
    assert not path.exists()


@pytest.mark.parametrize(
    ("variable", "value", "sentence", "hint"),
    [
        (
            "BATCHQ_SERVER",
            "hpc.example:8443",
            EXPECTED,
            "as in",
        ),
        (
            "BATCHQ_SERVER",
            " ",
            EXPECTED,
            "unset BATCHQ_SERVER",
        ),
        ("BATCHQ_SERVER", "https://hpc example", "expected https://HOST:PORT", "as in https://hpc"),
        ("BATCHQ_SERVER", "rediss://hpc", "expected https://HOST:PORT", "BATCHQ_REDIS_URL"),
        ("BATCHQ_SERVER", "https://a:secret@b", "no user, password", "BATCHQ_TOKEN_FILE"),
        ("BATCHQ_SERVER", "http://hpc.example", "others could read the token", "use https://"),
        ("BATCHQ_TOKEN", "bqt_secret\nx", "expected a token, bqt_…", "BATCHQ_TOKEN_FILE"),
        ("BATCHQ_TOKEN", "bqt_secret☃", "expected a token, bqt_…", "BATCHQ_TOKEN_FILE"),
    ],
)
def test_a_malformed_variable_is_named_with_what_was_expected(
    variable: str, value: str, sentence: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHQ_SERVER", "unix:/nowhere/api")
    monkeypatch.setenv(variable, value)
    refused = run("jobs")
    first, second = refused.err.splitlines()
    assert (refused.code, first.partition(": ")[0]) == (1, "error")
    assert first.startswith(f"error: {variable}: ")
    assert sentence in first
    assert second.startswith("hint: ")
    assert hint in second
    assert "secret" not in refused.err


@pytest.mark.usefixtures("stage")
def test_an_invitation_is_exchanged_once_for_a_token(
    server: Server, secured: RunningApi, home: Path
) -> None:
    invited = run("token", "invite", "bob", "--role", "submitter", "-n", "ml", url=server.url)
    text = invited.out.strip()
    assert text.startswith("bqi_")
    assert invited.err.startswith(
        "user:bob is submitter in namespace ml. User bob may log in with it once, until "
    )
    done = log_in(secured, text, "--ca-file", str(AUTHORITY))
    assert done.out.startswith("bob is logged in to ")
    kept = json.loads((home / "credentials.json").read_text())["token"]
    assert kept.startswith("bqt_")
    assert [one["role"] for one in json.loads(run("whoami", "-o", "json").out)["roles"]] == [
        "submitter"
    ]
    again = log_in(secured, text, "--ca-file", str(AUTHORITY))
    assert again.code == 9
    assert "has been used already, or was revoked" in again.err
    states = {line.split()[2] for line in run("token", "list", url=server.url).lines[1:]}
    assert states == {"used", "valid"}
    # An invitation permits nothing else, and a token is none.
    address = f"https://localhost:{secured.port}"
    for token, method, path, sentence in (
        (text, "GET", "/v1/me", "an invitation is not a token"),
        (kept, "POST", "/v1/invitations", "expected an invitation"),
    ):
        shown = ApiCredentials(server=address, token=token, authority=str(AUTHORITY))
        with ApiSession(shown) as session, pytest.raises(StoreUnavailable, match=sentence):
            session.request(method, path)


def test_an_invitation_that_is_late_or_for_too_long_is_refused(server: Server) -> None:
    refused = run("token", "invite", "bob", "--for", "8d", url=server.url)
    assert (refused.code, refused.err) == (1, "error: an invitation lasts at most 7d, found 8d\n")
    lost = run("token", "invite", "bob", "-n", "ml", url=server.url)
    assert (lost.code, lost.err.splitlines()[0]) == (2, "error: -n says where --role is given")


@pytest.mark.parametrize("role", ["viewer", "submitter", "admin"])
def test_an_invitation_must_name_the_namespace_of_its_role(server: Server, role: str) -> None:
    refused = run("token", "invite", "bob", "--role", role, url=server.url)
    assert (refused.code, refused.out, refused.err) == (
        2,
        "",
        (
            f"error: the role {role} is given in a namespace, and none is named\n"
            f"hint: as in --role {role} -n ml, or --everywhere for all namespaces\n"
        ),
    )
    invited = run("token", "invite", "bob", "--role", role, "--everywhere", url=server.url)
    assert invited.err.startswith(f"user:bob is {role} in all namespaces. User bob may log in ")


def test_an_operator_is_invited_to_all_namespaces(server: Server) -> None:
    invited = run("token", "invite", "eli", "--role", "operator", url=server.url)
    assert invited.err.startswith("user:eli is operator in all namespaces. User eli may log in ")


def test_commands_over_redis_do_not_read_what_login_has_kept(
    stage: Stage, server: Server, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir(parents=True, exist_ok=True)
    (home / "credentials.json").write_text("garbage")
    monkeypatch.setenv("BATCHQ_REDIS_URL", server.url)
    assert run("jobs").code == 0
    monkeypatch.delenv("BATCHQ_REDIS_URL")
    assert "credentials.json" in run("jobs").err


@pytest.mark.usefixtures("stage")
def test_operators_invite_over_the_api_and_admins_of_a_namespace_do_not(
    server: Server, secured: RunningApi
) -> None:
    with Delegate(server.url) as delegate:
        access = delegate.access
        access.grant(parse_binding("user:olga", "operator", "*"), ROOT)
        access.grant(parse_binding("user:ada", "admin", "ml"), ROOT)
        olga, ada = (access.create_token(name, ROOT).text for name in ("olga", "ada"))

    def as_user(token: str, *words: str) -> Ran:
        assert log_in(secured, token, "--ca-file", str(AUTHORITY)).code == 0
        return run("token", "invite", *words)

    invited = as_user(olga, "bob", "--role", "submitter", "-n", "ml", "-o", "json")
    row = json.loads(invited.out)
    assert row["invitation"].startswith("bqi_")
    assert (row["owner"], row["madeBy"]) == ("bob", "olga")
    assert log_in(secured, row["invitation"], "--ca-file", str(AUTHORITY)).code == 0
    assert json.loads(run("whoami", "-o", "json").out)["roles"] == [
        {"role": "submitter", "namespace": "ml", "subject": "user:bob"}
    ]
    with Delegate(server.url) as delegate:
        record = next(
            one.record for one in delegate.access.audit(50) if one.record.name.startswith("invit")
        )
    assert (record.user, record.verb, record.via) == ("olga", "create", "token")
    refused = as_user(ada, "eve", "--role", "submitter", "-n", "ml")
    assert (refused.code, "user ada may not create users" in refused.err) == (9, True)
    late = as_user(olga, "eve", "--for", "8d")
    assert (late.code, late.err) == (1, "error: an invitation lasts at most 7d, found 8d\n")
    own = as_user(olga, "olga", "--role", "admin", "-n", "ml")
    assert (own.code, "a role cannot be given to oneself" in own.err) == (9, True)
