"""quota (admissible): a namespace's ResourceQuotas, rules 1 and 2.

Its refusals are out of line: a group that only its own namespace holds back does not hold back
others. A refused group is unparked when a charge of the namespace falls or one of its quotas
changes.
"""

from __future__ import annotations

from batchq.api.reasons import Verdict, Waiting
from batchq.api.transaction import namespace_scope
from batchq.core.extension import PluginTraits, RefusesBy
from batchq.core.quota.ledger import title_of
from batchq.core.quota.limit_checks import claim_of, never_fits, over_limit
from batchq.core.session.session import Session
from batchq.core.session.state import GroupState


class Quota:
    name = "quota"
    traits = PluginTraits(
        lifted_by={Waiting.EXCEEDS_MAX_QUOTA: frozenset()},
        refuses_by=RefusesBy.LEDGER,
    )

    def admissible(self, session: Session, group: GroupState) -> list[Verdict]:
        scope = namespace_scope(group.namespace)
        hard = session.ledger.limits.get(scope)
        if not hard:
            return []
        return never_fits(
            group, hard, plugin=self.name, subject=title_of(scope), absent=None
        ) or over_limit(session, group, (scope,), claim_of(group), plugin=self.name)
