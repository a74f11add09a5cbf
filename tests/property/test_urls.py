"""No message contains the secret of a URL, however it is mistyped and wherever it is given."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.cli.conftest import run
from tests.effort import usually

#: A password; the tests search for its middle, because even a part must not be shown.
SECRETS = st.builds(
    "{}{}{}".format,
    st.text("ab1:@/?#%&=+[]., \\", max_size=2),
    st.sampled_from(["hunter2zz", "918273645", "Tr0ub4dor"]),
    st.text("ab1:@/?#%&=+[]., \\", max_size=2),
)
CORES = ("hunter2zz", "918273645", "tr0ub4dor")
#: URLs with a secret: correct except for quoting, and in invalid forms.
SHAPES = st.sampled_from(
    [
        "redis://:{}@127.0.0.1:1/0",
        "redis://me:{}@127.0.0.1:1/0",
        "redis://{}@127.0.0.1:1/0",
        "redis://{}:@127.0.0.1:1/0",
        "redis://:{}:127.0.0.1:1/0",
        "redis://me:{}127.0.0.1:1",
        "redis://me:{}",
        "redis://{}",
        "redis://{}:1/0",
        "redis:/me:{}@127.0.0.1:1/0",
        "redis//me:{}@127.0.0.1:1/0",
        "redis:me:{}@127.0.0.1:1/0",
        "rediss://me:{}@127.0.0.1:1/0",
        "rdis://me:{}@127.0.0.1:1/0",
        "http://me:{}@127.0.0.1:1/0",
        "me:{}@127.0.0.1:1",
        "{}@127.0.0.1",
        "{}",
        "redis://127.0.0.1:{}/0",
        "redis://127.0.0.1:1/{}",
        "redis://127.0.0.1:1/0/{}",
        "redis://127.0.0.1:1/0?password={}",
        "redis://127.0.0.1:1/0?pasword={}",
        "redis://127.0.0.1:1/0?username={}&password=x",
        "redis://127.0.0.1:1/0?{}",
        "redis://127.0.0.1:1/0?db={}",
        "redis://127.0.0.1:1/0#{}",
        "redis://127.0.0.1:1/0;password={}",
        "redis://127.0.0.1:1/0 password={}",
        "rediss://127.0.0.1:1/0?ssl_cert_reqs={}",
        "unix://:{}@/nowhere/s",
        "unix://{}/nowhere/s",
        "unix:///:{}@/nowhere/s",
        "unix:///nowhere/s?password={}",
        "unix:///nowhere/s?pass={}",
        "redis+sentinel://:{}@127.0.0.1:1/name",
        "redis+sentinel://127.0.0.1:1,{}/name",
        "redis+sentinel://127.0.0.1:1,:{}@127.0.0.1:2/name",
        "redis+sentinel://127.0.0.1:1/:{}@name",
        "redis+sentinel://127.0.0.1:1/name?sentinel_password={}",
        "redis+sentinel://127.0.0.1:1/name/{}",
        "redis://[{}]:1/0",
        "redis://[::1]{}",
    ]
)
PLACES = st.sampled_from(["option", "variable", "file"])
WORDS = st.sampled_from(["jobs", "doctor", "up", "scheduler status", "submit -- true"])


def nobody_knows(host: object, *_: object, **__: object) -> object:
    """Replace the resolver by one that accepts only addresses, and uses no network."""
    if host in ("127.0.0.1", "localhost", b"127.0.0.1", b"localhost", None, ""):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1))]
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Disable the network, and use an empty home directory."""
    monkeypatch.setattr(socket, "getaddrinfo", nobody_knows)
    monkeypatch.setattr("batchq.store.link.FIRST_DELAY_S", 0)
    monkeypatch.setenv("BATCHQ_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("BATCHQ_REDIS_URL", raising=False)
    monkeypatch.delenv("BATCHQ_REDIS_URL_FILE", raising=False)


def has_a_secret(text: str) -> bool:
    """Return whether the text contains more than a few letters of the secret."""
    return any(core[place : place + 5] in text.lower() for core in CORES for place in range(5))


@settings(max_examples=usually(60, 150), deadline=None, suppress_health_check=list(HealthCheck))
@given(shape=SHAPES, secret=SECRETS, is_quoted=st.booleans(), place=PLACES, words=WORDS)
def test_no_message_contains_the_secret_of_a_url(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    shape: str,
    secret: str,
    is_quoted: bool,
    place: str,
    words: str,
) -> None:
    # This is a folder in the path of a socket, which is shown and not secret.
    assume(is_quoted or not (shape.startswith("unix://{}") and secret.startswith("/")))
    url = shape.format(quote(secret, safe="") if is_quoted else secret)
    with monkeypatch.context() as environ:
        if place == "variable":
            environ.setenv("BATCHQ_REDIS_URL", url)
        elif place == "file":
            file = tmp_path / "url"
            file.write_text(url)
            environ.setenv("BATCHQ_REDIS_URL_FILE", str(file))
        done = run(*words.split(), url=url if place == "option" else None)
    assert done.code != 0
    assert not has_a_secret(done.out + done.err), (url, done)
    assert len(done.err.splitlines()) <= 2


@pytest.mark.parametrize(
    "words",
    [
        ("{url}",),
        ("--redis-url=", "{url}", "jobs"),
        ("--redis-url{url}", "jobs"),
        ("--redis_url={url}", "jobs"),
        ("jobs", "--redis-url", "{url}"),
        ("jobs", "--redis-url={url}"),
        ("jobs", "{url}"),
        ("describe", "{url}"),
        ("submit", "--queue", "{url}", "--", "true"),
        ("up", "--metrics", "{url}"),
        ("up", "--port", "{url}"),
        ("up", "--agents", "{url}"),
        ("acl", "{url}"),
        ("get", "{url}"),
    ],
)
def test_a_url_in_the_wrong_place_of_a_command_line_is_not_repeated(words: tuple[str, ...]) -> None:
    url = "redis://me:hunter2zz@127.0.0.1:1/0"
    done = run(*(word.format(url=url) for word in words))
    assert done.code != 0
    assert not has_a_secret(done.out + done.err), done


@pytest.mark.parametrize(
    "text",
    [
        "redisUrl: {url}\n",
        "actions: {url}\n",
        "actions: [{url}]\n",
        "{url}\n",
        "tiers: [{{plugins: [{{name: {url}}}]}}]\n",
        "period: {url}\n",
        "actions: [enqueue\n{url}\n",
        "redis: {{url: [{url}\n",
    ],
)
def test_a_url_in_a_configuration_file_is_not_repeated(tmp_path: Path, text: str) -> None:
    file = tmp_path / "scheduler.yaml"
    file.write_text(text.format(url="redis://me:hunter2zz@127.0.0.1:1/0"))
    done = run("config", "check", str(file))
    assert done.code != 0
    assert not has_a_secret(done.out + done.err), done
