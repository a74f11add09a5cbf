"""The scripts of the README's first example, which tests/e2e/test_run.py runs."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import yaml

EXAMPLES = Path(__file__).resolve().parents[2] / "conf" / "examples"


def run(script: str, *arguments: str, out: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a pod does: in its own folder, with its index in the environment."""
    return subprocess.run(
        [sys.executable, script, *arguments],
        cwd=EXAMPLES, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "MANDELBROT_OUT": str(out), "PYTHONDONTWRITEBYTECODE": "1", **env},
    )  # fmt: skip


def chunks(png: bytes) -> dict[bytes, bytes]:
    """Return the chunks of a PNG with the data of each kind joined; verify the checksums."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    found: dict[bytes, bytes] = {}
    at = 8
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        kind, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        (check,) = struct.unpack_from(">I", png, at + 8 + length)
        assert zlib.crc32(kind + data) == check
        found[kind] = found.get(kind, b"") + data
        at += 12 + length
    return found


def check_picture(png: bytes, width: int, height: int) -> None:
    """Check that a picture has this size, and shows the edge of the set."""
    found = chunks(png)
    assert list(found) == [b"IHDR", b"IDAT", b"IEND"]
    assert struct.unpack(">2I5B", found[b"IHDR"]) == (width, height, 8, 2, 0, 0, 0)
    pixels = zlib.decompress(found[b"IDAT"])
    assert len(pixels) == height * (1 + 3 * width)
    rows = [pixels[y * (1 + 3 * width) + 1 : (y + 1) * (1 + 3 * width)] for y in range(height)]
    colours = {row[x : x + 3] for row in rows for x in range(0, len(row), 3)}
    assert len(colours) > 100
    middle = rows[height // 2]
    assert middle[-3:] == b"\0\0\0"
    assert middle[:3] != b"\0\0\0"
    # Neighbouring rows come from different pods and are similar outside the set.
    assert abs(rows[height // 5][0] - rows[height // 5 + 1][0]) <= 16


def test_a_missing_tile_is_named(tmp_path: Path) -> None:
    done = run("mandelbrot_assemble.py", "4", out=tmp_path)
    assert done.returncode == 1
    assert done.stderr == (f"tile 1 of 4 is missing: there is no {tmp_path / 'tile-0-of-4.bin'}\n")


def test_an_index_outside_the_gang_is_refused(tmp_path: Path) -> None:
    done = run("mandelbrot_tile.py", out=tmp_path, BATCHQ_INDEX="4", BATCHQ_REPLICAS="4")
    assert done.returncode == 1
    assert done.stderr == "BATCHQ_INDEX is 4, which is not one of BATCHQ_REPLICAS=4 pods\n"
    assert list(tmp_path.iterdir()) == []


def test_the_manifest_runs_these_scripts_with_as_many_pods_as_tiles() -> None:
    render, assemble = yaml.safe_load_all(
        (EXAMPLES / "mandelbrot.yaml").read_text(encoding="utf-8")
    )
    (tile,) = render["spec"]["tasks"]
    (join,) = assemble["spec"]["tasks"]
    assert tile["template"]["command"] == ["python3", "mandelbrot_tile.py"]
    assert render["spec"]["minMember"] == tile["replicas"] == 4
    assert join["template"]["command"] == ["python3", "mandelbrot_assemble.py", "4"]
    assert assemble["spec"]["dependsOn"] == [{"name": "mandelbrot", "condition": "ok"}]
