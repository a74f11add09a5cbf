"""Ways to damage a record, and the keys of each kind's records."""

from __future__ import annotations

from batchq.api.objects import KINDS

HUGE = b"9" * 400
DEEP = b"[" * 200_000

#: Bytes that no decoder accepts, by what is wrong with them.
DAMAGES: dict[str, bytes] = {
    "garbage": b"garbage",
    "empty": b"",
    "list": b"[]",
    "not a number": b"NaN",
    "bytes": b"\xff\xfe\x00",
    "huge": HUGE,
    "deep": DEEP,
}


def damaged_object(kind: str, key: str, damage: str) -> bytes:
    """Return an object with that damage, otherwise as whole as possible."""
    space, _, name = key.rpartition("/")
    meta = b'{"metadata":{"name":"%s","namespace":"%s","uid":"%s"%s},"spec":%s%s}'

    def made(*, in_meta: bytes = b"", spec: bytes = b"{}", rest: bytes = b"") -> bytes:
        whole = meta % (name.encode(), space.encode(), key.encode(), in_meta, spec, rest)
        if kind == "Pod":
            whole = whole.replace(b'"spec":{', b'"spec":{"podGroup":"a","task":"t",')
            whole = whole.replace(b",}", b"}")
        return whole

    match damage:
        case "truncated":
            return made()[:-5]
        case "bytes inside":
            return made(in_meta=b',"labels":{"a":"\xff"}')
        case "huge inside":
            return made(in_meta=b',"revision":' + HUGE)
        case "deep inside":
            return made(rest=b',"unknown":' + DEEP)
        case "wrong type inside":
            return made(spec=b"[]")
        case "another name":
            return made().replace(b'"name":"', b'"name":"not-').replace(b'"uid":"', b'"uid":"not-')
        case _:
            return DAMAGES[damage]


OBJECT_DAMAGES = (
    *DAMAGES,
    *("truncated", "bytes inside", "huge inside", "deep inside", "wrong type inside"),
    "another name",
)

#: The key of each kind under which a record is damaged.
PLACES = {
    kind: "default/poison" if kind in ("PodGroup", "ResourceQuota") else "poison" for kind in KINDS
}
