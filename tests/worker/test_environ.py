"""Tests of the environment that a pod gets from its agent."""

from __future__ import annotations

import pytest

from batchq.worker.workhorse.process import base_environment


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_ACCESS_KEY_ID", "x"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("DATABASE_URL", "postgres://me:hunter2@db/x"),
        ("GITHUB_TOKEN", "x"),
        ("HTTPS_PROXY", "http://me:hunter2@proxy:3128"),
        ("MYSQL_PWD", "x"),
        ("OPENAI_APIKEY", "x"),
        ("PGPASSWORD", "x"),
        ("PIP_INDEX_URL", "https://:hunter2@pypi.example/simple"),
        ("SSH_AUTH_SOCK", "/tmp/agent"),
        ("borg_passphrase", "x"),
    ],
)
def test_a_variable_that_sounds_like_a_secret_is_not_passed_on(name: str, value: str) -> None:
    assert base_environment({name: value}, secrets=()) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GIT_AUTHOR_NAME", "me"),
        ("HTTP_PROXY", "http://proxy:3128"),
        ("LS_COLORS", "*.tar=01;31:*.tgz=01;31"),
        ("OLDPWD", "/home/me"),
        ("PWD", "/home/me"),
        ("REPOSITORY", "https://me@host/x:y"),
    ],
)
def test_a_variable_that_does_not_sound_like_a_secret_is_passed_on(name: str, value: str) -> None:
    assert base_environment({name: value}, secrets=()) == {name: value}
