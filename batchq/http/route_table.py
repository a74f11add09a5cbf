"""Every route of the API: its right, its parameters, its endpoint.

A route that is not in this table does not exist. A row without a verb is for every known caller
(`/v1/me`), or, if it is open, for unknown ones, too (`/livez`).

The description of the API as OpenAPI 3.1 is made from the table.
"""

from __future__ import annotations

from functools import cache
from inspect import cleandoc
from typing import Any

import msgspec

from batchq import __version__
from batchq.api.access import TargetKind, Tier, Verb
from batchq.http.access_endpoints import (
    MOST_AUDITED,
    USUALLY_AUDITED,
    BindingRequest,
    InvitationRequest,
    LoginRequest,
    MembersRequest,
    NodeInvitation,
    NodePassword,
    NodesInvitation,
    RotationRequest,
    TokenRequest,
    UserGroupRequest,
    change_user_group,
    create_account_token,
    create_token,
    create_user_group,
    delete_account,
    delete_user_group,
    explain_right,
    grant,
    invite_node,
    invite_nodes,
    invite_user,
    join_node,
    list_accounts,
    list_bindings,
    list_tokens,
    list_user_groups,
    log_in,
    read_audit,
    redeem_invitation,
    revoke_node,
    revoke_token,
    rotate_named_token,
    rotate_token,
    show_login,
    show_me,
    withdraw,
)
from batchq.http.calls import NDJSON, ApiAnswer, ApiCall, ApiRoute, QueryParameter
from batchq.http.change_feed import WATCHED_KINDS
from batchq.http.group_endpoints import (
    MOST_LINES,
    MOST_LISTED,
    USUALLY_LISTED,
    CommandRequest,
    FrameRequest,
    cancel_group,
    get_group,
    group_logs,
    list_groups,
    read_command,
    run_command,
    submit_group,
    submit_groups,
    why_group,
    write_command,
)
from batchq.http.object_endpoints import (
    MOST_REQUEST_BYTES,
    ChangeRequest,
    change_objects,
    cordon_node,
    get_object,
    list_objects,
    put_object,
    resume_group,
    suspend_group,
    uncordon_node,
)
from batchq.http.problems import PROBLEM_JSON, ProblemDocument
from batchq.http.view_endpoints import (
    LONGEST_AGE_MS,
    LONGEST_WAIT_S,
    MOST_EVENTS,
    GateRequest,
    PlanRequest,
    await_change,
    group_outcome,
    group_results,
    list_events,
    open_gates,
    show_live,
    show_metrics,
    show_ready,
    view_checks,
    view_explanation,
    view_gates,
    view_groups,
    view_jobs,
    view_plan,
    view_queue,
    view_queues,
    view_status,
)


def _openapi(call: ApiCall) -> ApiAnswer:
    return ApiAnswer(document=openapi_document())


_OWNER = QueryParameter(
    name="owner", about="The user who submitted the group; `me` for the caller."
)
_FILTERS = (
    QueryParameter(name="phase", about="Phases, separated by commas."),
    QueryParameter(name="queue", about="The name of a queue."),
    _OWNER,
    QueryParameter(name="reason", about="A reason why the group waits."),
    QueryParameter(name="label", about="Labels: `KEY=VALUE`, several separated by commas."),
    QueryParameter(name="q", about="A part of the group's name."),
    QueryParameter(
        name="limit",
        about=f"The most groups in the answer, {USUALLY_LISTED} by default.",
        type="integer",
        most=MOST_LISTED,
    ),
    QueryParameter(name="continue", about="The token of the page before."),
    QueryParameter(
        name="watch", about="Follow changes, as Server-Sent Events or NDJSON.", type="boolean"
    ),
    QueryParameter(
        name="since",
        about="With `watch`: only changes after this revision, without those that exist.",
        type="integer",
        most=2**53,
    ),
)

_GROUP = "/v1/namespaces/{namespace}/groups/{name}"
_LIMIT, _CONTINUE = _FILTERS[6:8]
_SESSION_NODE = QueryParameter(name="node", about="The node that the answer to the start names.")
_UID = QueryParameter(name="uid", about="Only the group of this uid, not a later one of its name.")


