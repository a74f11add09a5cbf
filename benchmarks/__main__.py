"""`python -m benchmarks [NAME …]`: run all of them, or those named."""

from __future__ import annotations

import os
import sys
from importlib import import_module

ALL = ("placement", "backlog", "queues", "commits", "agents", "traces")

# Whoever runs them all has time for the longest, too.
if not sys.argv[1:]:
    os.environ.setdefault("BATCHQ_BENCH_MOST", "1000000")

for name in sys.argv[1:] or ALL:
    if name not in ALL:
        sys.exit(f"there is no benchmark {name!r}; there are: {', '.join(ALL)}")
    import_module(f"benchmarks.{name.replace('-', '_')}").main()
