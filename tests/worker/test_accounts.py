"""Which account runs a pod, by the operator's rules; and what an agent refuses at its start."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from batchq.api.access import signature_of
from batchq.api.objects import PodGroup
from batchq.errors import InvalidInput, UsageError
from batchq.paths import Home, read_signing_key
from batchq.worker.agent.agent import AgentSettings
from batchq.worker.host import privileges
from batchq.worker.host.accounts import NoAccount, PodAccounts, agents_account, read_user_map
from batchq.worker.host.privileges import Account, Capability, find_account
from batchq.worker.workhorse.process import without_person
from tests.builders import a_group

KEY = b"k" * 40
PEOPLE = {"root": 0, "daemon": 1, "postgres": 113, "batchq-worker": 998, "alice": 1000}
PEOPLE |= {"builds": 1001, "nobody": 65_534}


@pytest.fixture(autouse=True)
def people(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the machine have the accounts above, and no others."""

    def entry(name: str) -> pwd.struct_passwd:
        # A directory may ignore case, and take several domains for its own.
        local, _, domain = name.lower().partition("@")
        name = name if domain == "lab.example" else local
        uid = PEOPLE[local]
        return pwd.struct_passwd((name, "x", uid, uid, "", f"/home/{name}", "/bin/bash"))

    monkeypatch.setattr(pwd, "getpwnam", entry)
    monkeypatch.setattr(os, "getgrouplist", lambda name, gid: [gid, 5000])


def an_account(name: str) -> Account:
    found = find_account(name)
    assert found is not None
    return found


def group_of(owner: str, *, key: bytes | None = KEY) -> PodGroup:
    group = a_group("train")
    group = structs.replace(group, status=structs.replace(group.status, submitted_by=owner))
    signature = "" if key is None else signature_of(key, group)
    return structs.replace(group, status=structs.replace(group.status, signature=signature))


def the_account(group: PodGroup, **rules: Any) -> str:
    """Return the name of the account for the group, or why it has none."""
    given: dict[str, Any] = {"agent": an_account("batchq-worker"), "key": KEY} | rules
    try:
        return PodAccounts(**given).of(group).name
    except NoAccount as why:
        return str(why)


@pytest.mark.parametrize(
    ("group", "rules", "expected"),
    [
        (group_of("alice"), {}, "alice"),
        (group_of("robot"), {"mapped": {"robot": "builds"}}, "builds"),
        (group_of("alice"), {"mapped": {"alice": "builds"}}, "builds"),
        (group_of("postgres"), {"mapped": {"postgres": "postgres"}}, "postgres"),
        (group_of("root"), {"mapped": {"root": "root"}, "allows_root": True}, "root"),
        (group_of("alice", key=None), {"unsigned": "nobody"}, "nobody"),
        (group_of("alice", key=b"x" * 40), {"unsigned": "nobody"}, "nobody"),
        (
            group_of("carol"),
            {},
            (
                "owner carol has no account on this node: there is no unix account"
                " carol; create it, or name another one in the agent's --user-map"
            ),
        ),
        (
            group_of("robot"),
            {"mapped": {"robot": "gone"}},
            (
                "owner robot has no account on this node: there is no unix account gone; create"
                " it, or name another one in the agent's --user-map"
            ),
        ),
        (
            group_of("root"),
            {},
            (
                "owner root has the account root, which is root, and the agent runs"
                " no pods as root without --allow-root"
            ),
        ),
        (
            group_of("root"),
            {"allows_root": True},
            (
                "its owner root has the name of a system account"
                " (uid 0) on this node; if that is meant, name it in the agent's --user-map"
            ),
        ),
        (
            group_of("postgres"),
            {},
            (
                "its owner postgres has the name of a system account (uid 113)"
                " on this node; if that is meant, name it in the agent's --user-map"
            ),
        ),
        (
            group_of("nobody"),
            {},
            (
                "its owner nobody has the name of a system account (uid 65534) on"
                " this node; if that is meant, name it in the agent's --user-map"
            ),
        ),
        (
            group_of("robot"),
            {"mapped": {"robot": "batchq-worker"}},
            (
                "owner robot has the account"
                " batchq-worker, which is the agent's own: its pods could signal the agent"
            ),
        ),
        (
            group_of("Alice"),
            {},
            (
                "its owner Alice is not the exact name of an account, without @; if account alice"
                " is meant, name it in the agent's --user-map"
            ),
        ),
        (
            group_of("alice@lab.example"),
            {},
            (
                "its owner alice@lab.example is not the exact name of an account, without @; if"
                " account alice@lab.example is meant, name it in the agent's --user-map"
            ),
        ),
        (group_of("Alice"), {"mapped": {"Alice": "alice"}}, "alice"),
        (group_of(""), {}, "its owner '' is not the name of an account"),
        (group_of("../root"), {}, "its owner '../root' is not the name of an account"),
        (
            group_of("alice", key=None),
            {},
            (
                "its group has no signature of the HTTP API, which proves"
                " its owner, and this node runs pods as their owners; submit it through the API"
            ),
        ),
        (
            group_of("alice", key=b"x" * 40),
            {},
            (
                "the signature of its group is not valid: what it"
                " runs, or its owner, was changed after the submission, or the HTTP API has another"
                " --signing-key than this node"
            ),
        ),
    ],
)
def test_the_account_of_a_group_or_why_there_is_none(
    group: PodGroup, rules: dict[str, Any], expected: str
) -> None:
    assert the_account(group, **rules) == expected


