"""`python -m benchmarks.kueue [baseline] [large-scale] [--profile]`."""

from __future__ import annotations

import sys

from benchmarks.kueue.run import main

main(sys.argv[1:])
