"""Assemble the tiles of `mandelbrot_tile.py` and write them as a PNG.

The one argument is the number of tiles. Prints the picture's path last.
"""

from __future__ import annotations

import math
import struct
import sys
import zlib
from array import array
from pathlib import Path

from mandelbrot_tile import MOST_STEPS, output_folder

HEADER_BYTES = 8


def palette() -> list[bytes]:
    """Return a colour for each number of steps: bands of blue, white and amber; black inside."""
    colours = []
    for step in range(MOST_STEPS):
        turn = 2 * math.pi * math.log2(step + 1) / 3.5
        shades = (math.cos(turn + 2.5), math.cos(turn + 2.95), math.cos(turn + 3.6))
        colours.append(bytes(round(127.5 * (1 + shade)) for shade in shades))
    return [*colours, bytes(3)]


def read_tile(path: Path) -> tuple[int, int, array[int]]:
    """Return width and height of the whole picture, and the steps of this tile's pixels."""
    data = path.read_bytes()
    width, height = struct.unpack_from("=2I", data)
    steps = array("H")
    steps.frombytes(data[HEADER_BYTES:])
    return width, height, steps


def png(width: int, height: int, rows: list[bytes]) -> bytes:
    """Return an 8-bit RGB image (PNG specification, section 5)."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    header = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    unfiltered = b"".join(b"\0" + row for row in rows)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            chunk(b"IDAT", zlib.compress(unfiltered, 9)),
            chunk(b"IEND", b""),
        )
    )


def main() -> None:
    tiles = int(sys.argv[1])
    folder = output_folder()
    colours = palette()
    rows: dict[int, bytes] = {}
    for index in range(tiles):
        path = folder / f"tile-{index}-of-{tiles}.bin"
        if not path.exists():
            sys.exit(f"tile {index + 1} of {tiles} is missing: there is no {path}")
        width, height, steps = read_tile(path)
        for place, y in enumerate(range(index, height, tiles)):
            pixels = steps[place * width : (place + 1) * width]
            rows[y] = b"".join(colours[step] for step in pixels)
        print(f"tile {index + 1} of {tiles} is in place", flush=True)
    picture = folder / "mandelbrot.png"
    picture.write_bytes(png(width, height, [rows[y] for y in sorted(rows)]))
    print(f"wrote {picture}")


if __name__ == "__main__":
    main()
