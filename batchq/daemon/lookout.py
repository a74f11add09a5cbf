"""What a scheduler lets others see of it: metrics and health over HTTP, for those who ask for it.

Without an address all this is off, and costs nothing: nothing listens, nothing is measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from http import HTTPStatus

from prometheus_client.exposition import choose_encoder

from batchq.assembly import assemble
from batchq.config.model import SchedulerConfig
from batchq.daemon.health import Health
from batchq.daemon.listener import Answer, Listener, listen, parse_address
from batchq.daemon.loop import Loop, Turn
from batchq.daemon.metrics import Metrics
from batchq.scheduler.cycle import CycleReport
from batchq.scheduler.scheduler import Scheduler
from batchq.store.outage import Outage

#: So many groups have their reasons written in one session. Each takes about a tenth of a
#: millisecond, and what comes in meanwhile and could start waits for the session to end.
WRITTEN_A_SESSION = 1_000


class Lookout:
    """Metrics, health, and the service that tells of both; a service itself.

    `address` is `[HOST:]PORT`, or None. Raises InvalidInput if nothing can listen there: the
    socket is open, and answers once it is started.
    """

    name = "lookout"

    def __init__(
        self,
        address: str | None = None,
        *,
        ending: Callable[[], bool] = lambda: False,
    ) -> None:
        self.health = Health(ending=ending)
        self.metrics = None if address is None else Metrics()
        self.listener: Listener | None = None
        if address is not None:
            self.listener = Listener(
                listen(parse_address(address)),
                {
                    "/metrics": self._metrics_page,
                    "/livez": lambda _: _verdict(self.health.why_not_live()),
                    "/readyz": lambda _: _verdict(self.health.why_not_ready()),
                },
            )

    # --- the service ---------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether anything of it runs."""
        return self.listener is not None and self.listener.alive

    def start(self) -> None:
        """Begin to answer."""
        if self.listener is not None:
            self.listener.start()

    def stop(self) -> None:
        """Stop answering."""
        if self.listener is not None:
            self.listener.stop()

    # --- what the daemon is put together with --------------------------------------------------

    def assemble(self, config: SchedulerConfig) -> Scheduler:
        """The scheduler that `config` describes, with a stopwatch if anybody looks at one."""
        scheduler = dataclasses.replace(assemble(config), most_written=WRITTEN_A_SESSION)
        if self.metrics is None:
            return scheduler
        return dataclasses.replace(scheduler, instrument=self.metrics.stopwatch)

    def reloaded(self, ok: bool) -> None:
        """A configuration was read anew; `ok`: it is right."""
        if self.metrics is not None:
            self.metrics.reloaded(ok)

    def observed(self, report: CycleReport) -> None:
        """A session is over, and committed; from the deciding thread."""
        if self.metrics is not None:
            self.metrics.observed(report)

    def watching(self, turn: Turn) -> Turn:
        """The same turn, with its ends noted."""
        if self.metrics is None:
            return turn
        return self.health.watching(self.metrics.watching(turn))

    def follow(
        self,
        *,
        loop: Loop,
        outage: Outage,
        epoch: Callable[[], int | None],
        revision: Callable[[], int | None],
        config_hash: Callable[[], str],
        unreadable: Callable[[], Mapping[str, int]],
        mended: Callable[[], int],
    ) -> None:
        """From now on, tell of these."""
        self.health.follow(loop, outage)
        if self.metrics is not None:
            self.metrics.follow(
                epoch=epoch,
                revision=revision,
                config_hash=config_hash,
                unreadable=unreadable,
                mended=mended,
                outage=outage,
            )

    def _metrics_page(self, accept: str) -> Answer:
        assert self.metrics is not None
        encode, content_type = choose_encoder(accept)
        body = encode(self.metrics.registry)
        return Answer(status=HTTPStatus.OK, body=body, content_type=content_type)


def _verdict(why_not: str) -> Answer:
    if why_not:
        return Answer(status=HTTPStatus.SERVICE_UNAVAILABLE, body=f"{why_not}\n".encode())
    return Answer(status=HTTPStatus.OK, body=b"ok\n")
