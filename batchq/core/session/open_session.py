"""Opens a session: the one place that knows all that a session is made of."""

from __future__ import annotations

from batchq.core.cache.scheduler_cache import SchedulerCache
from batchq.core.extension.points import PluginPlaces
from batchq.core.pending.inadmissible import OF_NODES, OF_SESSION, InadmissibleGroups
from batchq.core.placement.node_contact import refusal_to_bind
from batchq.core.session.session import SESSION, Session
from batchq.core.session.settings import Instrument, Settings
from batchq.core.session.snapshot import Snapshot


def open_session(
    snapshot: Snapshot,
    *,
    now_ms: int,
    settings: Settings,
    plugins: PluginPlaces,
    actions: tuple[str, ...] = (),
    carried: SchedulerCache | None = None,
    instrument: Instrument | None = None,
    parking: InadmissibleGroups | None = None,
) -> Session:
    """Return a session on a snapshot that has decided nothing yet.

    `carried` and `parking` are what the scheduler keeps from session to session; without them
    everything is built anew, and every group is asked about.
    """
    carried = carried or SchedulerCache()
    parking = parking or InadmissibleGroups()
    table = carried.panel(plugins, instrument, {SESSION: OF_SESSION, "nodes": OF_NODES})
    session = Session(
        snapshot,
        now_ms=now_ms,
        settings=settings,
        plugins=table,
        cache=carried,
        inadmissible=parking,
        actions=actions,
    )
    carried.divide_classes(session)
    session.nodes.binding_refused = refusal_to_bind(session)
    return session
