"""What a configuration gives up: promises that no plugin keeps, as it is off where it would.

That may be meant: a third party's plugin may keep the promise instead, or nobody need it. So it is
told, and nothing is refused.
"""

from __future__ import annotations

from batchq.config.expansion import Expansion

#: Plugin in the box, the point at which it keeps its promise, and what is so without it.
_PROMISES = (
    ("gates", "preEnqueue", "scheduling gates are kept and ignored"),
    ("dependencies", "preEnqueue", "groups do not wait for those in dependsOn"),
    (
        "quota",
        "admissible",
        "the quotas of namespaces still hold, but who can never fit into one waits like others",
    ),
    (
        "capacity",
        "admissible",
        (
            "limits of queues and the cluster still hold, but guarantees are not left to siblings,"
            " and who can never fit waits like others"
        ),
    ),
    ("checks", "permit", "groups start without an answer of their queue's admission checks"),
    ("gang", "groupReady", "groups run with fewer pods than minMember and minAvailable"),
    (
        "predicates",
        "predicate",
        "nodeSelectors, taints and cordons are ignored, and nodes that are full are tried",
    ),
)


def unkept(expansion: Expansion) -> list[str]:
    """A sentence for each plugin in the box that is not asked where it keeps a promise."""
    return [
        f"plugin {plugin} is off at {point}: {without}"
        for plugin, point, without in _PROMISES
        if all(entry.name != plugin for entry in expansion[point])
    ]
