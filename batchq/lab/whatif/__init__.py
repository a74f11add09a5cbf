"""Play the live state on in virtual time, under the present configuration or others.

The live state is the start; from there, real sessions decide. `compared` puts such futures side by
side. Nothing is written to the server: the caller provides a snapshot.

    future = look_ahead(snapshot, scheduler, now_ms=now_ms)
    future.groups["default/train"].starts_at
"""

from batchq.lab.whatif.future import Future, Lasting, Stopped, WhatIf, compared
from batchq.lab.whatif.look_ahead import as_world, look_ahead

__all__ = ["Future", "Lasting", "Stopped", "WhatIf", "as_world", "compared", "look_ahead"]
