"""Runs one agent: `python -m tests.worker.an_agent`, with its settings as JSON in A_TEST_AGENT.

If A_TEST_AGENT_IS_RUNG is set, the agent checks its queue and claims only when it is notified. If
A_TEST_AGENT_IS_HASTY is set, its work-horses soon leave to it the processes they cannot kill. If
A_TEST_AGENT_IS_CURIOUS is set, the agent often checks the devices; if A_TEST_AGENT_IS_IMPATIENT is
set, its pods wait for devices for a second only. If A_TEST_AGENT_IS_WATCHFUL is set, it looks
every second for pods to enqueue again that were bound a second ago and did not arrive.
A_TEST_AGENT_LINGERS is for how many milliseconds it keeps idle work-horses.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec

from batchq.daemon import logs
from batchq.errors import BatchqError
from batchq.worker.agent import agent, wakeups
from batchq.worker.agent.agent import Agent, AgentSettings
from batchq.worker.agent.pod_states import Paces
from batchq.worker.agent.slots import Slots
from batchq.worker.workhorse import supervision

_NEVER_MS = 10**9


def main() -> int:
    # As `batchq worker` does: each line is one write, and the lines of work-horses do not mix.
    logs.configure()
    if "A_TEST_AGENT_IS_RUNG" in os.environ:
        wakeups.LOOK_MS = _NEVER_MS
        agent._PACES = Paces(check_first_ms=_NEVER_MS, check_max_ms=_NEVER_MS)
    if "A_TEST_AGENT_IS_HASTY" in os.environ:
        supervision._END_MS = 500
    if "A_TEST_AGENT_IS_CURIOUS" in os.environ:
        agent._DEVICES_MS = 100
    if "A_TEST_AGENT_IS_IMPATIENT" in os.environ:
        agent._PACES = Paces(devices_patience_ms=1_000)
    if "A_TEST_AGENT_IS_WATCHFUL" in os.environ:
        agent._PACES = Paces(bound_patience_ms=1_000)
        agent._RECONCILE_MS = 1_000
    if lingers := os.environ.get("A_TEST_AGENT_LINGERS"):
        Slots.end_idle.__kwdefaults__["after_ms"] = int(lingers)
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
