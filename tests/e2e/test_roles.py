"""Tests of a whole stack on a server with users, each process with the rights of its role only."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from msgspec import structs

from batchq.api.lifecycle import PodGroupPhase, PodPhase
from batchq.api.node_report import (
    Ended,
    Leaves,
    NodeReport,
    PodAttempt,
    PodOutcome,
    Runs,
    Serves,
    StartClaim,
    encode,
)
from batchq.api.objects import Metadata, Node, Pod, PodGroup, PodSpec, PodStatus
from batchq.store import keys
from batchq.store.node_channels import SUPERSEDED, UNREADABLE
from batchq.store.redis import RedisStore, open_store
from batchq.store.rq_link import RqLink
from batchq.worker.rq_delivery import enqueue, node_queue
from tests.e2e.guarded import GuardedStack
from tests.e2e.machine import kill, phase, pods_of, until
from tests.effort import sample
from tests.harness.guarded import ADMIN, CANARY

QUEUES = """
apiVersion: batchq/v1
kind: Queue
metadata: {name: research}
spec: {weight: 2}
---
apiVersion: batchq/v1
kind: PriorityClass
metadata: {name: urgent}
spec: {value: 100}
"""
SLEEPER = "while true; do sleep 0.2; done"


@pytest.fixture(scope="module")
def running() -> Iterator[GuardedStack]:
    with GuardedStack(programs=subprocess.Popen) as stack:
        yield stack


@pytest.fixture
def stack(running: GuardedStack) -> Iterator[GuardedStack]:
    """The stack; after the test, no user may have been refused anything that the test did not
    expect.
    """
    running.server.refusals()
    yield running
    assert running.server.refusals() == set()


def ended(stack: GuardedStack, *names: str) -> None:
    stack.batchq("submitter", "wait", *names, "--timeout", "60s")


def test_a_submitter_has_gangs_arrays_retries_and_functions_run(stack: GuardedStack) -> None:
    submit = ("submit", "--quiet")
    stack.batchq("submitter", *submit, "--name", "gang", "-N", "2", "--", "sh", "-c", "echo hello")
    stack.batchq("submitter", *submit, "--name", "array", "--array", "0-5", "--", "true")
    again = stack.machine.root / "again"
    fails_once = f"test -e {again} || {{ touch {again}; exit 3; }}"
    retried = ("--name", "retried", "--retries", "1", "--", "sh", "-c", fails_once)
    stack.batchq("submitter", *submit, *retried)
    function = ("--name", "root", "--function", "math:sqrt", "--args", "[4]")
    stack.batchq("submitter", *submit, *function)
    stack.batchq("submitter", *submit, "--name", "later", "--after", "gang", "--", "true")
    ended(stack, "gang", "array", "retried", "root", "later")
    assert stack.batchq("submitter", "logs", "gang").stdout.split() == ["hello", "hello"]
    assert stack.batchq("submitter", "result", "root").stdout == "2.0\n"
    with stack.client("readonly") as client:
        [pod] = pods_of(client, "retried")
        assert pod.status.failures == 1
    for name in ("gang", "array", "retried", "root", "later"):
        stack.batchq("submitter", "delete", "podgroup", name)


def test_a_submitter_suspends_opens_gates_and_cancels(stack: GuardedStack) -> None:
    stack.batchq("submitter", "submit", "--name", "held", "--gate", "data", "--", "true")
    stack.batchq("submitter", "suspend", "held")
    stack.batchq("submitter", "gates", "open", "held", "data")
    stack.batchq("submitter", "resume", "held")
    ended(stack, "held")
    stack.batchq("submitter", "submit", "--name", "endless", "--", "sh", "-c", SLEEPER)
    with stack.client("submitter") as client:
        until(lambda: phase(client, "endless") == "Running", what="it runs")
        stack.batchq("submitter", "cancel", "endless")
        until(lambda: pods_of(client, "endless")[0].status.phase == PodPhase.EVICTED)


def test_a_submitter_claims_external_groups_and_reports_their_end(stack: GuardedStack) -> None:
    with stack.client("submitter") as client:
        client.submit(external=True, name="outside")
        until(lambda: phase(client, "outside") == "InQueue", what="it is admitted")
        with client.external.claim("outside", holder="a-consumer", ttl="60s") as claim:
            claim.report("running")
            until(lambda: phase(client, "outside") == "Running", what="it runs")
            claim.report("succeeded")
        until(lambda: phase(client, "outside") == "Completed", what="it has ended")


def test_a_controller_keeps_its_check_active_and_answers(stack: GuardedStack) -> None:
    check = {"metadata": {"name": "approval"}, "spec": {"controllerName": "approval"}}
    asks = {"metadata": {"name": "asks"}, "spec": {"admissionChecks": ["approval"]}}
    with stack.client("operator") as operator:
        operator.apply(
            [
                {"apiVersion": "batchq/v1", "kind": "AdmissionCheck", **check},
                {"apiVersion": "batchq/v1", "kind": "Queue", **asks},
            ]
        )
    stack.batchq("submitter", "submit", "-q", "asks", "--name", "asked", "--", "true")
    with stack.client("controller") as controller, controller.checks.watch("approval") as watch:
        [request] = watch.poll(30)
        assert (request.kind, request.name) == ("asked", "asked")
        controller.checks.set(request, "True")
        stack.batchq("submitter", "wait", "asked", "--timeout", "60s")
    stack.batchq("operator", "delete", "podgroup", "asked")
    stack.batchq("operator", "delete", "queue", "asks")
    stack.batchq("controller", "delete", "admissioncheck", "approval")
    assert stack.server.refusals() == set()


def test_an_operator_changes_queues_quotas_classes_and_nodes(stack: GuardedStack) -> None:
    path = stack.machine.file("queues.yaml", QUEUES)
    stack.batchq("operator", "apply", "-f", str(path))
    stack.batchq("operator", "quota", "set", "default", "cpu=4")
    submitted = ("submit", "-q", "research", "--priority-class", "urgent", "--name", "urgent")
    stack.batchq("submitter", *submitted, "--wait", "--", "true")
    stack.batchq("operator", "nodes", "cordon", "n2")
    stack.batchq("operator", "nodes", "uncordon", "n2")
    stack.batchq("operator", "nodes", "drain", "n2", "--timeout", "30s")
    stack.batchq("operator", "nodes", "uncordon", "n2")
    stack.batchq("operator", "quota", "set", "default", "cpu=100")
    stack.batchq("operator", "delete", "podgroup", "urgent")
    stack.batchq("operator", "delete", "queue", "research")
    stack.batchq("operator", "delete", "priorityclass", "urgent")
    # Another test of this module may have ended an agent, which the doctor would report.
    report = json.loads(stack.batchq("operator", "doctor", "-o", "json", exits=None).stdout)
    [asked] = [one for one in report["findings"] if one["check"] == "permissions"]
    assert asked["found"] == (
        "user operator (by its name an operator) may read everything that is checked"
    )


def test_a_reader_sees_everything_and_changes_nothing(stack: GuardedStack) -> None:
    stack.batchq("submitter", "submit", "--name", "seen", "--wait", "--", "echo", "hello")
    for words in (
        *(["jobs"], ["describe", "seen"], ["nodes"], ["queues"], ["quota"], ["get", "pods"]),
        *(["gates", "list"], ["scheduler", "--status"], ["wait", "seen"]),
    ):
        stack.batchq("readonly", *words)
    assert stack.batchq("readonly", "logs", "seen").stdout == "hello\n"
    assert stack.server.refusals() == set()
    message = stack.batchq("readonly", "doctor", exits=None).stdout
    assert "user readonly (by its name a readonly) may not read: CONFIG GET;" in message
    assert stack.server.refusals() == {("readonly", "config|get")}
    for words in (["submit", "--", "true"], ["suspend", "seen"], ["cancel", "seen"]):
        assert stack.batchq("readonly", *words, exits=None).returncode != 0
    stack.server.refusals()
    with stack.client("readonly") as client:
        assert phase(client, "seen") == "Completed"
        assert [one.metadata.name for one in client.list("PodGroup")].count("seen") == 1


@pytest.mark.parametrize(
    ("user", "words", "what", "role"),
    [
        ("readonly", ["submit", "--", "true"], "PodGroups", "submitter"),
        ("worker-n1", ["submit", "--", "true"], "PodGroups", "submitter"),
        ("submitter", ["nodes", "cordon", "n1"], "Nodes", "operator"),
        ("submitter", ["quota", "set", "default", "cpu=9"], "ResourceQuotas", "operator"),
        ("submitter", ["apply", "-f", "queues.yaml"], "Queues and PriorityClasses", "operator"),
    ],
)
def test_the_error_of_a_missing_permission_names_the_role_that_has_it(
    stack: GuardedStack, user: str, words: list[str], what: str, role: str
) -> None:
    stack.machine.file("queues.yaml", QUEUES)
    done = stack.batchq(user, *words, exits=9)
    assert done.stderr == (
        f"error: the server at unix://***@{stack.server.socket} does not permit this user"
        f" to write {what}\nhint: use a user of the role {role}: see `batchq acl {role}`\n"
    )
    assert {name for name, _ in stack.server.refusals()} == {user}


@pytest.mark.parametrize(
    "words", [["worker", "--name", "n3", "--resources", "cpu=1"], ["scheduler"]], ids=" ".join
)
def test_a_daemon_with_the_wrong_credentials_logs_what_it_lacks(
    stack: GuardedStack, words: list[str]
) -> None:
    process = stack.machine.start(*words, url=stack.server.url_of("submitter"))
    message = "use a user of another role: a submitter submits"
    until(lambda: message in stack.machine.output_of(process), what=message)
    process.terminate()
    process.wait(timeout=90)
    assert {name for name, _ in stack.server.refusals()} == {"submitter"}
    with stack.client("readonly") as client:
        assert {node.metadata.name for node in client.nodes()} == {"n1", "n2"}


def test_work_survives_the_death_of_an_agent_and_of_the_leader(stack: GuardedStack) -> None:
    with stack.client("submitter") as client:
        # The gang runs until the file is gone, however slow the machine is.
        held = stack.machine.file("held", "")
        lasts = f"while [ -e {held} ]; do sleep 0.1; done"
        two = ("-N", "2", "--cpus", "2", "--retries", "2")
        stack.batchq("submitter", "submit", "--name", "long", *two, "--", "sh", "-c", lasts)
        until(lambda: phase(client, "long") == "Running", what="it runs")
        kill(stack.agents["n1"].pid)
        stack.agents["n1"].wait()
        leader = client.schedulers().leader
        assert leader is not None
        [leading] = [one for one in stack.schedulers if f":{one.pid}:" in leader.identity]
        kill(leading.pid)
        leading.wait()
        stack.start_agent("n1")
        stack.schedulers.remove(leading)
        stack.start_scheduler()
        held.unlink()
    ended(stack, "long")


@pytest.fixture
def elsewhere(stack: GuardedStack) -> Iterator[Pod]:
    """A pod that runs on n2, so that n1 must not report its end."""
    with stack.client("operator") as client:
        client.cordon("n1")
        client.submit(command=["sh", "-c", SLEEPER], name="elsewhere", cpus=1)
        until(lambda: phase(client, "elsewhere") == "Running", what="it runs")
        [pod] = pods_of(client, "elsewhere")
        assert pod.status.node == "n2"
        yield pod
        client.uncordon("n1")
        client.cancel("elsewhere")
        until(lambda: pods_of(client, "elsewhere")[0].status.phase == PodPhase.EVICTED)
        client.delete("PodGroup", "elsewhere")


def reports_about(pod: Pod) -> list[NodeReport]:
    """Return every kind of report about a pod and its attempts."""
    uid, attempt = pod.metadata.uid, pod.status.attempt
    success = PodOutcome(exit_code=0)
    return [
        *(StartClaim(pod=uid, attempt=number, author="x") for number in (attempt, attempt + 1)),
        *(Ended(pod=uid, attempt=number, outcome=success) for number in (attempt, attempt + 1)),
        *(
            Runs(pod=uid, attempt=number, author="x", started_at=1)
            for number in (attempt, attempt + 1)
        ),
    ]


def test_a_worker_cannot_report_on_a_pod_of_another_node(
    stack: GuardedStack, elsewhere: Pod
) -> None:
    store = open_store(stack.server.url_of("worker-n1"))
    before = store.counts().get(SUPERSEDED, 0)
    ledger = store.ledger()
    reports = reports_about(elsewhere)
    for number, report in enumerate(reports, start=1):
        store.report_queues.post("n1", report)
        until(lambda: not store.report_queues.pending("n1"), what="it is applied")
        until(lambda: store.counts().get(SUPERSEDED, 0) == before + number, what="it is counted")  # noqa: B023
    assert store.get("Pod", elsewhere.metadata.uid) == elsewhere
    assert store.ledger() == ledger
    store.close()


def is_ready(store: RedisStore, name: str) -> bool:
    node = store.get("Node", name)
    return isinstance(node, Node) and node.status.ready


def test_a_worker_cannot_report_on_another_node(stack: GuardedStack) -> None:
    """A node's report queue has no field for another node: each report is about its own node."""
    store = open_store(stack.server.url_of("worker-n1"))
    other = store.get("Node", "n2")
    assert isinstance(other, Node)
    before = store.counts().get(UNREADABLE, 0)
    of_n2 = Serves(agent=other.metadata.annotations["batchq/agent"], resources={"cpu": 1})
    # The agent of n2 does not serve n1, so it cannot withdraw n1.
    store.report_queues.post("n1", Leaves(agent=of_n2.agent))
    until(lambda: not store.report_queues.pending("n1"), what="it is applied")
    assert is_ready(store, "n1")
    store.link.ask(lambda client: client.hset(keys.report_queue("n1"), "n2", encode(of_n2)))
    until(lambda: store.counts().get(UNREADABLE, 0) == before + 1, what="it is counted")
    assert is_ready(store, "n2")
    # Its own node takes no pods for a while, because its report was unreadable.
    until(lambda: not is_ready(store, "n1"), what="n1 is out of service")
    until(lambda: is_ready(store, "n1"), what="n1 is back")
    now = store.get("Node", "n2")
    assert isinstance(now, Node)
    assert now.spec == other.spec
    store.close()


