"""What becomes of everything that waits and runs on a live server, played in virtual time.

The live state is the beginning; from there on the real sessions decide, under the configuration
that the live scheduler goes by or under another one, and `comparing` lays such futures side by
side. Nothing is written to the server: whoever asks brings a snapshot.

    future = look_ahead(snapshot, scheduler, now_ms=now_ms)
    future.groups["default/train"].starts_at
"""

from batchq.lab.whatif.export import as_world
from batchq.lab.whatif.future import Future, Lasting, Stopped, WhatIf, compared
from batchq.lab.whatif.look_ahead import look_ahead

__all__ = ["Future", "Lasting", "Stopped", "WhatIf", "as_world", "compared", "look_ahead"]
