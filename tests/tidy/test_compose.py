"""docker-compose.yml keeps to the Compose Specification, and its commands are batchq's."""

from __future__ import annotations

import json
import shlex
from typing import Any

import jsonschema
import pytest
import yaml

from tests.tidy.command_lines import accept, simple_commands
from tests.tidy.source import ROOT

COMPOSE = ROOT / "docker-compose.yml"
SCHEMA = ROOT / "tests" / "vendor" / "compose-spec.json"


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    return document


SERVICES: dict[str, dict[str, Any]] = compose()["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]
WITH_HEALTHCHECK = [name for name, service in SERVICES.items() if "healthcheck" in service]
#: Compose replaces `$$(…)` by the shell's `$(…)`; to a parser of arguments it is one word.
NODE = "a-node"


def healthcheck(name: str) -> list[str]:
    """The command that asks a service how it is, with shell substitutions filled in."""
    test: list[str] = SERVICES[name]["healthcheck"]["test"]
    form, *words = test
    if form == "CMD":
        return words
    assert form == "CMD-SHELL"
    (command,) = simple_commands(words[0].replace("$$(hostname)", NODE))
    return command


def test_it_is_valid_by_the_compose_specification() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    problems = jsonschema.Draft202012Validator(schema).iter_errors(compose())
    assert [f"{problem.json_path}: {problem.message}" for problem in problems] == []


def test_the_specification_refuses_what_it_does_not_know() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    document = {"services": {"worker": {"image": "batchq", "scale_to": 3}}}
    assert not jsonschema.Draft202012Validator(schema).is_valid(document)


def test_it_runs_a_server_a_scheduler_and_workers() -> None:
    assert {"valkey", "scheduler", "worker"} <= set(SERVICES)


@pytest.mark.parametrize("name", OURS)
def test_batchq_accepts_the_command_of(name: str) -> None:
    command = SERVICES[name]["command"]
    accept(shlex.split(command) if isinstance(command, str) else command)


@pytest.mark.parametrize("name", WITH_HEALTHCHECK)
def test_the_healthcheck_exists_of(name: str) -> None:
    program, *arguments = healthcheck(name)
    if name in OURS:
        assert program == "batchq"
        accept(arguments)
    else:
        assert program == "valkey-cli"


def test_what_runs_for_long_has_a_healthcheck() -> None:
    long_running = {name for name, service in SERVICES.items() if "profiles" not in service}
    assert long_running == set(WITH_HEALTHCHECK)


@pytest.mark.parametrize("name", SERVICES)
def test_nobody_is_root_in(name: str) -> None:
    assert SERVICES[name]["user"] not in {"", "root", "0", "0:0"}


def test_everything_waits_for_a_healthy_server() -> None:
    for name in OURS:
        assert SERVICES[name]["depends_on"]["valkey"] == {"condition": "service_healthy"}


def test_there_can_be_more_than_one_worker() -> None:
    worker = SERVICES["worker"]
    assert worker["deploy"]["replicas"] == 2
    assert {"container_name", "hostname", "ports"}.isdisjoint(worker)


def test_the_server_keeps_what_it_acknowledged_and_forgets_nothing() -> None:
    words = SERVICES["valkey"]["command"]
    options = dict(zip(words[1::2], words[2::2], strict=True))
    assert options["--appendonly"] == "yes"
    assert options["--maxmemory-policy"] == "noeviction"
    assert SERVICES["valkey"]["volumes"] == ["valkey-data:/data"]
