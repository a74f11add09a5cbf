"""Tests of a pod's output: a bounded local file, and a bounded buffer on the way to the store."""

from __future__ import annotations

from pathlib import Path

from batchq.worker.workhorse.reporter import LogFile, LogStream, PodLog


def test_the_file_keeps_the_newest_output_within_its_limit(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "a.log", limit_bytes=100)
    for number in range(100):
        file.write(f"{number:09}\n".encode())
    file.close()
    kept = (tmp_path / "a.log.1").read_bytes() + (tmp_path / "a.log").read_bytes()
    assert 50 <= len(kept) <= 100
    assert kept.splitlines()[-1] == b"000000099"
    assert kept.splitlines()[0] == b"000000090"


def test_a_write_larger_than_the_limit_leaves_its_end(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "a.log", limit_bytes=100)
    file.write(b"x" * 1000 + b"end")
    file.close()
    assert (tmp_path / "a.log").read_bytes().endswith(b"end")
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 100


def test_a_full_disk_is_noted_once_and_the_stream_continues() -> None:
    stream = LogStream()
    log = PodLog(LogFile(Path("/dev/full")), stream)
    log.write("stdout", b"one\n")
    log.write("stdout", b"two\n")
    log.close()
    note = b"[batchq: the output could not be kept in /dev/full: No space left on device]\n"
    assert drained(stream) == [("stdout", b"one\n"), ("stderr", note), ("stdout", b"two\n")]
    assert log.trouble == "the output could not be kept in /dev/full: No space left on device"


def test_a_folder_that_cannot_be_created_is_noted(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    log = PodLog(LogFile(tmp_path / "logs" / "a.log"), LogStream())
    log.write("stdout", b"anything")
    assert "could not be kept" in log.trouble


def test_consecutive_writes_to_one_stream_share_a_chunk() -> None:
    stream = LogStream()
    stream.write("stdout", b"a")
    stream.write("stdout", b"b")
    stream.write("stderr", b"c")
    stream.write("stdout", b"d")
    assert drained(stream) == [("stdout", b"ab"), ("stderr", b"c"), ("stdout", b"d")]


def test_a_chunk_is_at_most_64_kib() -> None:
    stream = LogStream()
    stream.write("stdout", b"x" * 150_000)
    assert [len(data) for _, data in drained(stream)] == [65_536, 65_536, 18_928]


def test_a_flood_leaves_the_newest_mebibyte_and_a_note_of_what_is_missing() -> None:
    stream = LogStream()
    for _ in range(48):
        stream.write("stdout", b"x" * 65_536)
    stream.write("stdout", b"the end")
    chunks = drained(stream)
    assert chunks[0] == ("stderr", b"\n[batchq: 2162688 bytes of output left out here]\n")
    assert chunks[-1] == ("stdout", b"the end")
    assert sum(len(data) for _, data in chunks[1:]) == 983_047


def test_single_bytes_to_alternating_streams_do_not_fill_the_memory() -> None:
    stream = LogStream()
    for number in range(100_000):
        stream.write("stdout" if number % 2 else "stderr", b"x")
    chunks = drained(stream)
    assert chunks[0] == ("stderr", b"\n[batchq: 91872 bytes of output left out here]\n")
    assert len(chunks) == 8_129


def test_a_chunk_that_could_not_be_sent_is_the_first_again() -> None:
    stream = LogStream()
    stream.write("stdout", b"first")
    stream.write("stderr", b"second")
    chunk = stream.take()
    assert chunk is not None
    stream.put_back(*chunk)
    assert drained(stream) == [("stdout", b"first"), ("stderr", b"second")]


def drained(stream: LogStream) -> list[tuple[str, bytes]]:
    chunks = []
    while (chunk := stream.take()) is not None:
        chunks.append(chunk)
    return chunks