def test_an_attempt_a_worker_puts_into_its_own_queue_runs_where_it_is_bound(
    stack: GuardedStack, elsewhere: Pod
) -> None:
    link = RqLink(stack.server.url_of("worker-n1"))
    uid, attempt = elsewhere.metadata.uid, elsewhere.status.attempt
    queue = node_queue("n1", link)
    enqueue(queue, [PodAttempt(uid, attempt), PodAttempt(uid, attempt + 1)])
    until(lambda: not queue.get_job_ids(), what="it is taken")
    with stack.client("readonly") as client:
        assert pods_of(client, "elsewhere") == [elsewhere]
    started = [one for one in psutil.process_iter() if _serves(one, uid)]
    assert len(started) == 1
    link.close()


def _serves(process: psutil.Process, pod: str) -> bool:
    """Return whether the process is the first one of a pod."""
    try:
        environ = process.environ()
        return environ.get("BATCHQ_POD_UID") == pod and process.pid == _group_of(process.pid)
    except psutil.Error:
        return False


def _group_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[2])


@pytest.fixture
def revealing(stack: GuardedStack) -> Iterator[Pod]:
    """A pod that prints its environment and keeps running."""
    with stack.client("submitter") as client:
        client.submit(command=["sh", "-c", f"env; cat /proc/$PPID/cmdline; {SLEEPER}"], name="env")
        until(lambda: phase(client, "env") == "Running", what="it runs")
        [pod] = pods_of(client, "env")
        until(lambda: any("BATCHQ_POD" in line.text for line in client.logs("env")), what="env")
        yield pod
        client.cancel("env")
        until(lambda: pods_of(client, "env")[0].status.phase == PodPhase.EVICTED)
        client.delete("PodGroup", "env")


