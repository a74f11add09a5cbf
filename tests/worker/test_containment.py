"""Tests of the choice of a containment, and of its error messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchq.errors import UsageError
from batchq.worker.host.containment import Boundary, Containment, choose
from batchq.worker.host.node_resources import NOTHING_ENFORCED, Enforce, Enforcement


def chosen(wanted: Containment, tmp_path: Path, *, mounts: str = "", own: str = "") -> Boundary:
    (tmp_path / "mounts").write_text(mounts)
    (tmp_path / "own").write_text(own)
    return choose(
        wanted,
        enforcement=NOTHING_ENFORCED,
        run_dir=tmp_path,
        mounts=tmp_path / "mounts",
        own=tmp_path / "own",
    )


def test_a_demanded_containment_the_kernel_does_not_grant_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        chosen(Containment.CGROUP, tmp_path)
    assert refused.value.message == "--containment cgroup: no cgroup v2 file system is mounted"
    assert "--containment auto" in (refused.value.hint or "")


def test_a_cgroup_that_another_user_owns_is_not_used(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        chosen(
            Containment.CGROUP,
            tmp_path,
            mounts=f"cgroup2 {tmp_path}/none cgroup2 rw 0 0",
            own="0::/theirs",
        )
    assert refused.value.message == (
        f"--containment cgroup: {tmp_path}/none/theirs is not writable:"
        " it is not delegated to this user"
    )


def test_a_trial_reveals_a_folder_that_is_not_a_cgroup(tmp_path: Path) -> None:
    pretended = tmp_path / "pretended"
    pretended.mkdir()
    (pretended / "cgroup.procs").touch()
    with pytest.raises(UsageError) as refused:
        chosen(
            Containment.CGROUP,
            tmp_path,
            mounts=f"cgroup2 {pretended} cgroup2 rw 0 0",
            own="0::/",
        )
    assert "it has no cgroup.kill, which Linux has since 5.14" in refused.value.message
    assert [path.name for path in pretended.iterdir()] == ["cgroup.procs"]


def test_the_subreaper_works_on_every_machine(tmp_path: Path) -> None:
    assert chosen(Containment.SUBREAPER, tmp_path).kind == Containment.SUBREAPER


def test_cgroups_that_limit_memory_also_contain_pods(tmp_path: Path) -> None:
    enforcement = Enforcement(kind=Enforce.CGROUP, base=tmp_path, mark="m")
    found = choose(Containment.AUTO, enforcement=enforcement, run_dir=tmp_path)
    assert found == Boundary(kind=Containment.CGROUP)
