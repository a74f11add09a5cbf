"""`python -m benchmarks [NAME …]`: run all of them, or those named."""

from __future__ import annotations

import os
import sys
from importlib import import_module

ALL = (
    "kueue",
    "backlog",
    "placement",
    "endtoend",
    "submission",
    "traces",
    "easynodes",
    "reclaim",
    "queues",
    "commits",
    "agents",
    "thousand",
    "flood",
)

if {"--help", "-h"} & set(sys.argv[1:]):
    names = ", ".join((*ALL, "kueue-large"))
    print(f"python -m benchmarks [NAME ...]; all of them, if none is named: {names}")
    sys.exit(0)

# Whoever runs them all has time for the longest, too.
if not sys.argv[1:]:
    os.environ.setdefault("BATCHQ_BENCH_MOST", "1000000")

for name in sys.argv[1:] or ALL:
    match name:
        case "kueue-large":
            import_module("benchmarks.kueue").main(["large-scale"])
        case _ if name in ALL:
            import_module(f"benchmarks.{name}").main()
        case _:
            names = ", ".join((*ALL, "kueue-large"))
            sys.exit(f"there is no benchmark {name!r}; there are: {names}")