def test_no_password_is_in_a_command_line_or_the_environment_of_a_pod(
    stack: GuardedStack, revealing: Pod
) -> None:
    ours, pods = [], []
    for process in psutil.process_iter():
        try:
            environ, words = process.environ(), " ".join(process.cmdline())
        except psutil.Error:
            continue
        assert CANARY not in words
        if "BATCHQ_POD_UID" in environ:
            pods.append(process.pid)
            assert CANARY not in str(environ)
        elif CANARY in str(environ):
            # The URL must be here; only the user of the process can read it.
            ours.append(process.pid)
    started = {one.pid for one in (*stack.schedulers, *stack.agents.values())}
    # The parent of the pod's process is a work-horse of the agent.
    assert started < set(ours)
    assert len(pods) >= 1


def test_a_pod_can_read_the_credentials_of_its_agent(stack: GuardedStack) -> None:
    """Processes of one user are not separated: docs/security.md says what to do."""
    reads = "tr '\\0' '\\n' < /proc/$PPID/environ | grep -c '^BATCHQ_REDIS_URL='"
    with stack.client("submitter") as client:
        client.submit(command=["sh", "-c", reads], name="curious")
        client.wait(["curious"], timeout_s=90)
        assert [line.text for line in client.logs("curious")] == ["1"]


