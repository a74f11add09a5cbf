"""At most one consumer holds an external group, which is charged, after any sequence of events."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from batchq.api.transaction import Transaction
from batchq.client import changes
from batchq.client.changes import consumer_leases
from batchq.config import SchedulerConfig
from batchq.errors import Conflict
from batchq.lab.simulation.world import recount
from batchq.store.memory import MemoryStore
from tests.builders import a_queue
from tests.scheduler.conftest import Stack
from tests.scheduler.consumers import SECOND, external

KEY = "default/e"
TTL_S, GRACE_S = 20, 30

#: The events, repeated by their frequency.
VERBS = (
    *("claim", "claim", "renew", "renew", "run", "succeed", "fail", "release"),
    *("suspend", "resume", "resume", "turn", "turn", "turn", "time", "time", "time", "cancel"),
)
#: The next event: verb, consumer, and the seconds that pass.
HAPPENINGS = st.lists(
    st.tuples(st.sampled_from(VERBS), st.integers(0, 2), st.sampled_from((1, 5, 15, 30, 60))),
    min_size=10,
    max_size=80,
)


class Play:
    """One external group, three consumers that work as long as they may, and a scheduler."""

    def __init__(self) -> None:
        self.stack = Stack(MemoryStore(), SchedulerConfig())
        self.stack.apply(a_queue(capability={"cpu": 4}), external())
        #: Consumer -> its token, and until when it may still work: its time to live and the grace.
        self.works: dict[int, tuple[str, int]] = {}
        self.tokens: dict[int, str] = {}

    @property
    def now_ms(self) -> int:
        return self.stack.clock.at_ms

    def take(self, what: str, who: int, seconds: int) -> None:
        """Play one event; an event that the rules refuse has no effect."""
        store, now, token = self.stack.store, self.now_ms, self.tokens.get(who, "")
        match what:
            case "time":
                self.stack.clock.at_ms += seconds * SECOND
            case "turn":
                self.stack.until_idle()
            case "claim":
                made = consumer_leases.claim(
                    store, KEY, holder=f"w{who}", ttl_ms=TTL_S * SECOND,
                    secret=self.stack.ids.new_uid(), now_ms=now,
                )  # fmt: skip
                self.write(made.transaction)
                self.tokens[who] = made.token
                self.works[who] = (made.token, now + (TTL_S + GRACE_S) * SECOND)
            case "renew" if token:
                renewed = consumer_leases.renew(store, token, ttl_ms=None, now_ms=now)
                if renewed.transaction is not None:
                    self.write(renewed.transaction)
                    self.works[who] = (token, now + (TTL_S + GRACE_S) * SECOND)
            case "run" if token:
                self.write(consumer_leases.report(store, token, "running", now_ms=now))
            case "succeed" | "fail" if token:
                word: consumer_leases.Reported = "succeeded" if what == "succeed" else "failed"
                self.write(consumer_leases.report(store, token, word, now_ms=now))
                self.works.pop(who, None)
            case "release" if token:
                # A consumer that gives the group back has stopped before.
                self.works.pop(who, None)
                self.write(consumer_leases.release(store, token, now_ms=now))
            case "suspend":
                self.write(changes.suspend(store, KEY, now_ms=now))
            case "resume":
                self.write(changes.resume(store, KEY, now_ms=now))
            case "cancel" if seconds == 60:
                self.write(changes.cancel(store, KEY, now_ms=now))

    def write(self, transaction: Transaction | None) -> None:
        if transaction is not None:
            self.stack.commit(transaction)

    def check(self) -> None:
        """Check that at most one consumer works, that the group is then charged, and the sums."""
        working = [who for who, (_, until) in self.works.items() if self.now_ms < until]
        assert len(working) <= 1
        ledger = self.stack.store.ledger()
        assert ledger.get("queue:default", {}).get("cpu", 0) in ((4000,) if working else (0, 4000))
        assert recount(self.stack.store.charges()) == ledger


@given(HAPPENINGS)
def test_at_most_one_consumer_runs_a_group_which_is_charged_meanwhile(
    happenings: list[tuple[str, int, int]],
) -> None:
    play = Play()
    play.stack.until_idle()
    for what, who, seconds in happenings:
        with suppress(Conflict):
            play.take(what, who, seconds)
        play.check()


@given(HAPPENINGS)
def test_a_group_can_be_run_in_the_end_after_any_history(
    happenings: list[tuple[str, int, int]],
) -> None:
    play = Play()
    for what, who, seconds in happenings:
        with suppress(Conflict):
            play.take(what, who, seconds)
    with suppress(Conflict):
        play.take("resume", 0, 0)
    for _ in range(40):
        play.stack.clock.at_ms += 60 * SECOND
        play.stack.until_idle()
        with suppress(Conflict):
            play.take("claim", 0, 0)
            play.take("succeed", 0, 0)
        play.stack.until_idle()
        if play.stack.group("e").status.finished_at is not None:
            break
    assert play.stack.group("e").status.finished_at is not None
    assert play.stack.store.ledger() == {}