def test_an_account_has_its_groups_and_variables() -> None:
    alice = an_account("alice")
    assert (alice.uid, alice.gid, alice.groups) == (1000, 1000, (1000, 5000))
    assert alice.environment() == {
        "HOME": "/home/alice",
        "USER": "alice",
        "LOGNAME": "alice",
        "SHELL": "/bin/bash",
    }
    agents = {"HOME": "/root", "XDG_RUNTIME_DIR": "/run/user/0", "SUDO_USER": "ada", "PATH": "/bin"}
    assert without_person(agents) == {"PATH": "/bin"}


def a_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "file"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_user_map_has_comments_and_one_line_for_each_owner(tmp_path: Path) -> None:
    path = a_file(tmp_path, "# robots\n\nrobot builds # of ci\na@b.example  alice\n")
    assert read_user_map(path) == {"robot": "builds", "a@b.example": "alice"}


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        ("robot\n", 0o600, "line 1: expected OWNER ACCOUNT, found 'robot'"),
        ("a b\na c\n", 0o600, "line 2: expected another owner, found 'a c'"),
        ("a b c\n", 0o600, "line 1: expected OWNER ACCOUNT, found 'a b c'"),
        ("a b\n", 0o622, "expected a file of root that no one else may write, found one of user"),
    ],
)
def test_a_user_map_that_is_malformed_or_open_is_refused(
    tmp_path: Path, text: str, mode: int, message: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_user_map(a_file(tmp_path, text, mode))
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        ("k" * 31, 0o600, "expected 32 to 4096 bytes, found 31"),
        ("k" * 5000, 0o600, "expected 32 to 4096 bytes, found 5000"),
        ("k" * 32, 0o644, "that no one else may read, found one of user"),
        ("k" * 32, 0o620, "that no one else may read, found one of user"),
    ],
)
def test_a_key_that_is_short_or_open_is_refused(
    tmp_path: Path, text: str, mode: int, message: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_signing_key(a_file(tmp_path, text, mode))
    assert message in refused.value.message


def test_a_key_may_be_read_by_the_group_of_its_file(tmp_path: Path) -> None:
    assert read_signing_key(a_file(tmp_path, "k" * 32, 0o640)) == b"k" * 32
    with pytest.raises(InvalidInput, match="No such file"):
        read_signing_key(tmp_path / "missing")


def test_an_agent_that_is_not_root_runs_no_pods_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError) as refused:
        agents_account("batchq-worker")
    assert refused.value.message == (
        "--run-as owner: only an agent that is started as root can run pods under other accounts,"
        " and this one is started by user 1000"
    )


@pytest.mark.skipif(not privileges.holds(Capability.SETUID), reason="needs the rights of root")
def test_the_agents_account_exists_and_is_not_root() -> None:
    assert agents_account("batchq-worker").uid == 998
    for name in ("gone", "root"):
        with pytest.raises(UsageError, match=f"--agent-user {name}: "):
            agents_account(name)


AS_ROOT = pytest.mark.skipif(
    not privileges.holds(Capability.CHOWN), reason="needs the rights of root"
)


@AS_ROOT
def test_a_home_that_root_owns_again_is_given_to_the_agent_without_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("of root")
    home = Home(tmp_path / "home")
    home.hand_over(1, 1)
    assert home.root.stat().st_uid == 1
    # As a service manager leaves it that makes root the owner of everything at each start.
    os.chown(home.root, 0, 0)
    (home.run / "n1").mkdir(parents=True)
    (home.run / "n1" / "pod.json").write_text("{}")
    (home.run / "link").symlink_to(outside)
    home.logs.symlink_to(tmp_path)
    home.hand_over(1, 1)
    given = (home.root, home.run, home.run / "n1", home.run / "n1" / "pod.json", home.run / "link")
    assert {path.lstat().st_uid for path in given} == {1}
    assert (outside.stat().st_uid, tmp_path.stat().st_uid) == (0, 0)


@AS_ROOT
def test_a_folder_that_holds_other_files_is_given_to_no_one(tmp_path: Path) -> None:
    other = tmp_path / "etc"
    other.mkdir()
    with pytest.raises(InvalidInput, match="it holds other files, and would be given to user 1"):
        Home(tmp_path).hand_over(1, 1)
    assert other.stat().st_uid == 0


def test_a_home_is_opened_to_pods_that_know_the_names_of_their_files() -> None:
    # The folders of pytest are closed to other users.
    with tempfile.TemporaryDirectory(prefix="bq") as made:
        folder = Path(made)
        home = Home(folder / "home")
        with pytest.raises(InvalidInput, match=f"{folder} is closed to them"):
            home.open_to_pods()
        folder.chmod(0o755)
        home.open_to_pods()
        modes = [path.stat().st_mode & 0o777 for path in (home.root, home.run, home.logs)]
        assert modes == [0o711, 0o711, 0o700]


def test_pods_run_as_the_agents_account_unless_an_agent_is_told_otherwise() -> None:
    assert AgentSettings(node="n1", url="redis://x", home=Path("/x")).accounts is None
