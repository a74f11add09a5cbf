"""What a tier hides of a group, and which names stand in for groups that a reader may not know."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from batchq.api.access import Tier, seen, without_names
from batchq.api.manifest import encode
from batchq.api.objects import (
    Condition,
    GroupClaim,
    Metadata,
    PodGroup,
    PodGroupSpec,
    PodGroupStatus,
    PodTemplate,
    Task,
)


def a_group(word: str) -> PodGroup:
    """Return a group that has `word` in every part that is no schedule fact."""
    template = PodTemplate(
        labels={word: word},
        annotations={word: word},
        command=(word, "--flag"),
        env={f"NAME_{word}": word},
        working_dir=f"/{word}",
        requests={"cpu": 1000},
        node_selector={word: word},
    )
    finished = Condition(type="Finished", status="True", reason="Failed", message=word)
    return PodGroup(
        metadata=Metadata(
            name="train", namespace="ml", labels={word: word}, annotations={word: word}, uid="u1"
        ),
        spec=PodGroupSpec(queue="gpu", tasks=(Task(name="main", replicas=2, template=template),)),
        status=PodGroupStatus(
            conditions=(finished,),
            claim=GroupClaim(phase="Claimed", holder=word, token=word, message=word),
            reported={word: "Running"},
            submitted_by="alice",
        ),
    )


def test_facts_are_the_same_whatever_the_group_runs() -> None:
    one, other = (encode(seen(a_group(word), Tier.FACTS)) for word in ("secret", "public"))
    assert one == other
    assert one["status"] == {
        "phase": "Pending",
        "conditions": [{"type": "Finished", "status": "True", "reason": "Failed"}],
        "claim": {"phase": "Claimed"},
        "submittedBy": "alice",
    }
    assert one["spec"] == {
        "queue": "gpu",
        "tasks": [{"name": "main", "replicas": 2, "template": {"requests": {"cpu": "1"}}}],
    }


def test_a_spec_has_the_names_of_variables_and_not_their_values() -> None:
    spec: Any = encode(seen(a_group("secret"), Tier.SPEC))["spec"]
    template = spec["tasks"][0]["template"]
    assert template["command"] == ["secret", "--flag"]
    assert template["env"] == {"NAME_secret": "<hidden>"}


def test_the_whole_lacks_only_the_digest_of_a_consumers_token() -> None:
    group = a_group("secret")
    claim = structs.replace(group.status.claim, token="")
    expected = structs.replace(group, status=structs.replace(group.status, claim=claim))
    assert seen(group, Tier.OUTPUT) == expected


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("waits for ml/train", "waits for ml/train"),
        ("waits for cv/train-1 (2 pods)", "waits for another group (2 pods)"),
        ("needs nvidia.com/gpu 4, free 2/8", "needs nvidia.com/gpu 4, free 2/8"),
        ("/data/cv/train", "/data/cv/train"),
    ],
)  # fmt: skip
def test_names_of_other_namespaces_do_not_appear(text: str, shown: str) -> None:
    document = {"message": text, "list": [text, 1, None]}
    assert without_names(document, lambda key: key.startswith("ml/")) == {
        "message": shown,
        "list": [shown, 1, None],
    }


def test_manifests_keep_what_their_authors_have_written() -> None:
    written = {
        "apiVersion": "batchq/v1",
        "kind": "PodGroup",
        "metadata": {"name": "train", "annotations": {"batchq/parent": "ml/first"}},
        "spec": {"tasks": [{"template": {"command": ["python", "data/train.py"]}}]},
    }
    status = {"message": "waits for cv/secret"}
    found = without_names({"items": [{**written, "status": status}]}, lambda key: False)
    assert found == {"items": [{**written, "status": {"message": "waits for another group"}}]}
