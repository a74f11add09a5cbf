"""`batchq worker`: run the agent of this machine.

A machine may run many agents, and tests start hundreds: the module loads only what an agent needs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Literal, get_args, get_type_hints

import click

from batchq.api.node_report import BEAT_MS
from batchq.api.notation import format_duration
from batchq.cli.output import echo
from batchq.cli.output.options import DURATION, Globals, WholeNumber, examples, pass_globals
from batchq.cli.output.values import as_pairs, seconds_of, warn_of_no_cpu
from batchq.errors import StoreUnavailable, UsageError

if TYPE_CHECKING:
    from batchq.api.objects import Taint
    from batchq.paths import Home
    from batchq.worker.host.accounts import PodAccounts
    from batchq.worker.host.node_resources import PortRange

_FILE = click.Path(dir_okay=False, path_type=Path)
#: A shorter lease could expire on a busy machine before it is renewed, so that its pods would be
#: lost and bound again and again. A longer one would delay recovery after the loss of a machine.
_SHORTEST_LEASE_S = 1.0
_LONGEST_LEASE_S = 3600.0

_PORTS = re.compile(r"([0-9]{1,5})-([0-9]{1,5})")
_TAINT = re.compile(r"(?P<key>[^=:]+)(=(?P<value>[^=:]*))?:(?P<effect>\w+)")


@click.command(
    epilog=examples(
        "batchq worker",
        "batchq worker --name gpu-01 --resources cpu=16,memory=64Gi,gpu=4 --label zone=a",
        "batchq worker --address 10.0.0.7 --ports 61440-62000",
        "batchq worker --taint dedicated=ml:NoSchedule",
        "batchq worker --join gpu-01.join --api-server https://queue.example:8443",
        "batchq worker --run-as owner --signing-key /etc/batchq/signing.key",
    )
)
@click.option("--name", help="The node's name.  [default: the host's]")
@click.option(
    "--resources",
    metavar="NAME=QUANTITY,…",
    help="What pods may use of this machine, as in cpu=16,memory=64Gi,gpu=4.  [default: detected]",
)
@click.option(
    "--label",
    "labels",
    callback=as_pairs,
    multiple=True,
    metavar="KEY=VALUE",
    help="A label of the node.",
)
@click.option(
    "--taint",
    "taints",
    multiple=True,
    metavar="KEY[=VALUE]:EFFECT",
    help="Keeps pods away that do not tolerate it. EFFECT is NoSchedule, NoExecute or "
    "PreferNoSchedule.",
)
@click.option(
    "--slots",
    type=WholeNumber(1, 10_000),
    show_default="110, or four for each cpu if that is more",
    help="How many pods may run at the same time; the node offers as many `pods`.",
)
@click.option(
    "--drain-timeout",
    type=DURATION,
    default="30s",
    show_default=True,
    help="How long running pods may continue after the agent is asked to end.",
)
@click.option(
    "--beat",
    type=DURATION,
    default=format_duration(BEAT_MS),
    show_default=True,
    help="The heartbeat interval; a fraction of the scheduler's nodeTimeout.",
)
@click.option(
    "--lease",
    type=DURATION,
    default="30s",
    show_default=True,
    help="How long a pod continues without contact with the server; should equal the scheduler's "
    "podLease. At least 1s and twice --beat, at most 1h.",
)
@click.option(
    "--enforce",
    type=click.Choice(("auto", "cgroup", "rlimit", "none")),
    default="auto",
    show_default=True,
    help="How a pod's memory request is enforced: a cgroup limits all its processes together, an "
    "rlimit each process separately, none does not limit them; auto is a cgroup if the machine has "
    "one to use, else an rlimit.",
)
@click.option(
    "--containment",
    type=click.Choice(("auto", "cgroup", "pid-namespace", "subreaper")),
    default="auto",
    show_default=True,
    envvar="BATCHQ_CONTAINMENT",
    show_envvar=True,
    help="What ends all processes of a pod with the pod: a cgroup, a PID namespace, or the "
    "work-horse alone; auto is the first of these that works here.",
)
@click.option(
    "--api-server",
    metavar="URL",
    envvar="BATCHQ_SERVER",
    show_envvar=True,
    help="The address of the HTTP API for pods that have a token, as in https://hpc.example:8443 "
    "or unix:/run/batchq/api.sock.",
)
@click.option(
    "--address",
    metavar="IP",
    help="Where pods of groups with launch reach the pods of this machine.  [default: this end of "
    "the connection to the server; 127.0.0.1 for a socket]",
)
@click.option(
    "--run-as",
    type=click.Choice(("agent", "owner")),
    default="agent",
    show_default=True,
    envvar="BATCHQ_RUN_AS",
    show_envvar=True,
    help="The unix account of pods: that of the agent, or that of the group's owner. For owners,"
    " start the agent as root and with --signing-key.",
)
@click.option(
    "--agent-user",
    metavar="ACCOUNT",
    default="batchq-worker",
    show_default=True,
    envvar="BATCHQ_AGENT_USER",
    show_envvar=True,
    help="With --run-as owner: the account of the agent itself. No pod runs under it.",
)
@click.option(
    "--one-account",
    is_flag=True,
    help="This account and its groups are one person's, as in `batchq up`: its pods may act as that"
    " person on the socket of an HTTP API.",
)
@click.option(
    "--signing-key",
    type=_FILE,
    envvar="BATCHQ_SIGNING_KEY",
    show_envvar=True,
    help="With --run-as owner: the file with the secret that `batchq api` signs groups with.",
)
@click.option(
    "--user-map",
    type=_FILE,
    envvar="BATCHQ_USER_MAP",
    show_envvar=True,
    help="With --run-as owner: a file with lines OWNER ACCOUNT, for owners whose account has"
    " another name, or is one of the system.",
)
@click.option(
    "--unsigned-as",
    metavar="ACCOUNT",
    default="",
    envvar="BATCHQ_UNSIGNED_AS",
    show_envvar=True,
    help="With --run-as owner: the account for pods of groups that the HTTP API has not signed."
    "  [default: such pods fail]",
)
@click.option(
    "--allow-root",
    is_flag=True,
    help="With --run-as owner: run pods as root as well, if that is the account of their owner.",
)
@click.option(
    "--ports",
    metavar="FIRST-LAST",
    default="61440-65535",
    show_default=True,
    help="The ports for pods of groups with launch; agents of one machine may share them.",
)
@click.option(
    "--devices",
    metavar="DEVICE,…",
    help="The GPUs that pods may use, by UUID, PCI bus or index, as in 0,1; or none.  [default: all"
    " that no other agent of this machine uses]",
)
@click.option(
    "--gpu-env",
    type=click.Choice(("index", "uuid")),
    default="index",
    show_default=True,
    help="How CUDA_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES name GPUs. Many programs expect "
    "numbers.",
)
@click.option(
    "--join",
    "join_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A file with the token of `batchq nodes invite`. The agent exchanges it at the API of "
    "--api-server for a user of the Redis server, and keeps that; then the file can be removed.",
)
@click.option(
    "--ca-file",
    type=click.Path(path_type=Path),
    help="With --join: certificates of the authorities to trust, in PEM, for the API and the "
    "server.  [default: the system's]",
)
@pass_globals
def worker(
    shared: Globals,
    name: str | None,
    resources: str | None,
    labels: dict[str, str],
    taints: tuple[str, ...],
    slots: int | None,
    drain_timeout: str,
    beat: str,
    lease: str,
    enforce: str,
    containment: str,
    api_server: str | None,
    address: str | None,
    run_as: str,
    agent_user: str,
    one_account: bool,
    signing_key: Path | None,
    user_map: Path | None,
    unsigned_as: str,
    allow_root: bool,
    ports: str,
    devices: str | None,
    gpu_env: Literal["index", "uuid"],
    join_file: Path | None,
    ca_file: Path | None,
) -> int:
    """Make this machine a node and run the pods that are bound to it; logs to stderr.

    SIGTERM or Ctrl-C drains the node: no pods start, running pods may end within --drain-timeout
    and are stopped after it. A second signal stops them at once. The command waits for a server
    that does not answer yet.
    """
    from msgspec import structs

    from batchq.daemon import logs
    from batchq.paths import find_home, resolve_url
    from batchq.worker.agent.agent import Agent, AgentSettings
    from batchq.worker.host.accounts import settle
    from batchq.worker.host.containment import Containment
    from batchq.worker.host.node_resources import Enforce, parse_resources

    logs.configure()
    home = find_home()
    node = _node_name(name)
    offered = parse_resources(resources) if resources is not None else None
    warn_of_no_cpu(offered or {})
    settings = AgentSettings(
        node=node,
        # Only root may be able to read the file with the URL.
        url="" if join_file is not None else resolve_url(shared.redis_url, home),
        home=home.root,
        resources=offered,
        labels=_checked_labels(labels),
        taints=tuple(parse_taint(text) for text in taints),
        slots=slots,
        beat_s=_positive_s("--beat", beat),
        lease_ms=checked_lease_ms(lease, beat),
        drain_timeout_s=seconds_of(drain_timeout) or 0.0,
        enforce=Enforce(enforce),
        containment=Containment(containment),
        api_server=_api_server(api_server or ""),
        address=_checked_address(address),
        ports=parse_ports(ports),
        devices=_devices(devices),
        gpu_env=gpu_env,
        accounts=(
            _accounts(agent_user, signing_key, user_map, unsigned_as, allow_root=allow_root)
            if run_as == "owner"
            else None
        ),
        is_one_account=one_account,
    )
    if settings.accounts is not None:
        settle(settings.accounts, home)
    if join_file is not None:
        url, address = _joined(home, node, join_file, api_server, ca_file)
        settings = structs.replace(settings, url=url, api_server=address)
    if settings.accounts is None:
        home.prepare()
    else:
        home.open_to_pods()
    return Agent(settings).run()


#: Between two attempts to reach the API of an agent that joins.
_JOIN_PAUSE_S = 2.0


def _joined(
    home: Home, node: str, join_file: Path, api_server: str | None, ca_file: Path | None
) -> tuple[str, str]:
    """Return the URL of this agent's own user, and the address of the API for pods; join first,
    when the API answers.
    """
    from batchq.api_session import split_server, with_pin
    from batchq.client.node_users import JoinRequest, joined

    if not api_server:
        raise UsageError(
            "--join needs the API that the token is for",
            hint="as in --api-server https://queue.example:8443",
        )
    if ca_file is not None and not ca_file.is_file():
        raise UsageError(f"--ca-file: there is no file {ca_file}")
    server, pin = split_server(api_server, variable="--api-server")
    wanted = JoinRequest(
        node=node,
        server=server,
        pin=pin,
        token_file=join_file,
        authority="" if ca_file is None else str(ca_file.absolute()),
    )
    told = ""
    while True:
        try:
            url, pin = joined(home, wanted)
            return url, with_pin(server, pin)
        except StoreUnavailable as error:
            if error.lasts:
                raise
            if error.message != told:
                echo(f"{error.message}; trying again", err=True)
            told = error.message
            sleep(_JOIN_PAUSE_S)


def _accounts(
    agent_user: str,
    signing_key: Path | None,
    user_map: Path | None,
    unsigned_as: str,
    *,
    allow_root: bool,
) -> PodAccounts:
    from batchq.paths import read_signing_key
    from batchq.worker.host.accounts import PodAccounts, agents_account, read_user_map
    from batchq.worker.host.privileges import find_account

    agent = agents_account(agent_user)
    if signing_key is None:
        raise UsageError(
            "--run-as owner: expected --signing-key, which proves the owner of a group",
            hint="give `batchq api` and the agents the same file: docs/accounts.md",
        )
    if unsigned_as and find_account(unsigned_as) is None:
        raise UsageError(f"--unsigned-as {unsigned_as[:80]}: this machine has no such account")
    return PodAccounts(
        agent=agent,
        key=read_signing_key(signing_key),
        mapped={} if user_map is None else read_user_map(user_map),
        unsigned=unsigned_as,
        allows_root=allow_root,
    )


def parse_taint(text: str) -> Taint:
    """Parse a taint such as `dedicated=ml:NoSchedule`. Raises UsageError."""
    from batchq.api import notation
    from batchq.api.objects import Taint

    effects = get_args(get_type_hints(Taint)["effect"])
    match = _TAINT.fullmatch(text)
    effect = next((one for one in effects if match and match["effect"] == one), None)
    if match is None or effect is None:
        raise UsageError(
            f"--taint: expected KEY=VALUE:EFFECT or KEY:EFFECT, found {text[:80]!r}",
            hint=f"EFFECT is one of {', '.join(effects)}",
        )
    _refuse("--taint", match["key"], notation.qualified_problem)
    _refuse("--taint", match["value"] or "", notation.label_value_problem)
    return Taint(key=match["key"], value=match["value"] or "", effect=effect)


def _api_server(url: str) -> str:
    if not url:
        return ""
    from batchq.api_session import split_server, with_pin

    return with_pin(*split_server(url, variable="--api-server"))


def parse_ports(text: str) -> PortRange:
    """Parse a range of ports such as `61440-65535`. Raises UsageError."""
    from batchq.worker.host.node_resources import PortRange

    match = _PORTS.fullmatch(text)
    found = PortRange(int(match[1]), int(match[2])) if match else None
    if found is None or not 1024 <= found.first <= found.last <= 65_535:
        raise UsageError(
            f"--ports: expected a range from 1024 to 65535, found {text[:80]!r}",
            hint="as in --ports 61440-65535",
        )
    return found


def _devices(written: str | None) -> tuple[str, ...] | None:
    if written is None:
        return None
    if written == "none":
        return ()
    names = tuple(one.strip() for one in written.split(","))
    if not all(names):
        raise UsageError(
            f"--devices: expected UUIDs, PCI buses or indices, found {written[:80]!r}",
            hint="as in --devices 0,1; --devices none leaves all GPUs to others",
        )
    return names


def _checked_address(address: str | None) -> str:
    from batchq.api.node_report import is_address

    if address is None or is_address(address):
        return address or ""
    raise UsageError(
        f"--address: expected an IP address, found {address[:80]!r}",
        hint="as in --address 10.0.0.7; a name may mean something else on another machine",
    )


def _checked_labels(labels: dict[str, str]) -> dict[str, str]:
    from batchq.api import notation

    for key, value in labels.items():
        _refuse("--label", key, notation.qualified_problem)
        _refuse("--label", value, notation.label_value_problem)
    return labels


def _node_name(name: str | None) -> str:
    from batchq.api import notation
    from batchq.daemon.detached import node_names

    if name is None:
        # The host's name, which the agents of `batchq up` have, too, followed by a number.
        return node_names(1)[0].removesuffix("-1")
    _refuse("--name", name, notation.subdomain_problem)
    return name


def _refuse(option: str, text: str, problem_of: Callable[[str], str]) -> None:
    problem = problem_of(text)
    if problem:
        raise UsageError(f"{option}: {problem}")


def _positive_s(option: str, written: str) -> float:
    found = seconds_of(written)
    if not found:
        raise UsageError(f"{option}: expected more than 0s, found {written!r}")
    return found


def checked_lease_ms(lease: str, beat: str) -> int:
    """Return the lease in milliseconds; both arguments are durations as written.

    Raises UsageError if it is too short for its beat, or out of its bounds.
    """
    found, beat_s = seconds_of(lease) or 0.0, seconds_of(beat) or 0.0
    if not max(_SHORTEST_LEASE_S, 2 * beat_s) <= found <= _LONGEST_LEASE_S:
        raise UsageError(
            "--lease: expected at least 1s, at least twice --beat and at most 1h,"
            f" found {lease!r} with a beat of {beat!r}"
        )
    return round(1000 * found)
