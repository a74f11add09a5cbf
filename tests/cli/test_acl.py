"""`batchq acl`, and the files of conf/acl, which must equal its output."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from batchq.store.roles import ROLES
from tests.cli.conftest import run

FOLDER = Path(__file__).resolve().parents[2] / "conf" / "acl"
READY = {
    "scheduler": ["scheduler"],
    "worker": ["worker", "--node", "n1"],
    "submitter": ["submitter"],
    "controller": ["controller"],
    "operator": ["operator"],
    "api": ["api"],
    "registrar": ["registrar"],
    "readonly": ["readonly"],
}


def test_each_role_has_a_ready_file_and_nothing_else_has() -> None:
    assert {path.stem for path in FOLDER.glob("*.acl")} == {role.name for role in ROLES}


@pytest.mark.parametrize("role", READY)
def test_a_ready_file_is_what_the_command_prints(role: str) -> None:
    done = run("acl", *READY[role])
    assert (FOLDER / f"{role}.acl").read_text() == done.out, (
        f"print it again: batchq acl {' '.join(READY[role])} > conf/acl/{role}.acl"
    )
    assert done.out.startswith(f"user {role}") and " off " in done.out  # noqa: PT018


def test_the_help_names_every_role() -> None:
    message = " ".join(run("acl", "--help").out.split())
    roles = "scheduler, worker, submitter, controller, operator, api, readonly or registrar"
    assert f"ROLE is {roles}." in message
    assert all(role.name in message for role in ROLES)


def test_a_reader_is_one_line() -> None:
    assert run("acl", "readonly").out == (
        "user readonly reset off %R~{bq}:* resetchannels -@all +acl|whoami +client|setinfo +exec"
        " +get +hget +hgetall +hkeys +hlen +hmget +hscan +info +multi +ping +select +time"
        " +xinfo|stream +xrange +xread +xrevrange\n"
    )


def test_a_password_is_printed_as_its_digest_only(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("correct horse\n")
    digest = hashlib.sha256(b"correct horse").hexdigest()
    named = run("acl", "submitter", "--password-file", str(tmp_path / "password"))
    assert named.out.startswith(f"user submitter reset on #{digest} %R~{{bq}}:* ")
    assert run("acl", "submitter", "--password-file", "-", stdin="correct horse").out == named.out
    assert run("acl", "submitter", "--hash", digest.upper()).out == named.out
    assert "horse" not in named.out


def test_a_workers_user_is_bound_to_its_nodes() -> None:
    answer = json.loads(run("acl", "worker", "--node", "a", "--node", "b", "-o", "json").out)
    assert (answer["user"], answer["nodes"], answer["on"]) == ("worker", ["a", "b"], False)
    assert [rule for rule in answer["rules"] if "~" in rule] == [
        "%R~{bq}:*",
        *("~{bq}:inbox:a", "~{bq}:inbox:b", "~{bq}:alive:a", "~{bq}:alive:b"),
        *("~{bq}:doorbell:a", "~{bq}:doorbell:b"),
        *("~{bq}:log:a:*-*", "~{bq}:log:b:*-*", "~{bq}:result:a:*-*", "~{bq}:result:b:*-*"),
        *("~{bq}:token:a:*-*", "~{bq}:token:b:*-*"),
        *("~exec:{bq}:requests:a", "~exec:{bq}:requests:b"),
        *("~exec:{bq}:input:a:*", "~exec:{bq}:input:b:*"),
        *("~exec:{bq}:output:a:*", "~exec:{bq}:output:b:*"),
        *("~{bq}:bell", "~{bq}-rq:a:*", "~{bq}-rq:b:*"),
    ]
    assert answer["line"].startswith("user worker reset off %R~{bq}:* ~{bq}:inbox:a ")
    assert run("acl", "worker", "--node", "a").out.startswith("user worker-a reset off ")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["submiter"], 2, "there is no role 'submiter'; expected one of readonly, worker, submit"),
        (["worker"], 2, "a user of the role worker is for certain nodes, and none was named"),
        (["readonly", "--node", "n1"], 2, "a user of the role readonly is not for certain nodes"),
        (["worker", "--node", "*"], 2, "node '*': "),
        (["worker", "--node", "n1 ~*"], 2, "node 'n1 ~*': "),
        (["readonly", "--user", "me +@all"], 2, "user 'me +@all': expected letters, digits"),
        (["readonly", "--hash", "secret"], 2, "expected 64 hexadecimal digits of a SHA-256"),
        (["readonly", "--password-file", "-"], 1, "expected one line, the password"),
        (
            ["readonly", "--password-file", "no-such"],
            1,
            "the password file no-such cannot be read: No such file or directory",
        ),
        (["readonly", "--password-file", "-", "--hash", "0"], 2, "exclude each other"),
    ],
)
def test_an_invalid_user_is_refused_in_a_sentence(
    words: list[str], code: int, message: str
) -> None:
    done = run("acl", *words)
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("error: ")
    assert message in done.err
