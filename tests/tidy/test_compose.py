"""docker-compose.yml keeps to the Compose Specification, and its commands are batchq's."""

from __future__ import annotations

import json
import shlex
from typing import Any

import jsonschema
import pytest
import yaml

from tests.tidy.command_lines import accept
from tests.tidy.source import ROOT

COMPOSE = ROOT / "docker-compose.yml"
SCHEMA = ROOT / "tests" / "vendor" / "compose-spec.json"


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    return document


SERVICES: dict[str, dict[str, Any]] = compose()["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service and name != "users"]
#: Service -> the name and the role of its user.
ROLES = dict(word.split("=") for word in SERVICES["users"]["command"] if "=" in word)
NODES = [name for name, role in ROLES.items() if role == "worker"]
WITH_HEALTHCHECK = [name for name, service in SERVICES.items() if "healthcheck" in service]


def healthcheck(name: str) -> list[str]:
    """Return the command of a service's health check."""
    form, *words = SERVICES[name]["healthcheck"]["test"]
    assert form == "CMD"
    return words


def test_the_compose_file_is_valid_by_the_compose_specification() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    problems = jsonschema.Draft202012Validator(schema).iter_errors(compose())
    assert [f"{problem.json_path}: {problem.message}" for problem in problems] == []


def test_the_specification_refuses_what_it_does_not_know() -> None:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    document = {"services": {"worker": {"image": "batchq", "scale_to": 3}}}
    assert not jsonschema.Draft202012Validator(schema).is_valid(document)


def test_the_compose_file_runs_a_server_a_scheduler_and_workers() -> None:
    assert set(SERVICES) == {"users", "valkey", "scheduler", "client", *NODES}
    assert len(NODES) == 2


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


def test_every_long_running_service_has_a_healthcheck() -> None:
    long_running = {name for name, service in SERVICES.items() if service["restart"] != "no"}
    assert long_running == set(WITH_HEALTHCHECK)


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_runs_as_root(name: str) -> None:
    assert SERVICES[name]["user"] not in {"", "root", "0", "0:0"}


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_publishes_a_port(name: str) -> None:
    assert "ports" not in SERVICES[name]
    assert SERVICES[name].get("network_mode") in (None, "none")


def test_all_services_wait_for_a_healthy_server() -> None:
    for name in OURS:
        assert SERVICES[name]["depends_on"]["valkey"] == {"condition": "service_healthy"}


def test_no_service_is_the_servers_default_user() -> None:
    for name in OURS:
        assert SERVICES[name]["environment"] == {"BATCHQ_REDIS_URL_FILE": f"/users/{name}/url"}
    of_nodes = dict.fromkeys(NODES, "worker")
    assert {"scheduler": "scheduler", "client": "operator", **of_nodes} == ROLES


def test_each_container_is_given_its_own_user_and_no_other() -> None:
    for name in OURS:
        assert SERVICES[name]["volumes"] == [f"{name}-user:/users/{name}:ro"]
    server = [volume for volume in SERVICES["valkey"]["volumes"] if "user" in volume]
    assert server == ["server-users:/users/server:ro"]
    made = {f"{name}-user:/users/{name}" for name in OURS}
    assert set(SERVICES["users"]["volumes"]) == made | {"server-users:/users/server"}


def test_a_nodes_name_is_that_of_its_user() -> None:
    for name in NODES:
        assert SERVICES[name]["command"] == ["worker", "--name", name]


def test_the_users_exist_before_the_server_starts() -> None:
    waits = SERVICES["valkey"]["depends_on"]["users"]
    assert waits == {"condition": "service_completed_successfully"}
    words = SERVICES["valkey"]["command"]
    assert words[words.index("--aclfile") + 1] == "/users/server/users.acl"
    assert SERVICES["users"]["depends_on"] == {}


def test_the_image_has_a_folder_for_each_user() -> None:
    # A new volume takes the owner of the folder in the image.
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert 'for name in server scheduler client $(seq -f "node-%g" 16)' in dockerfile


def test_the_server_persists_writes_and_never_evicts_keys() -> None:
    words = SERVICES["valkey"]["command"]
    options = dict(zip(words[1::2], words[2::2], strict=True))
    assert options["--appendonly"] == "yes"
    assert options["--maxmemory-policy"] == "noeviction"
    assert "valkey-data:/data" in SERVICES["valkey"]["volumes"]
