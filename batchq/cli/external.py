"""`batchq external`: claim and run external groups from scripts, and check a consumer.

A script claims a group, keeps the token, renews the claim while it works, and reports the end. Each
command corresponds to a method of `client.external`.
"""

from __future__ import annotations

import socket
from time import monotonic
from typing import TYPE_CHECKING, cast

import click

from batchq.api.notation import describe_age, format_instant
from batchq.api.objects import PodGroup, key_of
from batchq.api.resources import describe
from batchq.cli.output import echo, on_interrupt
from batchq.cli.output.forms import (
    Columns,
    ListForm,
    Output,
    instant,
    quantities,
    show_list,
    tabled,
)
from batchq.cli.output.options import (
    DURATION,
    Globals,
    examples,
    namespace_option,
    output_option,
    pass_globals,
)
from batchq.cli.output.values import group_key, left_of, seconds_of
from batchq.errors import StoreUnavailable, UsageError, WaitTimedOut

if TYPE_CHECKING:
    from batchq.client import Client
    from batchq.client.external import Claim, Reported

#: The token's environment variable; a command line can be read by other users.
TOKEN_VARIABLE = "BATCHQ_CLAIM"  # noqa: S105 - the name of a variable
#: The work must stop.
EXIT_STOP = 8

_token = click.option(
    "-t",
    "--token",
    envvar=TOKEN_VARIABLE,
    default="",
    metavar="TOKEN",
    help=f"The token that `claim` has printed; or the variable {TOKEN_VARIABLE}.",
)
_ttl = click.option(
    "--ttl",
    type=DURATION,
    help="How long the claim lasts unless renewed.",
)
_message = click.option("-m", "--message", default="", help="A message to record with it.")


@click.group(
    epilog=examples(
        "batchq external list",
        "export BATCHQ_CLAIM=$(batchq external claim --wait)",
        "batchq external report running",
        "batchq external renew --ttl 2m",
        "batchq external report succeeded",
        "batchq external check -- python3 conf/examples/consumer.py",
    )
)
def external() -> None:
    """Claim and run external groups (spec.controller: external).

    Such a group is admitted like any other, but batchq creates no pods for it: a program of yours
    claims it for a while, renews the claim while it works, and reports the result. A claim that is
    not renewed in time expires, and the group is requeued. docs/external.md has the guarantees.

    Exit codes: 0 done, 6 there is no such group, 8 the claim is over, or the work must stop.
    """


@external.command(
    "list", epilog=examples("batchq external list", "batchq external list -q gpus -o json")
)
@click.option("-n", "--namespace", default="", help="Only this namespace.")
@click.option("-q", "--queue", default="", help="Only this queue.")
@output_option("table", "json")
@pass_globals
def list_groups(shared: Globals, namespace: str, queue: str, output: Output) -> None:
    """List the groups that can be claimed, the next one first."""
    with shared.connect() as client:
        groups = client.external.waiting(queue=queue, namespace=namespace)
        now_ms = client.now_ms()
    columns: Columns[PodGroup] = {
        "NAME": key_of,
        "QUEUE": lambda one: one.spec.queue,
        "RESERVED": lambda one: describe(one.status.reservation),
        "WAITS": lambda one: describe_age(max(0, now_ms - (one.status.in_queue_at or now_ms))),
    }
    none = "no external group can be claimed"
    show_list(output, groups, ListForm(lambda some: tabled(some, columns), none, row=_group_row))


@external.command(
    epilog=examples(
        "batchq external claim render-1 --ttl 5m",
        "batchq external claim --wait -q gpus --holder gpu-box-7 -o json",
    )
)
@click.argument("name", required=False)
@namespace_option
@click.option("-q", "--queue", default="", help="Without NAME: the next group of this queue.")
@click.option("--holder", default="", help="Your consumer's name.  [default: this host]")
@_ttl
@click.option("--wait", is_flag=True, help="Without NAME: wait for a claimable group.")
@click.option(
    "--timeout",
    type=DURATION,
    help="With --wait: the longest wait (exit code 124).",
)
@output_option("text", "json")
@pass_globals
def claim(
    shared: Globals,
    name: str | None,
    namespace: str,
    queue: str,
    holder: str,
    ttl: str | None,
    wait: bool,
    timeout: str | None,
    output: Output,
) -> None:
    """Claim the group NAME, or the first claimable one, for 60s or --ttl; print the token.

    The token is sufficient to report the group's end. It is shown only once; batchq stores only its
    digest.
    """
    given = click.get_current_context().get_parameter_source("namespace")
    space = "" if name is None and given is click.core.ParameterSource.DEFAULT else namespace
    who = holder or socket.gethostname()
    timeout_s = seconds_of(timeout)
    waits = wait and name is None
    with (
        on_interrupt("interrupted before a group was claimed"),
        shared.connect(patience_s=timeout_s if waits else 0.0) as client,
    ):
        lasts = ttl or "60s"
        if name is not None:
            found = client.external.claim(group_key(name, namespace), holder=who, ttl=lasts)
        elif wait:
            left_s = left_of(timeout_s, client.waited_s)
            wanted = {"holder": who, "ttl": lasts, "queue": queue, "namespace": space}
            found = _next(client, left_s, f"within {timeout}", wanted)
        else:
            found = client.external.claim(holder=who, ttl=lasts, queue=queue, namespace=space)
    _show_claim(found, output)


