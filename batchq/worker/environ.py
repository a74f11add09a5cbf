"""A pod's environment: the agent's without its secrets, the template's, and who the pod is.

A pod learns why it is being stopped from the file named in BATCHQ_STOP_FILE: nobody can change
the environment of a process that runs already. The file does not exist while the pod may go on;
once it does, it holds one reason word (`Preempted`, `WalltimeExceeded` ...), and it is written
before SIGTERM is sent. The next attempt finds the same word in BATCHQ_STOP_REASON, which is empty
in a first one: by that a job knows whether to look for a checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from batchq.api.fences import count_of
from batchq.api.objects import Pod, PodGroup, Task

_OURS = ("BATCHQ_", "RQ_", "REDIS_", "VALKEY_")
_SECRET_WORDS = (
    *("PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "TOKEN", "CREDENTIAL"),
    *("PRIVATE_KEY", "ACCESS_KEY", "API_KEY", "APIKEY", "SSH_AUTH_SOCK"),
)
#: As in `postgres://me:secret@db/x`, whatever the variable is called.
_URL_WITH_A_PASSWORD = re.compile(r"://[^/\s:@]*:[^/\s@]+@")
_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


def base_environment(agents: Mapping[str, str], *, secrets: tuple[str, ...]) -> dict[str, str]:
    """The agent's own environment without what is no pod's business.

    Left out: everything of batchq, RQ and the server, names that sound like a secret, and any
    value that contains one of `secrets` (the server's URL, say), or a URL with a password.
    """
    return {
        name: value
        for name, value in agents.items()
        if not name.startswith(_OURS)
        and name != _VISIBLE_GPUS
        and not any(word in name.upper() for word in _SECRET_WORDS)
        and not name.upper().endswith("_PWD")
        and not _URL_WITH_A_PASSWORD.search(value)
        and not any(secret in value for secret in secrets if secret)
    }


def pod_environment(
    base: Mapping[str, str],
    pod: Pod,
    group: PodGroup,
    task: Task,
    *,
    gpus: str | None,
    stop_file: Path,
) -> dict[str, str]:
    """What the command is started with; nothing in a template can pass for `BATCHQ_*`."""
    environment = {**base, **task.template.env}
    if gpus is not None:
        environment[_VISIBLE_GPUS] = gpus
    environment |= {
        "BATCHQ_GROUP": group.metadata.name,
        "BATCHQ_NAMESPACE": group.metadata.namespace,
        "BATCHQ_POD": pod.metadata.name,
        "BATCHQ_POD_UID": pod.metadata.uid,
        "BATCHQ_TASK": task.name,
        "BATCHQ_INDEX": str(pod.spec.index),
        "BATCHQ_REPLICAS": str(task.replicas),
        "BATCHQ_ADMISSION": str(pod.status.admission),
        "BATCHQ_ATTEMPT": str(count_of(pod.status.attempt)),
        "BATCHQ_NODE": pod.status.node,
        "BATCHQ_QUEUE": group.spec.queue,
        "BATCHQ_STOP_FILE": str(stop_file),
        "BATCHQ_STOP_REASON": pod.status.last_reason,
    }
    return environment
