"""The copy of a rotated log is recognized by the part already read, and reading continues there."""

import bz2
import gzip
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from megaflow.errors import SourceError
from megaflow.job.files.file_position import SAMPLE_BYTES, FilePosition, digest
from megaflow.job.files.rotated_copy import find_copy, unseen_copies
from megaflow.job.formats import compression

TEXT = b"".join(b"line %d\n" % number for number in range(20_000))


def seen(path: Path, offset: int, size: int = len(TEXT), text: bytes = TEXT) -> FilePosition:
    tail, head = text[:offset][-SAMPLE_BYTES:], text[:size][:SAMPLE_BYTES]
    return FilePosition(str(path), offset, digest(tail), size, digest(head))


def rest_of(position: FilePosition) -> bytes | None:
    copy = find_copy(position)
    if copy is None:
        return None
    rest = b"".join(iter(copy.read, b""))
    copy.close()
    return rest


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("offset", [0, 7, 255, 256, 70_000, len(TEXT)])
def test_the_rest_is_read_from_the_copy(compress: Callable[[bytes], bytes], offset: int, tmp_path: Path) -> None:
    (tmp_path / "app.log.1.gz").write_bytes(compress(TEXT))
    (tmp_path / "app.log").write_bytes(b"of today\n")
    assert rest_of(seen(tmp_path / "app.log", offset)) == TEXT[offset:]
    os.rename(tmp_path / "app.log.1.gz", tmp_path / "rotated")
    assert rest_of(seen(tmp_path / "app.log", offset)) == TEXT[offset:], "its content tells, not its name"


def test_what_was_added_since_the_last_look_is_read(tmp_path: Path) -> None:
    (tmp_path / "app.log.gz").write_bytes(gzip.compress(TEXT))
    assert rest_of(seen(tmp_path / "app.log", 7, 21)) == TEXT[7:]


@pytest.mark.parametrize("other", [b"other" + TEXT, TEXT.replace(b"line 9000\n", b"line x000\n"), TEXT[:60_000], b""])
def test_a_file_with_another_text_is_no_copy(other: bytes, tmp_path: Path) -> None:
    (tmp_path / "app.log.1.gz").write_bytes(gzip.compress(other))
    offset = TEXT.index(b"line 9001\n")
    assert rest_of(seen(tmp_path / "app.log", offset)) is None


def test_damaged_and_plain_files_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "app.log.1.gz").write_bytes(gzip.compress(TEXT)[:300])
    (tmp_path / "app.log.2").write_bytes(TEXT)
    (tmp_path / "app.log.3.gz").mkdir()
    assert rest_of(seen(tmp_path / "app.log", 70_000)) is None
    (tmp_path / "z.gz").write_bytes(gzip.compress(TEXT))
    assert rest_of(seen(tmp_path / "app.log", 70_000)) == TEXT[70_000:]


def test_a_namesake_is_taken_first(tmp_path: Path) -> None:
    for name, more in (("a.gz", b"a\n"), ("app.log.1.gz", b"b\n")):
        (tmp_path / name).write_bytes(gzip.compress(TEXT + more))
    assert rest_of(seen(tmp_path / "app.log", len(TEXT))) == b"b\n"


def test_a_format_that_this_python_cannot_read_stops_only_for_a_namesake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "ZSTD_MODULES", ())
    opened = len(os.listdir("/proc/self/fd"))
    (tmp_path / "other.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
    assert rest_of(seen(tmp_path / "app.log", 7)) is None
    (tmp_path / "z.gz").write_bytes(gzip.compress(TEXT))
    assert rest_of(seen(tmp_path / "app.log", 7)) == TEXT[7:]
    assert unseen_copies(str(tmp_path / "*"), [], 0.0) == [str(tmp_path / "z.gz")]
    os.rename(tmp_path / "other.zst", tmp_path / "app.log.1.zst")
    with pytest.raises(SourceError, match=r"app\.log\.1\.zst': Zstandard needs a library"):
        find_copy(seen(tmp_path / "app.log", 7))
    assert len(os.listdir("/proc/self/fd")) == opened


def test_of_a_file_that_was_empty_nothing_is_known(tmp_path: Path) -> None:
    (tmp_path / "app.log.gz").write_bytes(gzip.compress(TEXT))
    assert find_copy(FilePosition(str(tmp_path / "app.log"), 0, "", 0, "")) is None
    assert find_copy(FilePosition.of((str(tmp_path / "app.log"), 7, digest(TEXT[:7])))) is None
    assert find_copy(seen(tmp_path / "gone" / "app.log", 7)) is None