def _once_refused(stack: GuardedStack, namespace: str, name: str) -> PodGroup:
    """Return a group after the scheduler has stored why it waits, and writes it no more."""
    with stack.client("readonly") as client:

        def found() -> PodGroup:
            group = client.get("PodGroup", name, namespace=namespace)
            assert isinstance(group, PodGroup)
            return group

        until(lambda: bool(found().status.reasons), what="the reason is stored")
        return found()


def test_a_submitter_could_bind_its_own_pod_beyond_its_quota(stack: GuardedStack) -> None:
    """The agent of the node starts the pod, as one that RQ has lost."""
    stack.batchq("operator", "quota", "set", "small", "cpu=1")
    submit = ("submit", "-n", "small", "--name", "large", "--cpus", "2")
    stack.batchq("submitter", *submit, "--", "echo", "started")
    waiting = _once_refused(stack, "small", "large")
    uid = waiting.metadata.uid
    status = structs.replace(waiting.status, phase=PodGroupPhase.IN_QUEUE, admission=1)
    bound = Pod(
        metadata=Metadata(name="large-main-0", namespace="small", uid=f"{uid}-1-0", revision=1),
        spec=PodSpec(pod_group="large", task="main", requests={"cpu": 2000}),
        status=PodStatus(
            phase=PodPhase.BOUND, group_uid=uid, admission=1, attempt=9 * 10**15, node="n1"
        ),
    )
    with stack.server.as_user("submitter") as raw:
        raw.hset(keys.objects("Pod"), f"{uid}-1-0", msgspec.json.encode(bound))
        forged = msgspec.json.encode(structs.replace(waiting, status=status))
        raw.hset(keys.objects("PodGroup"), "small/large", forged)
    stack.batchq("submitter", "wait", "-n", "small", "large", "--timeout", "60s")
    assert stack.batchq("readonly", "logs", "-n", "small", "large").stdout == "started\n"


