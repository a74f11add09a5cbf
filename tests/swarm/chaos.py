"""The strikes of a swarm: which process, when, and how; all drawn from one seed."""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import psutil

from tests.swarm.cast import Actor, Cast

#: How often each kind is drawn.
_WEIGHTS = {
    "work-horse killed": 8,
    "work-horse paused": 2,
    "agent killed": 5,
    "leader killed": 2,
    "follower killed": 2,
    "server killed": 2,
    "server paused": 1,
    "agent paused": 3,
    "leader paused": 2,
    "follower paused": 1,
}
#: Longer than a pod's lease, and than the time after which a silent node is given up.
_AGENT_PAUSE_S = (2.5, 6.0)
#: Longer than the leader's lease.
_SCHEDULER_PAUSE_S = (5.5, 8.0)
_AWAY_S = (0.1, 2.0)
#: A server is mostly back soon, and sometimes only after every lease has ended.
_SERVER_AWAY_MEAN_S, _SERVER_AWAY_MAX_S = 1.5, 8.0
_SERVER_PAUSE_S = (0.5, 6.0)


class Chaos:
    """Strikes one process after the other; `struck` counts the strikes. Uses the cast
    exclusively.
    """

    def __init__(self, cast: Cast, *, seed: int, every_s: float) -> None:
        self._cast = cast
        self._chance = random.Random(seed)
        self._every_s = every_s
        self._next_at = time.monotonic() + every_s
        self._order = itertools.count()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self.struck: Counter[str] = Counter()

    def turn(self) -> str:
        """Do what is due now; return the kind of the strike, or an empty text."""
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            heapq.heappop(self._later)[2]()
        if now < self._next_at:
            return ""
        self._next_at = now + self._chance.uniform(0.2, 1.8) * self._every_s
        kind = self._chance.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()))[0]
        if not self._strike(kind):
            # No such process exists now; draw another kind at once.
            self._next_at = now
            return ""
        self.struck[kind] += 1
        return kind

    def _strike(self, kind: str) -> bool:
        who, how = kind.split()
        if who == "server":
            return self._kill_server() if how == "killed" else self._pause_server()
        if who == "work-horse":
            return self._kill_horse() if how == "killed" else self._pause_horse()
        actor = self._pick(who)
        if actor is None or actor.pid is None or (how == "paused" and actor.is_paused):
            return False
        if how == "killed":
            self._cast.kill(actor, away_s=self._chance.uniform(*_AWAY_S))
        else:
            self._pause(actor, actor.pid)
        return True

    def _pick(self, who: str) -> Actor | None:
        if who == "agent":
            return self._chance.choice(self._cast.agents)
        leader = self._cast.leader()
        if who == "leader":
            return leader
        others = [actor for actor in self._cast.schedulers if actor is not leader]
        return self._chance.choice(others)

    def _pause(self, actor: Actor, pid: int) -> None:
        is_agent = actor in self._cast.agents
        for_s = self._chance.uniform(*(_AGENT_PAUSE_S if is_agent else _SCHEDULER_PAUSE_S))
        self._cast.pause(actor)
        later = (time.monotonic() + for_s, next(self._order), lambda: self._cast.resume(actor, pid))
        heapq.heappush(self._later, later)

    def _kill_horse(self) -> bool:
        horse = self._cast.horses(self._chance)
        if horse is None:
            return False
        try:
            horse.kill()
        except psutil.NoSuchProcess:
            return False
        return True

    def _pause_horse(self) -> bool:
        """Pause a work-horse, which then can neither renew its lease nor end its pod."""
        horse = self._cast.horses(self._chance)
        if horse is None:
            return False
        try:
            horse.suspend()
        except psutil.NoSuchProcess:
            return False

        def resume() -> None:
            with suppress(psutil.NoSuchProcess):
                horse.resume()

        for_s = self._chance.uniform(*_AGENT_PAUSE_S)
        heapq.heappush(self._later, (time.monotonic() + for_s, next(self._order), resume))
        return True

    def _kill_server(self) -> bool:
        if self._cast.server_pid is None:
            return False
        away_s = self._chance.expovariate(1 / _SERVER_AWAY_MEAN_S)
        self._cast.kill_server(away_s=min(_SERVER_AWAY_MAX_S, away_s))
        return True

    def _pause_server(self) -> bool:
        if self._cast.server_pid is None:
            return False
        self._cast.pause_server(for_s=self._chance.uniform(*_SERVER_PAUSE_S))
        return True