def _of_kind(
    kind: str, path: str, target: TargetKind, *, namespaced: bool = False, tier: Tier = Tier.FACTS
) -> tuple[ApiRoute, ...]:
    """Return the routes that list the objects of a kind, and return one of them."""
    one = f"/v1/namespaces/{{namespace}}/{path}" if namespaced else f"/v1/{path}"
    namespace = (QueryParameter(name="namespace", about="A namespace."),) if namespaced else ()
    plural = path[:1].upper() + path[1:]
    # Groups are listed by an endpoint of their own.
    watching = _FILTERS[-2:] if kind in WATCHED_KINDS else ()
    listed = [(f"/v1/{path}", f"list{plural}", namespace)]
    if namespaced:
        listed.append((one, f"list{plural}OfNamespace", ()))
    return (
        *(
            ApiRoute(
                method="GET", path=place, name=name, endpoint=list_objects(kind),
                verb=Verb.READ, kind=target, tier=tier, about=f"List {path} by name, in pages.",
                parameters=(*parameters, _LIMIT, _CONTINUE, *watching), answer="ObjectList",
            )
            for place, name, parameters in listed
        ),
        ApiRoute(
            method="GET", path=f"{one}/{{name}}", name=f"get{kind}", endpoint=get_object(kind),
            verb=Verb.READ, kind=target, tier=tier, about=f"Return a {kind}.", answer="Object",
        ),
    )  # fmt: skip


def _put(kind: str, path: str, target: TargetKind) -> ApiRoute:
    return ApiRoute(
        method="PUT", path=f"{path}/{{name}}", name=f"put{kind}", endpoint=put_object(kind),
        verb=Verb.UPDATE, kind=target, body="Object", answer="Object",
        about=f"Create a {kind}, or replace the one whose ETag is sent as If-Match.",
    )  # fmt: skip


