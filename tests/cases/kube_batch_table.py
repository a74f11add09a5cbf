"""The entries of all of kube-batch's cases, in the order of the page."""

from __future__ import annotations

from tests.cases import (
    kube_batch_e2e,
    kube_batch_enqueue,
    kube_batch_probes_d,
    kube_batch_probes_p,
    kube_batch_requests,
    kube_batch_shares,
    kube_batch_values,
)
from tests.cases.kube_batch_entry import Entry

TABLE: tuple[Entry, ...] = (
    *kube_batch_requests.ENTRIES,
    *kube_batch_probes_p.ENTRIES,
    *kube_batch_probes_d.ENTRIES,
    *kube_batch_e2e.ENTRIES,
    *kube_batch_enqueue.ENTRIES,
    *kube_batch_shares.ENTRIES,
    *kube_batch_values.ENTRIES,
)
