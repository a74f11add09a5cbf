"""Tests of killing the descendants of a process: those that are reported dead are dead."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from batchq.worker.host.processes import read_kernel_file


def output_of(script: str) -> str:
    """Return the output of a separate process, which adopts orphans and has no other children."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        check=True,
        timeout=90,
    ).stdout


def test_processes_forked_as_the_time_runs_out_are_reported_as_left() -> None:
    """The last child forks while the others are collected, and has ended when its turn comes."""
    assert (
        output_of(
            """
            import os, time

            ended = [os.fork() or os._exit(0) for _ in range(1500)]
            if os.fork() == 0:
                while os.path.exists(f"/proc/{ended[0]}"):
                    pass
                if os.fork() == 0:
                    time.sleep(30)
                os._exit(0)

            from batchq.worker.host.processes import adopt_orphans, has_children, kill_children

            adopt_orphans()
            has_left = kill_children(keep=(), within_s=0.0) != []
            print(has_left == has_children(), kill_children(keep=(), within_s=60.0), has_children())
            """
        )
        == "True [] False\n"
    )


def test_a_sibling_process_that_a_function_has_made_ends_with_the_pod(tmp_path: Path) -> None:
    """With CLONE_PARENT it becomes a child of the standby interpreter, which is kept."""
    (tmp_path / "beside.py").write_text(
        textwrap.dedent(
            """
            import ctypes, os, signal, time

            def live():
                parent, libc = os.getppid(), ctypes.CDLL(None)
                clone = 56 if os.uname().machine == "x86_64" else 220
                if libc.syscall(clone, 0x8000 | signal.SIGCHLD, 0, 0, 0, 0) == 0:
                    time.sleep(30)
                    os._exit(0)
                return open(f"/proc/{parent}/task/{parent}/children").read()
            """
        )
    )
    assert (
        output_of(
            f"""
            import json, os, select
            from batchq.api.objects import PodTemplate
            from batchq.worker.host.containment import Enclosure
            from batchq.worker.host.node_resources import UNBOUNDED
            from batchq.worker.host.processes import adopt_orphans, has_children
            from batchq.worker.workhorse.process import CALLEE, Program
            from batchq.worker.workhorse.run_file import PodOutcome
            from batchq.worker.workhorse.standby import Standby

            adopt_orphans()
            standby = Standby(CALLEE, {{}})
            program = Program(PodTemplate(function="beside:live"))
            fork = standby.fork({{}}, {str(tmp_path)!r}, UNBOUNDED, (program.stdin, 1, 2))
            pidfd = os.pidfd_open(fork.pid)
            select.select([pidfd], [], [])
            outcome = PodOutcome(exit_code=os.waitstatus_to_exitcode(fork.reap()))
            children = json.loads(program.resolve(outcome)[1]).split()
            print(len(children), Enclosure().end_all(keep=fork.keep, within_s=30.0), has_children())
            print([pid for pid in children if os.path.exists("/proc/" + pid)])
            """
        )
        == "2 [] False\n[]\n"
    )


def test_collecting_a_child_that_a_debugger_holds_ends_in_time() -> None:
    """The trace of its own descendant is ended; that of an unrelated process is not."""
    said = output_of(
        """
        import os, signal, time
        from batchq.worker.host.processes import adopt_orphans, collect
        from tests.worker.escape_artist import trace

        def tracer(pid):
            read_end, write_end = os.pipe()
            made = os.fork()
            if made == 0:
                os.write(write_end, b"%d" % trace({pid}))
                signal.pause()
            return made, int(os.read(read_end, 1))

        def child():
            made = os.fork()
            if made == 0:
                signal.pause()
            return made

        adopt_orphans()
        own = child()
        debugger, has_seized = tracer(own)
        os.kill(own, signal.SIGKILL)
        print(has_seized, collect(own), collect(debugger), flush=True)
        if not has_seized:
            os._exit(0)

        read_end, write_end = os.pipe()
        parent = os.fork()
        if parent == 0:
            theirs = child()
            os.write(write_end, b"%d" % theirs)
            while b"TracerPid:\\t0" in open(f"/proc/{theirs}/status", "rb").read():
                pass
            os.kill(theirs, signal.SIGKILL)
            print(collect(theirs), flush=True)
            os._exit(0)
        debugger, _ = tracer(int(os.read(read_end, 10)))
        print(os.waitpid(parent, 0)[1])
        os.kill(debugger, signal.SIGKILL)
        """
    )
    if said.startswith("0"):
        pytest.skip("this machine lets no process trace another one of its user")
    assert said == "1 9 9\nNone\n0\n"


def test_a_kernel_file_that_the_kernel_gives_in_parts_is_read_whole() -> None:
    environment = {"FIRST": "1", "LONG": "x" * 50_000, "LAST": "2"}
    script = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        # Its environment is there once it runs, which is later than the return of Popen.
        assert process.stdout is not None
        process.stdout.readline()
        shown = read_kernel_file(f"/proc/{process.pid}/environ")
    assert shown.split(b"\0") == [b"FIRST=1", b"LONG=" + b"x" * 50_000, b"LAST=2", b""]