ROUTES: tuple[ApiRoute, ...] = (
    ApiRoute(
        method="GET", path="/livez", name="livez", is_open=True,
        endpoint=show_live,
        about="Whether the API runs.",
    ),
    ApiRoute(
        method="GET", path="/readyz", name="readyz", is_open=True, endpoint=show_ready,
        about="Whether the API reaches the server.",
    ),
    ApiRoute(
        method="GET", path="/v1/openapi.json", name="openapi", is_open=True,
        endpoint=_openapi,
        about="This document.",
    ),
    ApiRoute(
        method="GET", path="/v1/me", name="me", endpoint=show_me,
        about="Who the caller is, and which roles it has.",
    ),
    ApiRoute(
        method="GET", path="/v1/groups", name="listGroups", endpoint=list_groups,
        about="List pod groups by name, in pages; or follow their changes.",
        verb=Verb.READ,
        parameters=(QueryParameter(name="namespace", about="A namespace."), *_FILTERS),
        answer="PodGroupList",
    ),
    ApiRoute(
        method="GET", path="/v1/namespaces/{namespace}/groups", name="listGroupsOfNamespace",
        endpoint=list_groups, about="The same for one namespace.", verb=Verb.READ,
        parameters=_FILTERS, answer="PodGroupList",
    ),
    ApiRoute(
        method="POST", path="/v1/namespaces/{namespace}/groups", name="submitGroup",
        endpoint=submit_group, about="Submit a pod group. Repeating it changes nothing.",
        verb=Verb.CREATE, body="PodGroup", answer="PodGroup",
        parameters=(
            QueryParameter(name="dryRun", about="Check everything, write nothing.", type="boolean"),
        ),
    ),
    ApiRoute(
        method="POST", path="/v1/namespaces/{namespace}/groups/bulk", name="submitGroups",
        endpoint=submit_groups, about="Submit many pod groups, one in each line. Repeatable.",
        verb=Verb.CREATE, body="PodGroup", answer="View", takes=NDJSON,
        most_body_bytes=MOST_REQUEST_BYTES,
        parameters=(
            QueryParameter(
                name="existing",
                about="`keep` (the default) accepts an equal group that exists, `refuse` does not.",
            ),
            QueryParameter(name="dryRun", about="Check everything, write nothing.", type="boolean"),
        ),
    ),
    ApiRoute(
        method="GET", path=_GROUP, name="getGroup", endpoint=get_group, verb=Verb.READ,
        about="Return a pod group, as much of it as the caller may see.", answer="PodGroup",
    ),
    ApiRoute(
        method="POST", path=f"{_GROUP}/cancel", name="cancelGroup", endpoint=cancel_group,
        verb=Verb.CANCEL, about="End a pod group.", body="Reason", answer="PodGroup",
        parameters=(_UID,),
    ),
    ApiRoute(
        method="GET", path=f"{_GROUP}/why", name="explainGroup", endpoint=why_group,
        verb=Verb.READ, tier=Tier.SPEC, is_explanation=True, answer="Explanation",
        about="Explain why a pod group waits, as `batchq why -o json` does.",
    ),
    ApiRoute(
        method="GET", path=f"{_GROUP}/logs", name="readLogs", endpoint=group_logs,
        verb=Verb.READ, tier=Tier.OUTPUT, answer="Lines",
        about="Return the output of a group's pods as text, NDJSON or Server-Sent Events.",
        parameters=(
            QueryParameter(name="pod", about="One pod, by its name or by TASK-INDEX."),
            QueryParameter(name="stream", about="`stdout` or `stderr`; both by default."),
            QueryParameter(
                name="tail", about="Only the last lines of each pod.", type="integer",
                most=MOST_LINES,
            ),
            QueryParameter(name="follow", about="Go on until the group has ended.", type="boolean"),
            QueryParameter(
                name="attempt",
                about="An earlier attempt of each pod, from 1, or `all` of all admissions; without"
                " `follow`.",
            ),
        ),
    ),
    ApiRoute(
        method="POST", path=f"{_GROUP}/suspend", name="suspendGroup", endpoint=suspend_group,
        verb=Verb.UPDATE, about="Suspend a pod group: its pods are stopped, and it waits.",
        answer="Changed",
        parameters=(_UID,),
    ),
    ApiRoute(
        method="POST", path=f"{_GROUP}/resume", name="resumeGroup", endpoint=resume_group,
        verb=Verb.UPDATE, about="Return a suspended pod group to the queue.", answer="Changed",
        parameters=(_UID,),
    ),
    ApiRoute(
        method="GET", path=f"{_GROUP}/results", name="readResults", endpoint=group_results,
        verb=Verb.READ, tier=Tier.OUTPUT, answer="View",
        about="Return what the function of each pod has returned, as text in JSON, by pod.",
        parameters=(
            QueryParameter(
                name="partial", type="boolean",
                about="The results that exist, even if the group has failed.",
            ),
        ),
    ),
    ApiRoute(
        method="POST", path=f"{_GROUP}/gates", name="openGates", endpoint=open_gates,
        verb=Verb.UPDATE, body=GateRequest, answer="Changed",
        about="Open a scheduling gate of a pod group, or all of them.",
    ),
    ApiRoute(
        method="GET", path=f"{_GROUP}/outcome", name="groupOutcome", endpoint=group_outcome,
        verb=Verb.READ, about="Return how far a pod group is from a goal.", answer="View",
        parameters=(
            QueryParameter(
                name="for", about="`finished`, `succeeded`, `running` or `admitted`."
            ),
        ),
    ),
    ApiRoute(
        method="POST", path=f"{_GROUP}/commands", name="runCommand", endpoint=run_command,
        verb=Verb.EXEC, body=CommandRequest, answer="View",
        about="Run a command in a running pod of a group, beside the pod's own.",
    ),
    ApiRoute(
        method="GET", path=f"{_GROUP}/commands/{{session}}", name="readCommand",
        endpoint=read_command, verb=Verb.EXEC, answer="Frames",
        about="Return what a command in a pod writes, and its end, as frames in NDJSON.",
        parameters=(
            _SESSION_NODE,
            QueryParameter(
                name="after", about="The number of the last frame that was received.",
                type="integer", most=2**53,
            ),
        ),
    ),
    ApiRoute(
        method="POST", path=f"{_GROUP}/commands/{{session}}", name="writeCommand",
        endpoint=write_command, verb=Verb.EXEC, body=FrameRequest, answer="View",
        about="Send input, signals and acknowledgements to a command in a pod.",
        parameters=(_SESSION_NODE,),
    ),
    ApiRoute(
        method="GET", path="/v1/changes", name="awaitChange", endpoint=await_change,
        verb=Verb.READ, about="Wait until one of some pod groups has changed.", answer="View",
        parameters=(
            QueryParameter(
                name="groups", about="`NAMESPACE/NAME`, several separated by commas."
            ),
            QueryParameter(
                name="since", about="The revision of the last answer.", type="integer", most=2**53
            ),
            QueryParameter(
                name="timeout", about="The longest wait in seconds.", type="integer",
                most=LONGEST_WAIT_S,
            ),
        ),
    ),
    ApiRoute(
        method="GET", path="/v1/events", name="listEvents", endpoint=list_events,
        verb=Verb.READ, tier=Tier.SPEC, answer="View",
        about="Return the latest events of what the caller may read, oldest first.",
        parameters=(
            QueryParameter(name="kind", about="The kind of the object."),
            QueryParameter(name="key", about="The key of the object within its kind."),
            QueryParameter(name="namespace", about="A namespace."),
            QueryParameter(name="reason", about="The reason of the event."),
            QueryParameter(
                name="since", about="Milliseconds since the epoch.", type="integer", most=2**53
            ),
            QueryParameter(
                name="limit", about="The most events.", type="integer", most=MOST_EVENTS
            ),
        ),
    ),
    ApiRoute(
        method="POST", path="/v1/requests", name="changeObjects", endpoint=change_objects,
        verb=Verb.UPDATE, body=ChangeRequest, answer="View", most_body_bytes=MOST_REQUEST_BYTES,
        about="Submit, apply or delete several objects: all of them, or none.",
    ),
    *_of_kind("Queue", "queues", TargetKind.QUEUES),
    *_of_kind("PriorityClass", "priorityclasses", TargetKind.QUEUES),
    *_of_kind("AdmissionCheck", "admissionchecks", TargetKind.QUEUES),
    *_of_kind("Node", "nodes", TargetKind.NODES),
    *_of_kind("ResourceQuota", "quotas", TargetKind.QUOTAS, namespaced=True),
    *_of_kind("Pod", "pods", TargetKind.GROUPS, namespaced=True),
    _put("Queue", "/v1/queues", TargetKind.QUEUES),
    _put("PriorityClass", "/v1/priorityclasses", TargetKind.QUEUES),
    _put("ResourceQuota", "/v1/namespaces/{namespace}/quotas", TargetKind.QUOTAS),
    ApiRoute(
        method="POST", path="/v1/nodes/{name}/cordon", name="cordonNode", endpoint=cordon_node,
        verb=Verb.UPDATE, kind=TargetKind.NODES, body="Reason", answer="Changed",
        about="Stop placing pods on a node.",
    ),
    ApiRoute(
        method="POST", path="/v1/nodes/{name}/uncordon", name="uncordonNode",
        endpoint=uncordon_node, verb=Verb.UPDATE, kind=TargetKind.NODES, answer="Changed",
        about="Allow pods on a node again.",
    ),
    ApiRoute(
        method="GET", path="/v1/views/status", name="viewStatus", endpoint=view_status,
        verb=Verb.READ, answer="View",
        about="Return the server's time and revision, its schedulers, and what is charged.",
    ),
    ApiRoute(
        method="GET", path="/v1/views/groups", name="viewGroups", endpoint=view_groups,
        verb=Verb.READ, is_explanation=True, answer="View",
        about="Return pod groups as `batchq jobs` shows them.",
        parameters=(
            QueryParameter(name="namespace", about="A namespace."),
            QueryParameter(name="queue", about="A queue, with those below it."),
            QueryParameter(name="phase", about="Phases, separated by commas."),
            QueryParameter(
                name="paged", about="A page without positions in line.", type="boolean"
            ),
            QueryParameter(
                name="active", about="With `paged`: no groups that have ended.", type="boolean"
            ),
            QueryParameter(
                name="finished", about="With `paged`: only the last of those that have ended.",
                type="integer", most=MOST_LISTED,
            ),
            _LIMIT, _CONTINUE,
        ),
    ),
    ApiRoute(
        method="GET", path="/v1/views/jobs", name="viewJobs", endpoint=view_jobs,
        verb=Verb.READ, is_explanation=True, answer="View",
        about="Return the table of `batchq jobs`: titles, rows, and notes about them.",
        parameters=(
            QueryParameter(name="namespace", about="A namespace."),
            QueryParameter(name="queue", about="A queue, with those below it."),
            QueryParameter(name="phase", about="Phases, separated by commas."),
            QueryParameter(
                name="reason", about="Reasons for waiting, separated by commas: one is enough."
            ),
            _OWNER,
            QueryParameter(name="form", about="`json`: what `-o json` prints, as `document`."),
            QueryParameter(name="active", about="No groups that have ended.", type="boolean"),
            QueryParameter(
                name="finished", about="Only the last of those that have ended.",
                type="integer", most=MOST_LISTED,
            ),
        ),
    ),
    ApiRoute(
        method="GET", path="/v1/metrics", name="showMetrics", endpoint=show_metrics,
        verb=Verb.READ, kind=TargetKind.QUEUES, is_explanation=True, answer="Text",
        about="Return metrics for Prometheus, of the groups that the caller may see.",
    ),
    ApiRoute(
        method="GET", path="/v1/views/queues", name="viewQueues", endpoint=view_queues,
        verb=Verb.READ, kind=TargetKind.QUEUES, is_explanation=True, answer="View",
        about="Return the queues as `batchq queues` shows them.",
    ),
    ApiRoute(
        method="GET", path="/v1/views/queues/{name}", name="viewQueue", endpoint=view_queue,
        verb=Verb.READ, kind=TargetKind.QUEUES, is_explanation=True, answer="View",
        about="Return a queue as `batchq queues show` does.",
    ),
    ApiRoute(
        method="GET", path="/v1/views/explanations/{namespace}/{name}", name="viewExplanation",
        endpoint=view_explanation, verb=Verb.READ, tier=Tier.SPEC, is_explanation=True,
        answer="View", about="Explain a pod group, with all numbers.",
        parameters=(
            QueryParameter(
                name="defaults", type="boolean",
                about="Use the default configuration if the scheduler's cannot be used.",
            ),
        ),
    ),
    ApiRoute(
        method="GET", path="/v1/views/checks/{namespace}/{name}", name="viewChecks",
        endpoint=view_checks, verb=Verb.READ, answer="View",
        about="Return the admission checks of a pod group.",
    ),
    ApiRoute(
        method="GET", path="/v1/views/gates", name="viewGates", endpoint=view_gates,
        verb=Verb.READ, answer="View",
        about="Return the closed gates of unfinished pod groups.",
        parameters=(
            QueryParameter(name="namespace", about="A namespace."),
            QueryParameter(name="queue", about="A queue, with those below it."),
            QueryParameter(name="gate", about="The name of the gates."),
            QueryParameter(
                name="age", about="Only groups of at least this age, in milliseconds.",
                type="integer", most=LONGEST_AGE_MS,
            ),
        ),
    ),
    ApiRoute(
        method="POST", path="/v1/views/plans", name="viewPlan", endpoint=view_plan,
        verb=Verb.READ, tier=Tier.SPEC, is_explanation=True, body=PlanRequest, answer="View",
        most_body_bytes=MOST_REQUEST_BYTES,
        about="Return what the scheduler would decide about new pod groups; nothing is stored.",
    ),
    ApiRoute(
        method="GET", path="/v1/tokens", name="listTokens", endpoint=list_tokens,
        verb=Verb.READ, kind=TargetKind.TOKENS, about="List your tokens, or all as an operator.",
    ),
    ApiRoute(
        method="POST", path="/v1/tokens", name="createToken", endpoint=create_token,
        verb=Verb.CREATE, kind=TargetKind.TOKENS, body=TokenRequest,
        about="Create a token of your own. Its text is in this answer only.",
    ),
    ApiRoute(
        method="POST", path="/v1/rotations", name="rotateToken", endpoint=rotate_token,
        body=RotationRequest,
        about="Replace the token in Authorization by a new one, which is in this answer only.",
    ),
    ApiRoute(
        method="POST", path="/v1/invitations", name="redeemInvitation",
        endpoint=redeem_invitation, credential="invitation",
        about="Exchange the invitation in Authorization, once, for a token of its user.",
    ),
    ApiRoute(
        method="GET", path="/v1/login", name="showLogin", endpoint=show_login, is_open=True,
        about="Return the identity provider with which users may log in.",
    ),
    ApiRoute(
        method="POST", path="/v1/login", name="logIn", endpoint=log_in, is_open=True,
        is_login=True, body=LoginRequest,
        about="Exchange an ID token of that provider, once, for a token of its user.",
    ),
    ApiRoute(
        method="POST", path="/v1/users/{name}/invitations", name="inviteUser",
        endpoint=invite_user, verb=Verb.CREATE, kind=TargetKind.USERS, body=InvitationRequest,
        about="Invite a user. The text of the invitation is in this answer only.",
    ),
    ApiRoute(
        method="POST", path="/v1/nodes/{name}/invitations", name="inviteNode",
        endpoint=invite_node, verb=Verb.UPDATE, kind=TargetKind.NODES, body=NodeInvitation,
        about="Make a token with which the agent of a node joins. Its text is in this answer only.",
    ),
    ApiRoute(
        method="POST", path="/v1/node-invitations", name="inviteNodes", endpoint=invite_nodes,
        verb=Verb.UPDATE, kind=TargetKind.NODES, body=NodesInvitation,
        about="Make a token with which agents of new nodes join, whose names have a pattern.",
    ),
    ApiRoute(
        method="PUT", path="/v1/nodes/{name}/user", name="joinNode", endpoint=join_node,
        credential="join", body=NodePassword,
        about="Make the node's user of the Redis server, once, with the join token in"
        " Authorization.",
    ),
    ApiRoute(
        method="DELETE", path="/v1/nodes/{name}/user", name="revokeNode", endpoint=revoke_node,
        verb=Verb.DELETE, kind=TargetKind.NODES,
        about="Remove the node's user of the Redis server, and make its join tokens useless.",
    ),
    ApiRoute(
        method="POST", path="/v1/tokens/{id}/rotations", name="rotateNamedToken",
        endpoint=rotate_named_token, verb=Verb.CREATE, kind=TargetKind.TOKENS,
        body=RotationRequest,
        about="Replace a token of one's own, on the socket, or of a service account.",
    ),
    ApiRoute(
        method="DELETE", path="/v1/tokens/{id}", name="revokeToken", endpoint=revoke_token,
        verb=Verb.DELETE, kind=TargetKind.TOKENS, about="Revoke a token.",
    ),
    ApiRoute(
        method="GET", path="/v1/bindings", name="listBindings", endpoint=list_bindings,
        verb=Verb.READ, kind=TargetKind.BINDINGS, about="List the roles that were given.",
    ),
    ApiRoute(
        method="POST", path="/v1/bindings", name="grant", endpoint=grant, body=BindingRequest,
        verb=Verb.CREATE, kind=TargetKind.BINDINGS,
        about="Give a role to a user, a group or a service account.",
    ),
    ApiRoute(
        method="DELETE", path="/v1/bindings", name="withdraw", endpoint=withdraw,
        verb=Verb.DELETE, kind=TargetKind.BINDINGS, about="Take a role away.",
        parameters=(
            QueryParameter(name="subject",
                           about="`user:NAME`, `group:NAME` or `serviceaccount:NAMESPACE:NAME`."),
            QueryParameter(name="role", about="The role."),
            QueryParameter(name="namespace", about="The namespace; all by default."),
        ),
    ),
    ApiRoute(
        method="GET", path="/v1/rights", name="explainRight", endpoint=explain_right,
        verb=Verb.READ, kind=TargetKind.CLUSTER_BINDINGS,
        about="Say whether you, or as an operator another user, may do something, and why.",
        parameters=(
            QueryParameter(name="user", about="The user; the caller by default."),
            QueryParameter(name="verb", about="What is done."),
            QueryParameter(name="kind", about="To what it is done."),
            QueryParameter(name="namespace", about="The namespace of the target."),
            QueryParameter(name="owner", about="The owner of the target."),
            QueryParameter(name="tier", about="How much of a group is read; its facts by default."),
            QueryParameter(name="groups",
                           about="Groups of another user by its door, separated by commas."),
        ),
    ),
    ApiRoute(
        method="GET", path="/v1/namespaces/{namespace}/service-accounts",
        name="listServiceAccounts", endpoint=list_accounts,
        verb=Verb.READ, kind=TargetKind.SERVICE_ACCOUNTS,
        about="List the service accounts of a namespace, with their roles and valid tokens.",
    ),
    ApiRoute(
        method="POST", path="/v1/namespaces/{namespace}/service-accounts/{name}/tokens",
        name="createServiceAccountToken", endpoint=create_account_token,
        verb=Verb.CREATE, kind=TargetKind.SERVICE_ACCOUNTS, body=TokenRequest,
        about="Create a token of a service account. Its text is in this answer only.",
    ),
    ApiRoute(
        method="DELETE", path="/v1/namespaces/{namespace}/service-accounts/{name}",
        name="deleteServiceAccount", endpoint=delete_account,
        verb=Verb.DELETE, kind=TargetKind.SERVICE_ACCOUNTS,
        about="Revoke the tokens of a service account, and take its roles away.",
    ),
    ApiRoute(
        method="GET", path="/v1/user-groups", name="listUserGroups", endpoint=list_user_groups,
        verb=Verb.READ, kind=TargetKind.USER_GROUPS,
        about="List the local groups, with their members and roles.",
    ),
    ApiRoute(
        method="POST", path="/v1/user-groups", name="createUserGroup", endpoint=create_user_group,
        verb=Verb.CREATE, kind=TargetKind.USER_GROUPS, body=UserGroupRequest,
        about="Create a local group of users.",
    ),
    ApiRoute(
        method="POST", path="/v1/user-groups/{name}/members", name="changeUserGroup",
        endpoint=change_user_group, verb=Verb.UPDATE, kind=TargetKind.USER_GROUPS,
        body=MembersRequest, about="Add members to a local group, and remove others.",
    ),
    ApiRoute(
        method="DELETE", path="/v1/user-groups/{name}", name="deleteUserGroup",
        endpoint=delete_user_group, verb=Verb.DELETE, kind=TargetKind.USER_GROUPS,
        about="Delete a local group, and take its roles away.",
    ),
    ApiRoute(
        method="GET", path="/v1/audit", name="readAudit", endpoint=read_audit,
        verb=Verb.READ, kind=TargetKind.AUDIT, about="Return the latest audit records.",
        parameters=(
            QueryParameter(
                name="limit", about=f"The most records, {USUALLY_AUDITED} by default.",
                type="integer", most=MOST_AUDITED,
            ),
        ),
    ),
)  # fmt: skip