def test_pods_forged_as_running_hold_their_nodes_for_some_seconds(stack: GuardedStack) -> None:
    """The agent of a node reports pods as lost that it does not run."""
    stack.batchq("operator", "quota", "set", "forge", "cpu=1")
    submit = ("submit", "-n", "forge", "--name", "forged", "--cpus", "2")
    stack.batchq("submitter", *submit, "--", "true")
    waiting = _once_refused(stack, "forge", "forged")
    uid = waiting.metadata.uid
    with stack.server.as_user("submitter") as raw:
        for place, node in enumerate(stack.agents):
            forged = Pod(
                metadata=Metadata(
                    name=f"forged-main-{place}", namespace="forge", uid=f"{uid}-1-{place}"
                ),
                spec=PodSpec(
                    pod_group="forged", task="main", index=place, requests={"cpu": 2000},
                    termination_grace=10**12,
                ),
                status=PodStatus(
                    phase=PodPhase.RUNNING, group_uid=uid, admission=1, attempt=9 * 10**15,
                    node=node, bound_at=10**13, started_at=10**13,
                ),
            )  # fmt: skip
            raw.hset(keys.objects("Pod"), forged.metadata.uid, msgspec.json.encode(forged))
        status = structs.replace(waiting.status, phase=PodGroupPhase.RUNNING, admission=1)
        group = msgspec.json.encode(structs.replace(waiting, status=status))
        raw.hset(keys.objects("PodGroup"), "forge/forged", group)
    until(
        lambda: "forged" in stack.batchq("readonly", "describe", "node", "n1").stdout, what="seen"
    )
    # A look of the agent is due after ten seconds at most.
    stack.batchq(
        "submitter", "submit", "-n", "other", "--name", "after", "--cpus", "2", "--", "true"
    )
    stack.batchq("submitter", "wait", "-n", "other", "after", "--timeout", "15s")
    stack.batchq("submitter", "cancel", "forged", "-n", "forge")


