"""Manifests for the API's tests."""

from __future__ import annotations

from typing import Any


def manifest(name: str, *, cpu: str = "1", **spec: Any) -> dict[str, Any]:
    """Return a group of one pod with a command."""
    template = {
        "command": ["echo", f"words of {name}"],
        "env": {"KEY": f"secret of {name}"},
        "requests": {"cpu": cpu},
    }
    return {
        "apiVersion": "batchq/v1",
        "kind": "PodGroup",
        "metadata": {"name": name, "labels": {"team": f"team-of-{name}"}},
        "spec": {"tasks": [{"name": "main", "template": template}], **spec},
    }


def groups_of(namespace: str) -> str:
    """Return the path of a namespace's groups."""
    return f"/v1/namespaces/{namespace}/groups"