def right_of(route: ApiRoute) -> str:
    """Return the right that a route needs, in words: `read the output of groups`."""
    is_tiered = route.verb is Verb.READ and route.kind is TargetKind.GROUPS
    return f"{route.verb} the {route.tier} of groups" if is_tiered else f"{route.verb} {route.kind}"


#: A manifest, as docs/submitting.md describes it; the server checks it field by field.
_MANIFEST: dict[str, Any] = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata"],
    "properties": {
        "apiVersion": {"const": "batchq/v1"},
        "kind": {"const": "PodGroup"},
        "metadata": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string"},
                "namespace": {"type": "string"},
                "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        },
        "spec": {"type": "object"},
        "status": {"type": "object"},
    },
    "additionalProperties": False,
}
_SCHEMAS: dict[str, Any] = {
    "PodGroup": _MANIFEST,
    "PodGroupList": {
        "type": "object",
        "properties": {
            "apiVersion": {"const": "batchq/v1"},
            "kind": {"const": "PodGroupList"},
            "revision": {"type": "integer"},
            "continue": {"type": "string"},
            "items": {"type": "array", "items": {"$ref": "#/components/schemas/PodGroup"}},
            "unreadable": {"type": "array", "items": {"type": "object"}},
        },
    },
    "Reason": {
        "type": "object",
        "properties": {"reason": {"type": "string"}},
        "additionalProperties": False,
    },
    "Explanation": {"type": "object"},
    "Object": {**_MANIFEST, "properties": {**_MANIFEST["properties"], "kind": {"type": "string"}}},
    "ObjectList": {
        "type": "object",
        "properties": {
            "apiVersion": {"const": "batchq/v1"},
            "kind": {"type": "string"},
            "revision": {"type": "integer"},
            "continue": {"type": "string"},
            "items": {"type": "array", "items": {"$ref": "#/components/schemas/Object"}},
            "unreadable": {"type": "array", "items": {"type": "object"}},
        },
    },
    "Changed": {"type": "object", "properties": {"changed": {"type": "boolean"}}},
    # Fields of the Python client's objects, which grow with it.
    "View": {},
}
_STREAMED = {
    "PodGroupList": ("text/event-stream", "application/x-ndjson"),
    "ObjectList": ("text/event-stream", "application/x-ndjson"),
}
_LINES = ("text/plain", "application/x-ndjson", "text/event-stream")