def test_no_password_is_in_any_file(stack: GuardedStack, revealing: Pod) -> None:
    """Logs, run files and output of pods, and the server's own files."""
    read = [
        (path, path.read_bytes())
        for folder in (stack.machine.root, stack.server.folder)
        for path in folder.rglob("*")
        if path.is_file()
    ]
    assert [str(path) for path, text in read if CANARY.encode() in text] == []
    names = {path.name for path, _ in read}
    stem = f"{revealing.metadata.uid}-{revealing.status.attempt}"
    assert {f"{stem}.log", f"{stem}.json", "users.acl"} <= names
    assert any(b"agent started" in text for _, text in read)
    assert any(b"BATCHQ_POD_UID" in text for _, text in read)


def test_no_password_is_in_the_server(stack: GuardedStack, revealing: Pod) -> None:
    with stack.server.as_user(ADMIN) as admin:
        read = {name: admin.dump(name) for name in admin.scan_iter(count=1000)}
    assert any(b"alive" in name for name in read)
    assert [name for name, value in read.items() if CANARY.encode() in name + value] == []


@pytest.mark.parametrize(
    "words",
    sample(
        [
            *(["jobs", "-o", "json"], ["queues", "-o", "json"], ["nodes", "-o", "json"]),
            *(["get", "nodes", "-o", "yaml"], ["get", "pods", "-o", "json"]),
            *(["get", "podgroups", "-o", "yaml"], ["describe", "env"], ["describe", "node", "n1"]),
            *(["doctor", "-o", "json"], ["doctor"], ["scheduler", "--status", "-o", "json"]),
            *(["logs", "env"], ["apply", "-f", "no-such-file"], ["get", "nonsense", "-o", "json"]),
        ],
        5,
    ),
    ids=" ".join,
)
def test_no_password_is_in_the_output_of_a_command(
    stack: GuardedStack, revealing: Pod, words: list[str]
) -> None:
    done = stack.batchq("operator", *words, exits=None)
    assert done.stdout or done.stderr
    assert CANARY not in done.stdout + done.stderr


def test_a_wrong_password_is_not_printed(stack: GuardedStack) -> None:
    url = stack.server.url_of("operator").replace("operator", "nobody", 1)
    done = stack.machine.batchq("jobs", exits=9, url=url)
    assert done.stderr == (
        f"error: the server at unix://***@{stack.server.socket} refuses the user name or"
        " password\nhint: check the credentials in the URL\n"
    )
    assert stack.server.refusals() == {("nobody", "HELLO")}
