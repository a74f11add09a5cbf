"""Builders for admission checks, and for queues that require them."""

from __future__ import annotations

from msgspec import structs

from batchq.api.objects import (
    AdmissionCheck,
    AdmissionCheckSpec,
    Metadata,
    Queue,
    QueueSpec,
)


def a_check(name: str = "approval", controller: str = "boss", **spec: object) -> AdmissionCheck:
    written = structs.replace(AdmissionCheckSpec(controller_name=controller), **spec)
    return AdmissionCheck(metadata=Metadata(name=name), spec=written)


def asking(name: str, *checks: str, **spec: object) -> Queue:
    written = structs.replace(QueueSpec(admission_checks=checks), **spec)
    return Queue(metadata=Metadata(name=name), spec=written)
