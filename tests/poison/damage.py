"""Ways in which a record can be damaged, and where records of each kind stand."""

from __future__ import annotations

from batchq.api.objects import KINDS

HUGE = b"9" * 400
DEEP = b"[" * 200_000

#: What no decoder can make a record of, by what is wrong with it.
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
    """An object with that damage, as far as there is a whole one around it."""
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

#: Under which key a record of each kind is poisoned.
PLACES = {
    kind: "default/poison" if kind in ("PodGroup", "ResourceQuota") else "poison" for kind in KINDS
}
