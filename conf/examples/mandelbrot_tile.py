"""Compute one pod's rows of a picture of the Mandelbrot set.

Of N pods, pod i computes rows i, i+N, i+2N …, so that all have about the same to do, and writes
them to `tile-<i>-of-<N>.bin`: width, height, and per pixel how many steps it took to escape.
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
from array import array
from pathlib import Path

WIDTH, HEIGHT = 640, 480
CENTRE, PIXEL = complex(-0.7478, 0.1195), 0.024 / WIDTH
MOST_STEPS = 1000


def output_folder() -> Path:
    """Return the folder that all pods of this user share."""
    default = Path(tempfile.gettempdir()) / f"batchq-mandelbrot-{os.getuid()}"
    folder = Path(os.environ.get("MANDELBROT_OUT") or default)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def steps_to_escape(c: complex) -> int:
    """Return the steps of z ← z² + c until |z| > 2; MOST_STEPS if it stays."""
    x, y2 = c.real, c.imag * c.imag
    q = (x - 0.25) ** 2 + y2
    if q * (q + x - 0.25) <= 0.25 * y2 or (x + 1) ** 2 + y2 <= 0.0625:
        return MOST_STEPS  # in the cardioid or the disc left of it, most of the set
    z = 0j
    for step in range(MOST_STEPS):
        z = z * z + c
        if z.real * z.real + z.imag * z.imag > 4.0:
            return step
    return MOST_STEPS


def row(y: int) -> array[int]:
    """Return the steps of one row's pixels."""
    imaginary = CENTRE.imag + (HEIGHT / 2 - y) * PIXEL
    left = CENTRE.real - WIDTH / 2 * PIXEL
    return array("H", (steps_to_escape(complex(left + x * PIXEL, imaginary)) for x in range(WIDTH)))


def main() -> None:
    index = int(os.environ.get("BATCHQ_INDEX", "0"))
    replicas = int(os.environ.get("BATCHQ_REPLICAS", "1"))
    if not 0 <= index < replicas:
        sys.exit(f"BATCHQ_INDEX is {index}, which is not one of BATCHQ_REPLICAS={replicas} pods")
    folder = output_folder()
    mine = range(index, HEIGHT, replicas)
    rows = array("H")
    for done, y in enumerate(mine, start=1):
        rows.extend(row(y))
        if done % 30 == 0 or done == len(mine):
            print(f"tile {index + 1} of {replicas}: {done} of {len(mine)} rows", flush=True)
    tile = folder / f"tile-{index}-of-{replicas}.bin"
    # Renamed when complete, so that an interrupted pod leaves no partial tile.
    unfinished = folder / f"{tile.name}.{os.getpid()}"
    unfinished.write_bytes(struct.pack("=2I", WIDTH, HEIGHT) + rows.tobytes())
    unfinished.replace(tile)


if __name__ == "__main__":
    main()
