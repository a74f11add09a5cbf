"""Runs one agent: `python -m tests.worker.an_agent`, its settings as JSON in A_TEST_AGENT."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from batchq.errors import BatchqError
from batchq.worker.agent import Agent, AgentSettings


def main() -> int:
    settings = msgspec.json.decode(
        os.environ["A_TEST_AGENT"], type=AgentSettings, dec_hook=lambda _, text: Path(text)
    )
    try:
        return Agent(settings).run()
    except BatchqError as problem:
        sys.stderr.write(f"{problem.message}\n")
        return problem.exit_code


if __name__ == "__main__":
    sys.exit(main())
