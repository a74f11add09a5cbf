"""From what people type to the object that it names."""

from __future__ import annotations

from batchq.api.names import label_problem, subdomain_problem
from batchq.api.objects import DEFAULT, Pod
from batchq.changes.lookup import instead
from batchq.errors import InvalidInput, NotFound
from batchq.ports import Reader


def key_named(name: str, namespace: str = DEFAULT) -> str:
    """`NAME` or `NAMESPACE/NAME` as the key of a namespaced object.

    Raises InvalidInput for anything else.
    """
    space, slash, bare = name.rpartition("/")
    space = space if slash else namespace
    problem = label_problem(space)
    if problem:
        raise InvalidInput(f"namespace: {problem}")
    # A pod's name is longer than its group's.
    problem = subdomain_problem(bare)
    if problem:
        raise InvalidInput(f"name: {problem}")
    return f"{space}/{bare}"


def pod_named(reader: Reader, key: str) -> Pod:
    """The pod with this name or uid; of several admissions that of the latest.

    Raises NotFound, with the nearest name there is.
    """
    space, _, bare = key.partition("/")
    pods = [pod for pod in reader.list("Pod", namespace=space) if isinstance(pod, Pod)]
    named = [pod for pod in pods if bare in (pod.metadata.name, pod.metadata.uid)]
    if not named:
        there = [f"{space}/{pod.metadata.name}" for pod in pods]
        raise NotFound(f"Pod {space}/{bare[:80]} does not exist", hint=instead(key, there))
    return max(named, key=lambda pod: (pod.status.admission, pod.metadata.uid))
