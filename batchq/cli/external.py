"""`batchq external`: groups that a program of yours claims and runs, and a check of that program.

A script claims a group, keeps the token, renews it while it works, and reports the end. The
commands are one each for what `client.external` does from Python.
"""

from __future__ import annotations

import socket
from time import monotonic
from typing import TYPE_CHECKING, cast

import click

from batchq.api.objects import PodGroup, key_of
from batchq.api.resources import describe, format_quantity
from batchq.api.times import describe_age, format_instant
from batchq.cli.output.options import (
    Globals,
    examples,
    namespace_option,
    output_option,
    pass_globals,
)
from batchq.cli.output.render import Table, show_data, show_table
from batchq.cli.output.terminal import echo
from batchq.cli.output.trouble import on_interrupt
from batchq.cli.output.values import as_duration, group_key, left_of, seconds_of
from batchq.errors import StoreUnavailable, UsageError, WaitTimedOut

if TYPE_CHECKING:
    from batchq.client import Client
    from batchq.client.external import Claim, Reported

#: Where a token is looked for that is not on the command line, which others may read.
TOKEN_VARIABLE = "BATCHQ_CLAIM"  # noqa: S105 - the name of a variable
#: The work is to be stopped.
EXIT_STOP = 8

_token = click.option(
    "-t",
    "--token",
    envvar=TOKEN_VARIABLE,
    default="",
    metavar="TOKEN",
    help=f"What `claim` has printed; or the variable {TOKEN_VARIABLE}.",
)
_ttl = click.option(
    "--ttl", callback=as_duration, metavar="DURATION", help="How long it lasts unless renewed."
)
_message = click.option("-m", "--message", default="", help="What there is to say about it.")


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

    Such a group is admitted like any other, but its pods are not made: a program of yours claims
    it for a while, renews the claim while it works, and reports how it goes. A claim that is not
    renewed in time lapses, and the group is requeued. docs/external.md says what is promised.

    Exit codes: 0 done, 6 there is no such group, 8 the claim is over, or the work is to be
    stopped.
    """


@external.command(
    "list", epilog=examples("batchq external list", "batchq external list -q gpus -o json")
)
@click.option("-n", "--namespace", default="", help="Only this namespace.")
@click.option("-q", "--queue", default="", help="Only this queue.")
@output_option("table", "json")
@pass_globals
def list_groups(shared: Globals, namespace: str, queue: str, output: str) -> None:
    """List the groups that wait to be claimed, the next one first."""
    with shared.connect() as client:
        groups = client.external.waiting(queue=queue, namespace=namespace)
        now_ms = client.now_ms()
    if output == "json":
        show_data({"items": [_group_row(group) for group in groups]}, "json")
        return
    if not groups:
        echo("no external group waits to be claimed", err=True)
        return
    rows = tuple(
        (
            key_of(group),
            group.spec.queue,
            describe(group.status.reservation),
            describe_age(max(0, now_ms - (group.status.in_queue_at or now_ms))),
        )
        for group in groups
    )
    show_table(Table(("NAME", "QUEUE", "RESERVED", "WAITS"), rows), color=shared.color)


@external.command(
    epilog=examples(
        "batchq external claim render-1 --ttl 5m",
        "batchq external claim --wait -q gpus --holder gpu-box-7 -o json",
    )
)
@click.argument("name", required=False)
@namespace_option
@click.option("-q", "--queue", default="", help="Without NAME: the next group of this queue.")
@click.option("--holder", default="", help="What you call yourself.  [default: this host]")
@_ttl
@click.option("--wait", is_flag=True, help="Without NAME: wait until there is one.")
@click.option("--timeout", callback=as_duration, metavar="DURATION", help="With --wait: 124.")
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
    output: str,
) -> None:
    """Claim the group NAME, or the first that waits, for 60s or --ttl; print the token.

    The token is all that it takes to report the group's end: it is shown this once, and batchq
    keeps its digest alone.
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
def renew(shared: Globals, token: str, ttl: str | None, output: str) -> int:
    """Renew a claim, for as long as before or --ttl, or hear that the work is to be stopped.

    Exit codes: 0 renewed; 8 stop the work: `stop REASON` is printed, and `report evicted` is
    expected once it has; 8 with an error: the claim is over, and somebody else may run the group.
    """
    with shared.connect() as client:
        renewed = client.external.renew(_given(token), ttl)
    until = "" if renewed.expires_at is None else format_instant(renewed.expires_at)
    if output == "json":
        over = "" if renewed.over_at is None else format_instant(renewed.over_at)
        answer = {"stopReason": renewed.stop_reason, "expiresAt": until, "overAt": over}
        show_data(answer, "json")
    elif renewed.stop_reason:
        echo(f"stop {renewed.stop_reason}")
    else:
        echo(f"renewed until {until}")
    return EXIT_STOP if renewed.stop_reason else 0


