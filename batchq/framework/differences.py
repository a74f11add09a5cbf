"""What two snapshots differ in: found by what is not the very same object in both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from batchq.api.objects import Pod, PodGroup
from batchq.framework.rows import ByUid, Rows


def groups_changed(
    former: Sequence[PodGroup], now: Sequence[PodGroup]
) -> Iterator[tuple[PodGroup | None, PodGroup | None]]:
    """(before, now) of each group whose record is not the very same."""
    if isinstance(former, Rows) and isinstance(now, Rows):
        for _, old, new in now.differences(former):
            yield old, new
        return
    if former is now:
        return
    before = {record.metadata.uid: record for record in former}
    for record in now:
        old = before.pop(record.metadata.uid, None)
        if old is not record:
            yield old, record
    for record in before.values():
        yield record, None


def pods_changed(
    former: Mapping[str, tuple[Pod, ...]], now: Mapping[str, tuple[Pod, ...]]
) -> Iterator[str]:
    """The uids of the groups whose pods are not the very same."""
    if former is now:
        return
    if isinstance(former, ByUid) and isinstance(now, ByUid):
        yield from (uid for uid, _, _ in now.rows.differences(former.rows))
        return
    for uid in dict.fromkeys((*former, *now)):
        if former.get(uid, ()) is not now.get(uid, ()):
            yield uid
