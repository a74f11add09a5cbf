"""quota (admissible): a namespace's ResourceQuotas, rules 1 and 2.

Refuses out of line: nobody else waits for a group that only its own namespace holds back. Woken
when a charge of the namespace falls or one of its quotas changes.
"""

from __future__ import annotations

from typing import ClassVar

from batchq.api.reasons import Verdict, Waiting
from batchq.api.transaction import namespace_scope
from batchq.core.pending.inadmissible import LiftedBy
from batchq.core.quota.ledger import title_of
from batchq.core.quota.limit_checks import claim_of, over_limit
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState
from batchq.plugins.common import never_fits


class Quota:
    name = "quota"
    #: While a limit is full it refuses, and in line if that limit is no namespace's.
    goes_by_limits = True
    #: Beside what never fits it refuses what the ledger's own limits do.
    adds_no_limit = True
    lifted_by: ClassVar[LiftedBy] = {Waiting.EXCEEDS_MAX_QUOTA: frozenset()}

    def admissible(self, session: Session, group: GroupState) -> list[Verdict]:
        scope = namespace_scope(group.namespace)
        hard = session.ledger.limits.get(scope)
        if not hard:
            return []
        return never_fits(
            group, hard, plugin=self.name, subject=title_of(scope), absent=None
        ) or over_limit(session, group, scope, claim_of(group), plugin=self.name)