@external.command(
    epilog=examples(
        "batchq external report running",
        "batchq external report succeeded --pod frame-17",
        "batchq external report failed --message 'the disk is full'",
    )
)
@click.argument("phase", type=click.Choice(("running", "succeeded", "failed", "evicted")))
@click.option("--pod", default="", metavar="NAME", help="Of one pod, as you call it; not of all.")
@_message
@_token
@output_option("text", "json")
@pass_globals
def report(shared: Globals, phase: str, pod: str, message: str, token: str, output: str) -> None:
    """Report the claimed group, or a pod of it, as PHASE; the end of the group ends the claim.

    `evicted`: nothing of it runs any more and it is not done, as after being told to stop.
    """
    with shared.connect() as client:
        news = client.external.report(
            _given(token), cast("Reported", phase), pod=pod, message=message
        )
    what = f"pod {pod} {phase}" if pod else phase
    _show_done(what if news else f"{what} (said before)", token, phase, pod, output)


@external.command(epilog=examples("batchq external release --message 'no licence left'"))
@_message
@_token
@output_option("text", "json")
@pass_globals
def release(shared: Globals, message: str, token: str, output: str) -> None:
    """Give the claimed group back unfinished; another may claim it at once."""
    with shared.connect() as client:
        news = client.external.release(_given(token), message=message)
    said = "released" if news else "released (said before)"
    _show_done(said, token, "evicted", "", output)


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
    callback=as_duration,
    default="30s",
    show_default=True,
    metavar="DURATION",
    help="How long anything may take that nothing keeps from happening.",
)
@output_option("text", "json")
def check(command: tuple[str, ...], patience: str, output: str) -> int:
    """Check a consumer: does COMMAND keep what docs/external.md asks of it?

    Starts a server and a scheduler of its own in a temporary folder, runs COMMAND once or twice at
    a time with BATCHQ_REDIS_URL set and the queue to serve in BATCHQ_QUEUE, lets groups through,
    and suspends, kills and waits; one line for each promise. Nothing else is touched.

    Exit codes: 0 every promise is kept, 10 one is not.
    """
    from batchq.lab.consumer_check import check_consumer

    def tell(finding: object) -> None:
        if output == "text":
            echo(str(finding))

    with on_interrupt("interrupted: what the check had started is ended"):
        patience_s = seconds_of(patience) or 0.0
        findings = check_consumer(command, tell=tell, patience_s=patience_s)
    if output == "json":
        rows = [
            {"promise": one.promise, "ok": one.ok, "why": one.why, "seconds": round(one.seconds, 1)}
            for one in findings
        ]
        show_data({"items": rows}, "json")
    return 0 if all(one.ok for one in findings) else 10


def _next(client: Client, timeout_s: float | None, within: str, wanted: dict[str, str]) -> Claim:
    """The next group's claim, once there is one; a server that goes away is waited for, too.

    Raises WaitTimedOut.
    """
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
        raise WaitTimedOut(f"no external group waited to be claimed {within}")
    return claim


def _given(token: str) -> str:
    """The token, which there has to be.

    Raises UsageError.
    """
    if not token:
        raise UsageError(
            "there is no token: it is what `batchq external claim` has printed",
            hint=f"put it into the variable {TOKEN_VARIABLE}, or pass it as --token",
        )
    return token


def _group_row(group: PodGroup) -> dict[str, object]:
    status = group.status
    return {
        "name": key_of(group),
        "queue": group.spec.queue,
        "phase": str(status.phase),
        "reserved": {
            name: format_quantity(name, units) for name, units in status.reservation.items()
        },
        "inQueueAt": "" if status.in_queue_at is None else format_instant(status.in_queue_at),
    }


def _show_claim(claim: Claim, output: str) -> None:
    expires_at = format_instant(claim.group.status.claim.expires_at or 0)
    if output == "json":
        from batchq.api.manifest import encode

        show_data(
            {
                "podGroup": claim.key,
                "token": claim.token,
                "expiresAt": expires_at,
                "graceSeconds": claim.grace_s,
                "spec": encode(claim.group)["spec"],
            },
            "json",
        )
        return
    echo(claim.token)
    echo(f"podgroup {claim.key} claimed until {expires_at}", err=True)


def _show_done(sentence: str, token: str, phase: str, pod: str, output: str) -> None:
    if output == "json":
        from batchq.client.external import read_token

        show_data({"podGroup": read_token(token).key, "phase": phase, "pod": pod}, "json")
    else:
        echo(sentence)