@cache
def openapi_document() -> dict[str, Any]:
    """Return the description of all routes, as OpenAPI 3.1."""
    bodies = [one.body for one in ROUTES if not isinstance(one.body, str)]
    _, components = msgspec.json.schema_components(
        [ProblemDocument, *dict.fromkeys(bodies)],
        ref_template="#/components/schemas/{name}",
    )
    for schema in components.values():
        # Before msgspec 0.23, docstrings keep their indentation.
        if "description" in schema:
            schema["description"] = cleandoc(schema["description"])
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "batchq", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {**_SCHEMAS, **components},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
    }


def _operation(route: ApiRoute) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.about,
        "parameters": [*_path_parameters(route), *(_parameter(one) for one in route.parameters)],
        "responses": _responses(route),
    }
    if route.is_open:
        operation["security"] = []
    if route.verb is not None:
        operation["x-batchq-right"] = right_of(route)
    if route.body:
        name = route.body if isinstance(route.body, str) else route.body.__name__
        schema = {"$ref": f"#/components/schemas/{name}"}
        operation["requestBody"] = {"content": {route.takes: {"schema": schema}}}
    return operation


def _path_parameters(route: ApiRoute) -> list[dict[str, Any]]:
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in names
    ]


def _parameter(parameter: QueryParameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": parameter.type}
    if parameter.most is not None:
        schema |= {"minimum": 0, "maximum": parameter.most}
    return {
        "name": parameter.name,
        "in": "query",
        "description": parameter.about,
        "schema": schema,
    }


def _responses(route: ApiRoute) -> dict[str, Any]:
    if route.answer == "Frames":
        content = {NDJSON: {"schema": {"type": "string"}}}
    elif route.answer == "Text":
        content = {"text/plain": {"schema": {"type": "string"}}}
    elif route.answer == "Lines":
        content = {form: {"schema": {"type": "string"}} for form in _LINES}
    else:
        reference = f"#/components/schemas/{route.answer}"
        schema = {"$ref": reference} if route.answer in _SCHEMAS else {}
        content = {"application/json": {"schema": schema}}
        content |= {
            form: {"schema": {"type": "string"}} for form in _STREAMED.get(route.answer, ())
        }
    problem = {"$ref": "#/components/schemas/ProblemDocument"}
    return {
        "200": {"description": "The answer.", "content": content},
        **(
            {"201": {"description": "It is new.", "content": content}}
            if route.verb is Verb.CREATE
            else {}
        ),
        "default": {"description": "A problem.", "content": {PROBLEM_JSON: {"schema": problem}}},
    }