@external.command(
    epilog=examples("batchq external renew --ttl 2m", "batchq external renew -t $token -o json")
)
@_token
@_ttl
@output_option("text", "json")
@pass_globals
def renew(shared: Globals, token: str, ttl: str | None, output: Output) -> int:
    """Renew a claim for its previous duration or --ttl, or learn that the work must stop.

    Exit codes: 0 renewed; 8 stop the work: `stop REASON` is printed, and `report evicted` is
    expected after it has stopped; 8 with an error: the claim is over, and another consumer may run
    the group.
    """
    with shared.connect() as client:
        renewed = client.external.renew(_given(token), ttl)
    until = instant(renewed.expires_at) or ""
    answer = {
        "stopReason": renewed.stop_reason,
        "expiresAt": until,
        "overAt": instant(renewed.over_at) or "",
    }
    stops = renewed.stop_reason
    output.page(answer, lambda: echo(f"stop {stops}" if stops else f"renewed until {until}"))
    return EXIT_STOP if renewed.stop_reason else 0


@external.command(
    epilog=examples(
        "batchq external report running",
        "batchq external report succeeded --pod frame-17",
        "batchq external report failed --message 'the disk is full'",
    )
)
@click.argument("phase", type=click.Choice(("running", "succeeded", "failed", "evicted")))
@click.option(
    "--pod",
    default="",
    metavar="NAME",
    help="Report one pod, by a name of your choice, not the group.",
)
@_message
@_token
@output_option("text", "json")
@pass_globals
def report(shared: Globals, phase: str, pod: str, message: str, token: str, output: Output) -> None:
    """Report that the claimed group, or one pod, is in PHASE; the group's end ends the claim.

    `evicted`: all its processes have ended and its work is not done, as after a request to stop.
    """
    with shared.connect() as client:
        is_new = client.external.report(
            _given(token), cast("Reported", phase), pod=pod, message=message
        )
    what = f"pod {pod} {phase}" if pod else phase
    _show_done(what if is_new else f"{what} (reported before)", token, phase, pod, output)


@external.command(epilog=examples("batchq external release --message 'no licence left'"))
@_message
@_token
@output_option("text", "json")
@pass_globals
def release(shared: Globals, message: str, token: str, output: Output) -> None:
    """Return the claimed group unfinished, so that it can be claimed at once."""
    with shared.connect() as client:
        is_new = client.external.release(_given(token), message=message)
    sentence = "released" if is_new else "released (reported before)"
    _show_done(sentence, token, "evicted", "", output)


@external.command(
    context_settings={"allow_interspersed_args": False},
    epilog=examples(
        "batchq external check -- python3 conf/examples/consumer.py",
        "batchq external check -o json -- ./my-consumer --once",
    ),
)
@click.argument("command", nargs=-1, required=True, metavar="-- COMMAND…")
@click.option(
    "--patience",
    type=DURATION,
    default="30s",
    show_default=True,
    help="How long each step may take.",
)
@output_option("text", "json")
def check(command: tuple[str, ...], patience: str, output: Output) -> int:
    """Check whether the consumer COMMAND fulfils the contract in docs/external.md.

    Starts a server and a scheduler of its own in a temporary folder, and runs one or two copies of
    COMMAND with BATCHQ_REDIS_URL set and the queue to serve in BATCHQ_QUEUE. Then it admits groups,
    suspends them and kills consumers; it prints one line per requirement. Nothing else is touched.

    Exit codes: 0 every requirement is met, 10 one is not.
    """
    from batchq.lab.consumer_check import check_consumer

    def tell(finding: object) -> None:
        if output.for_people:
            echo(str(finding))

    with on_interrupt("interrupted: all processes of the check were ended"):
        patience_s = seconds_of(patience) or 0.0
        findings = check_consumer(command, tell=tell, patience_s=patience_s)
    rows = [
        {"promise": one.promise, "ok": one.ok, "why": one.why, "seconds": round(one.seconds, 1)}
        for one in findings
    ]
    if not output.for_people:
        output.page({"items": rows}, lambda: None)
    return 0 if all(one.ok for one in findings) else 10


def _next(client: Client, timeout_s: float | None, within: str, wanted: dict[str, str]) -> Claim:
    """Claim the next group, waiting for one and for a server that is away. Raises WaitTimedOut."""
    started = monotonic()
    try:
        with client.patiently(timeout_s):
            claim = client.external.next(timeout_s=timeout_s, **wanted)
    except StoreUnavailable as error:
        if error.lasts or timeout_s is None or monotonic() - started < timeout_s:
            raise
        message = f"no external group could be claimed {within}: {error.message}"
        raise WaitTimedOut(message, hint=error.hint) from error
    if claim is None:
        raise WaitTimedOut(f"no external group could be claimed {within}")
    return claim


def _given(token: str) -> str:
    """Return the token. Raises UsageError if there is none."""
    if not token:
        raise UsageError(
            "there is no token; `batchq external claim` prints one",
            hint=f"put it into the variable {TOKEN_VARIABLE}, or pass it as --token",
        )
    return token


def _group_row(group: PodGroup) -> dict[str, object]:
    status = group.status
    return {
        "name": key_of(group),
        "queue": group.spec.queue,
        "phase": str(status.phase),
        "reserved": quantities(status.reservation),
        "inQueueAt": instant(status.in_queue_at) or "",
    }


def _show_claim(claim: Claim, output: Output) -> None:
    from batchq.api.manifest import encode

    expires_at = format_instant(claim.group.status.claim.expires_at or 0)
    value = {
        "podGroup": claim.key,
        "token": claim.token,
        "expiresAt": expires_at,
        "graceSeconds": claim.grace_s,
        "spec": encode(claim.group)["spec"],
    }
    output.page(value, lambda: echo(claim.token))
    if output.for_people:
        echo(f"podgroup {claim.key} claimed until {expires_at}", err=True)


def _show_done(sentence: str, token: str, phase: str, pod: str, output: Output) -> None:
    from batchq.client.external import read_token

    value = {"podGroup": read_token(token).key, "phase": phase, "pod": pod}
    output.page(value, lambda: echo(sentence))
