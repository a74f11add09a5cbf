"""Mistakes, each with its exit code and message, in one table."""

from __future__ import annotations

from typing import NamedTuple

GROUP = """
apiVersion: batchq/v1
kind: PodGroup
metadata: {name: train}
spec:
  tasks:
    - name: w
      replicas: 2
      template:
        command: [python3, train.py]
        requests: {cpu: 1}
"""
#: A file whose first document is valid: it must not be applied either.
FINE = "apiVersion: batchq/v1\nkind: Queue\nmetadata: {name: fine}\n---\n"

BOMB = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


def group(old: str, new: str) -> str:
    """Return the valid manifest with one change, after an unchanged one."""
    assert old in GROUP
    return FINE + GROUP.replace(old, new)


def queue(name: str, spec: str) -> str:
    """Return a queue's manifest, whose spec is in its fourth line."""
    return f"apiVersion: batchq/v1\nkind: Queue\nmetadata: {{name: {name}}}\nspec: {spec}\n"


class Bad(NamedTuple):
    """`words` are the arguments of `batchq`; `{file}` is a file with `content`."""

    what: str
    code: int
    message: str
    words: tuple[str, ...]
    content: str | bytes = ""


APPLY = ("apply", "-f", "{file}")
SUBMIT = ("submit", "--name", "new")
CMD = ("--", "true")

TABLE = [
    # wrong files
    Bad(
        "an unknown field",
        1,
        (
            "{file}, line 12: PodGroup default/train: spec.tasks[0].replica: there is no "
            "such field; did you mean 'replicas'?"
        ),
        APPLY,
        group("replicas: 2", "replica: 2"),
    ),
    Bad(
        "more pods needed than there are",
        1,
        (
            "{file}, line 11: PodGroup default/train: spec.minMember: expected at most the 2"
            " replicas of all tasks, found 3"
        ),
        APPLY,
        group("spec:\n", "spec:\n  queue: default\n  minMember: 3\n"),
    ),
    Bad(
        "more pods needed than there are, at submit",
        1,
        "{file}, line 11: PodGroup default/train: spec.minMember: expected at most the 2",
        ("submit", "-f", "{file}"),
        group("spec:\n", "spec:\n  queue: default\n  minMember: 3\n"),
    ),
    Bad(
        "more pods needed than there are, in a plan",
        1,
        "{file}, line 11: PodGroup default/train: spec.minMember: expected at most the 2",
        ("plan", "-f", "{file}"),
        group("spec:\n", "spec:\n  queue: default\n  minMember: 3\n"),
    ),
    Bad(
        "a guarantee above the capability",
        1,
        "{file}, line 9: Queue q: spec.guarantee.cpu: expected at most its capability of 2, found",
        APPLY,
        FINE + queue("q", "{capability: {cpu: 2},\n guarantee: {cpu: 4}}"),
    ),
    Bad(
        "a queue that is its own parent",
        1,
        "{file}, line 8: Queue q: spec.parent: a queue cannot be its own parent",
        APPLY,
        FINE + queue("q", "{parent: q}"),
    ),
    Bad(
        "queues in a circle",
        12,
        "{file}, line 13: Queue p: spec.parent goes in a circle: p -> q -> p",
        APPLY,
        FINE + queue("q", "{parent: p}") + "---\n" + queue("p", "{parent: q}"),
    ),
    Bad(
        "a bad quantity",
        1,
        "expected a quantity such as 500m, 2 or 64Gi, found '4 cores'",
        APPLY,
        group("cpu: 1", "cpu: 4 cores"),
    ),
    Bad(
        "a negative quantity",
        1,
        "expected a quantity of zero or more, found '-1'",
        APPLY,
        group("cpu: 1", "cpu: -1"),
    ),
    Bad(
        "negative replicas",
        1,
        (
            "PodGroup default/train: spec.tasks[0].replicas: expected a number from 0 to "
            "1000000, found -2"
        ),
        APPLY,
        group("replicas: 2", "replicas: -2"),
    ),
    Bad(
        "zero replicas",
        1,
        (
            "PodGroup default/train: expected at least one task with at least one replica, "
            "found none"
        ),
        APPLY,
        group("replicas: 2", "replicas: 0"),
    ),
    Bad(
        "a bad duration",
        1,
        "spec.walltime: expected a duration such as 90s, 2h or 1d, found 'soon'",
        APPLY,
        group("spec:\n", "spec:\n  walltime: soon\n"),
    ),
    Bad(
        "more members than replicas",
        1,
        "spec.minMember: expected at most the 2 replicas of all tasks, found 3",
        APPLY,
        group("spec:\n", "spec:\n  minMember: 3\n"),
    ),
    Bad(
        "a name with upper case",
        1,
        "metadata.name: expected at most 63 lower-case letters",
        APPLY,
        group("name: train", "name: Train"),
    ),
    Bad(
        "a name of a megabyte",
        1,
        "(1048576 characters)",
        APPLY,
        group("name: train", f"name: {'x' * 2**20}"),
    ),
    Bad(
        "a number where text belongs",
        1,
        "spec.queue: expected text",
        APPLY,
        group("spec:\n", "spec:\n  queue: [a]\n"),
    ),
    Bad(
        "a namespace on a queue",
        1,
        "metadata.namespace: a Queue has no namespace; leave it out",
        APPLY,
        FINE.replace("{name: fine}", "{name: fine, namespace: x}"),
    ),
    Bad(
        "an unknown kind",
        1,
        "kind: expected one of Queue, ResourceQuota, Node",
        APPLY,
        group("kind: PodGroup", "kind: Podgroop"),
    ),
    Bad(
        "another apiVersion",
        1,
        "apiVersion: expected batchq/v1, found 'v1'",
        APPLY,
        group("apiVersion: batchq/v1\nkind: PodGroup", "apiVersion: v1\nkind: PodGroup"),
    ),
    Bad(
        "no command",
        1,
        "template.command: expected a command or a function for its pods to run, found none",
        APPLY,
        group("        command: [python3, train.py]\n", ""),
    ),
    Bad(
        "an unknown strategy",
        1,
        "spec.strategy.type: expected one of Backfill, BestEffortFIFO, StrictFIFO, found 'Easy'",
        APPLY,
        FINE + FINE.replace("fine}", "q}\nspec: {strategy: {type: Easy}}"),
    ),
    Bad(
        "a key that is given twice",
        1,
        ("{file}, line 13: the field 'replicas' is given twice in one mapping (first on line 12)"),
        APPLY,
        group("replicas: 2\n", "replicas: 2\n      replicas: 3\n"),
    ),
    Bad(
        "an object that is given twice",
        1,
        "Queue fine is given twice in one request",
        APPLY,
        FINE + FINE,
    ),
    Bad(
        "aliases that would fill the memory",
        1,
        "the aliases expand to more than 10000 values",
        APPLY,
        BOMB,
    ),
    Bad(
        "too deep a nesting",
        1,
        "expected at most 64 levels of nesting",
        APPLY,
        "[" * 500 + "]" * 500,
    ),
    Bad(
        "a tab",
        1,
        "the line is indented with a tab; YAML requires spaces",
        APPLY,
        FINE + "kind:\n\tPodGroup\n",
    ),
    Bad(
        "no YAML at all",
        1,
        "this is not YAML",
        APPLY,
        FINE + "kind: [PodGroup\n",
    ),
    Bad(
        "a list where a manifest belongs",
        1,
        "expected a mapping of fields, found a list of 2 items",
        APPLY,
        "[1, 2]",
    ),
    Bad(
        "an empty file",
        1,
        "{file}: expected at least one manifest, found nothing",
        APPLY,
        "",
    ),
    Bad(
        "a binary file",
        1,
        "{file}: expected text in UTF-8, found other bytes",
        APPLY,
        b"\x7fELF\x02\x01\x01\x00\xff\xfe",
    ),
    Bad(
        "a file that is too long",
        1,
        "{file}: expected at most 8 MiB, found more",
        APPLY,
        "#" * (8 * 2**20 + 1),
    ),
    Bad(
        "a missing file",
        1,
        "/nowhere.yaml: the file cannot be read: No such file or directory",
        ("apply", "-f", "/nowhere.yaml"),
    ),
    Bad(
        "a directory as a file",
        1,
        "/: the file cannot be read: Is a directory",
        ("submit", "-f", "/"),
    ),
    Bad(
        "a gate that is added later",
        8,
        (
            "PodGroup default/waiting: spec.schedulingGates: gate 'late' cannot be added "
            "after creation; gates can only be removed"
        ),
        APPLY,
        group("name: train", "name: waiting").replace(
            "spec:\n", "spec:\n  schedulingGates: [{name: late}]\n"
        ),
    ),
    Bad(
        "groups in a circle",
        12,
        "spec.dependsOn goes in a circle: train -> other -> train",
        APPLY,
        GROUP.replace("spec:\n", "spec:\n  dependsOn: [{name: other}]\n")
        + "---"
        + GROUP.replace("name: train", "name: other").replace(
            "spec:\n", "spec:\n  dependsOn: [{name: train}]\n"
        ),
    ),
    # unknown names
    Bad(
        "an unknown queue",
        6,
        "PodGroup default/train: spec.queue: there is no queue 'defualt'",
        APPLY,
        group("spec:\n", "spec:\n  queue: defualt\n"),
    ),
    Bad(
        "an unknown queue by option",
        6,
        "PodGroup default/new: spec.queue: there is no queue 'nowhere'",
        (*SUBMIT, "-q", "nowhere", *CMD),
    ),
    Bad(
        "an unknown priority class",
        6,
        "spec.priorityClassName: there is no priority class 'urgent'",
        (*SUBMIT, "--priority-class", "urgent", *CMD),
    ),
    Bad(
        "an unknown group to come after",
        6,
        "spec.dependsOn: there is no PodGroup default/nothing",
        (*SUBMIT, "--after", "nothing", *CMD),
    ),
    Bad(
        "a group that is not there",
        6,
        "PodGroup default/nothing does not exist",
        ("describe", "nothing"),
    ),
    Bad(
        "logs of a group that is not there",
        6,
        "PodGroup default/nothing does not exist",
        ("logs", "nothing"),
    ),
    Bad(
        "a gate that is not there",
        6,
        "PodGroup default/waiting has no scheduling gate 'x'",
        ("gates", "open", "waiting", "x"),
    ),
    Bad(
        "an invitation of a node that cannot exist",
        1,
        "node '../n1': expected at most 253 lower-case letters, digits, '-' and '.'",
        ("nodes", "invite", "n1", "../n1"),
    ),
    Bad(
        "a node that is not there",
        6,
        "Node n7 does not exist",
        ("nodes", "cordon", "n1", "n7"),
    ),
    # impossible in this state
    Bad(
        "a name that is taken",
        8,
        "PodGroup default/waiting exists already and is Pending",
        ("submit", "--name", "waiting", *CMD),
    ),
    Bad(
        "cancelling what has ended",
        8,
        "PodGroup default/ended is Completed already and cannot be cancelled",
        ("cancel", "ended"),
    ),
    Bad(
        "deleting what runs",
        8,
        "PodGroup default/running is Running, and only finished groups can be deleted",
        ("delete", "podgroup", "ended", "running"),
    ),
    Bad(
        "deleting a queue that is used",
        12,
        "Queue default always exists and cannot be deleted",
        ("delete", "queue", "default"),
    ),
    Bad(
        "deleting a pod",
        12,
        "batchq makes pods from the tasks of a PodGroup",
        ("delete", "pod", "running-w-0"),
    ),
    Bad(
        "editing what runs",
        8,
        (
            "spec.tasks can change only while the group is Pending and nothing is reserved "
            "for it; it is Running"
        ),
        APPLY,
        group("name: train", "name: running"),
    ),
    # the command line
    Bad(
        "an unknown kind of object",
        2,
        (
            "error: expected one of podgroup, pod, queue, node, resourcequota, priorityclass, "
            "admissioncheck, found 'quees'; did you mean queues?"
        ),
        ("get", "quees"),
    ),
    Bad(
        "an array that is no range",
        2,
        "array: expected a range such as 0-99, found '5'",
        (*SUBMIT, "--array", "5", *CMD),
    ),
    Bad(
        "an array that does not start at 0",
        2,
        "array: expected a range that starts at 0, found '5-9'",
        (*SUBMIT, "--array", "5-9", *CMD),
    ),
    Bad(
        "two nodes in one word",
        2,
        "--node: expected the name of one node, found 'vm-1,vm-2'",
        (*SUBMIT, "--node", "vm-1,vm-2", *CMD),
    ),
    Bad(
        "a topology that is neither required nor preferred",
        1,
        "topology, rack: expected required or preferred, found 'maybe'",
        (*SUBMIT, "--topology", "rack=maybe", *CMD),
    ),
    Bad(
        "a topology without a label",
        2,
        "--topology: the label is empty: expected LABEL or LABEL=preferred, found '='",
        (*SUBMIT, "--topology", "=", *CMD),
    ),
    Bad(
        "an array in reverse",
        2,
        "array: the range '9-0' is reversed: expected the smaller number first",
        (*SUBMIT, "--array", "9-0", *CMD),
    ),
    Bad(
        "an array with too many pods",
        2,
        "array: expected 1 to 1,000,000 pods, found 100,000,000,000",
        (*SUBMIT, "--array", "0-99999999999", *CMD),
    ),
    Bad(
        "a gang with too many pods",
        1,
        "spec.minMember: expected at most 50,000 pods that start together, found 1,000,000; for"
        " independent pods, state minMember: 1, or submit an --array",
        (*SUBMIT, "-N", "1000000", *CMD),
    ),
    Bad(
        "a command that is empty",
        2,
        "the command is empty: expected a program as its first word, found ''",
        (*SUBMIT, "--", ""),
    ),
    Bad(
        "an empty command for an external group",
        2,
        "the command is empty",
        (*SUBMIT, "--external", "--", ""),
    ),
    Bad(
        "an empty name for a new group",
        2,
        "--name is empty; is it a variable that is not set?",
        ("submit", "--name", "", *CMD),
    ),
    Bad(
        "a name of a variable with a space",
        2,
        "the name of a variable has no spaces, found 'A B=c'",
        (*SUBMIT, "--env", "A B=c", *CMD),
    ),
    Bad(
        "a field of the spec beside it",
        1,
        "line 4: PriorityClass urgent: value: there is no such field; did you mean 'spec.value'?",
        APPLY,
        "apiVersion: batchq/v1\nkind: PriorityClass\nmetadata: {name: urgent}\nvalue: 100\n",
    ),
    Bad(
        "less than one pod on a node",
        2,
        "invalid value for '--max-pods-per-node': expected a whole number (at least 1), found '0'",
        (*SUBMIT, "--max-pods-per-node", "0", *CMD),
    ),
    Bad(
        "an array and replicas",
        2,
        "an array sets the number of pods",
        (*SUBMIT, "--array", "0-9", "-N", "3", *CMD),
    ),
    Bad(
        "a variable without =",
        2,
        "expected NAME=VALUE, or NAME of a variable that is set here, found 'SEED'",
        (*SUBMIT, "--env", "SEED", *CMD),
    ),
    Bad(
        "a resource without =",
        2,
        "expected RESOURCE=QUANTITY, found 'licence'",
        (*SUBMIT, "--res", "licence", *CMD),
    ),
    Bad(
        "cpus that are no number",
        2,
        "expected a quantity such as 500m, 2 or 64Gi, found 'many'",
        (*SUBMIT, "--cpus", "many", *CMD),
    ),
    *(
        Bad(
            f"memory written as {written}",
            2,
            f"memory: expected a quantity such as 500m, 2 or 64Gi, found '{written}'; did you mean"
            f" {meant}?",
            (*SUBMIT, "--mem", written, *CMD),
        )
        for written, meant in (("8GB", "8Gi"), ("8g", "8Gi"), ("1.5 GiB", "1.5Gi"), ("9mb", "9Mi"))
    ),
    Bad(
        "a walltime that is no duration",
        2,
        "expected a duration such as 90s, 2h or 1d, found 'soon'",
        (*SUBMIT, "--walltime", "soon", *CMD),
    ),
    Bad(
        "zero replicas by option",
        2,
        "expected a whole number (at least 1), found '0'",
        (*SUBMIT, "-N", "0", *CMD),
    ),
    Bad(
        "more members than replicas by option",
        1,
        "spec.minMember: expected at most the 2 replicas of all tasks, found 3",
        (*SUBMIT, "-N", "2", "--min-member", "3", *CMD),
    ),
    Bad(
        "a dependency that says what no condition is",
        2,
        "after: expected NAME, ok:NAME, any:NAME or failed:NAME, found 'maybe:waiting'",
        (*SUBMIT, "--after", "maybe:waiting", *CMD),
    ),
    *(
        Bad(
            f"a new group called {name}",
            1,
            f"metadata.name: expected at most 63 lower-case letters, digits and '-', with a letter"
            f" or digit at both ends, found '{name}'",
            ("submit", f"--name={name}", *CMD),
        )
        for name in ("-x", "-", "--", "-a-b-", "x-")
    ),
    Bad(
        "a name that begins with a hyphen of a command to run here",
        1,
        "found '-x'",
        ("run", "--name=-x", *CMD),
    ),
    Bad(
        "an empty name",
        1,
        "name: expected at most",
        ("describe", ""),
    ),
    Bad(
        "nothing to submit",
        2,
        "expected a command after `--`, a file with -f or a --function, found none of them",
        ("submit",),
    ),
    Bad(
        "a file and a command",
        2,
        "expected a command after `--`, a file with -f or a --function, found more than one",
        ("submit", "-f", "x", *CMD),
    ),
    Bad(
        "an option that a file says itself",
        2,
        "--cpus applies to a command, not to a file",
        ("submit", "-f", "{file}", "--cpus", "2"),
        GROUP,
    ),
    Bad(
        "an option that does not exist",
        2,
        "there is no option '--al'; did you mean --all",
        ("jobs", "--al"),
    ),
    Bad(
        "an option that is like several others",
        2,
        "there is no option '--priority'; did you mean --ports, --priority-class, --progress?",
        (*SUBMIT, "--priority", "high", *CMD),
    ),
    Bad(
        "a command of nodes that does not exist",
        2,
        "error: there is no command 'foo'",
        ("nodes", "foo"),
    ),
    Bad(
        "replicas that are no number",
        2,
        "invalid value for '-N' / '--replicas': expected a whole number (at least 1), found 'x'",
        (*SUBMIT, "-N", "x", *CMD),
    ),
    Bad(
        "more agents than a machine may have",
        2,
        "invalid value for '--agents': expected a whole number (0 to 64), found '65'",
        ("up", "--agents", "65"),
    ),
    *(
        Bad(
            f"a speed of {speed}",
            2,
            f"invalid value for '--speed': expected a number (above 0), found '{speed}'",
            ("replay", "log.swf", "--speed", speed),
        )
        for speed in ("0", "fast", "nan", "inf")
    ),
    Bad(
        "a fraction above 1",
        2,
        "'--runtime-fraction': expected a number (above 0, at most 1), found '2'",
        ("simulate", "--from-live", "--runtime-fraction", "2"),
    ),
    Bad(
        "a form that does not exist",
        2,
        "'xml' is not one of",
        ("jobs", "-o", "xml"),
    ),
    Bad(
        "a phase that does not exist",
        2,
        "expected one of Pending, InQueue, Running",
        ("jobs", "--phase", "sleeping"),
    ),
    Bad(
        "a quota without a quantity",
        2,
        "expected RESOURCE=QUANTITY, found 'cpu'",
        ("quota", "set", "research", "cpu"),
    ),
    Bad(
        "a limit of one and a half groups",
        1,
        "spec.hard.podgroups: expected a whole number, found 1.5",
        ("quota", "set", "research", "podgroups=1.5"),
    ),
    Bad(
        "a limit that is set and removed",
        2,
        "cpu is given twice",
        ("quota", "set", "research", "cpu=1", "cpu=none"),
    ),
    Bad(
        "a timeout of a submission that does not wait",
        2,
        "--timeout limits how long `batchq submit` waits, and nothing is awaited",
        (*SUBMIT, "--timeout", "5s", *CMD),
    ),
    Bad(
        "a timeout of many groups that are not awaited",
        2,
        "--timeout limits how long `batchq submit` waits, and nothing is awaited",
        ("submit", "--from-file", "{file}", "--timeout", "5s"),
        '{"command": ["true"]}',
    ),
    Bad(
        "a token that no list has printed",
        2,
        "expected the token that a list with --limit has printed, found 'abc'",
        ("jobs", "--limit", "2", "--continue", "abc"),
    ),
    Bad(
        "an empty URL",
        2,
        "--redis-url is empty; is it a variable that is not set?",
        ("--redis-url", "", "cancel", "waiting"),
    ),
    Bad(
        "a command to start a group again",
        2,
        "there is no command 'requeue'; did you mean resubmit?",
        ("requeue", "ended"),
    ),
    Bad(
        "a quota for a bad namespace",
        2,
        "expected at most 63 lower-case letters",
        ("quota", "set", "Research", "cpu=1"),
    ),
    Bad(
        "a command that quotas do not have",
        2,
        "`batchq quota` has no command delete",
        ("quota", "delete", "research"),
    ),
]
