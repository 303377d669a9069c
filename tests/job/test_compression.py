"""Compressed files are decompressed to the last byte, or refused with the place of the error."""

import bz2
import gzip
import importlib.util
import lzma
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from megaflow.errors import SourceError
from megaflow.job.files.splits import plan_splits
from megaflow.job.formats import compression
from megaflow.job.formats.compression import ZSTD_MODULES, CompressedText
from megaflow.job.formats.raw_file import PIECE_BYTES


def zstd(data: bytes) -> bytes:
    module = importlib.import_module(next(name for name in ZSTD_MODULES if has(name)))
    found: bytes = module.compress(data)
    return found


def has(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of its package
        return False


COMPRESS: list[tuple[str, Callable[[bytes], bytes]]] = [
    (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zst", zstd)
]  # fmt: skip
NAMES = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "Zstandard"}
formats = pytest.mark.parametrize(
    ("suffix", "compress"),
    [
        pytest.param(*each, marks=pytest.mark.skipif(not any(map(has, ZSTD_MODULES)), reason="no Zstandard here"))
        if each[0] == ".zst" else each for each in COMPRESS
    ],
)  # fmt: skip


def text_of(path: Path, data: bytes) -> bytes:
    """Return the content of a file with these bytes."""
    path.write_bytes(data)
    with open(path, "rb") as file:
        text = CompressedText(str(path), file.fileno(), len(data), NAMES[path.suffix])
        pieces = list(iter(text.next_piece, b""))
    assert all(len(piece) <= PIECE_BYTES for piece in pieces) and text.bytes_read == len(data)
    return b"".join(pieces)


@formats
def test_the_text_of_several_members_is_one_text(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    long = os.urandom(50_000) + b"x" * 300_000
    path = tmp_path / f"text{suffix}"
    for parts in ([b""], [b"a"], [b"a\n", b"", long, b"b"], [long] * 3):
        assert text_of(path, b"".join(map(compress, parts))) == b"".join(parts)
    assert text_of(path, compress(b"a") + bytes(200_000)) == b"a", "zeros are padding"
    assert text_of(path, b"") == b""


@formats
def test_what_is_cut_off_or_damaged_anywhere_is_an_error_that_says_where(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / f"text{suffix}"
    first, second = compress(b"one\n" * 500), compress(b"two\n" * 500)
    for length in (1, len(first) - 1, len(first) + 1, len(first + second) - 1):
        with pytest.raises(SourceError, match=rf"text{suffix}' is incomplete: it ends at byte {length}, "):
            text_of(path, (first + second)[:length])
    for bad in (first + b"plain text\n", b"plain text\n", first[:12] + bytes(8) + first[20:] + second):
        with pytest.raises(SourceError, match=rf"text{suffix}' is (damaged in bytes 0 to {len(bad)}|incomplete)"):
            text_of(path, bad)


@formats
def test_little_that_stands_for_much_takes_no_memory(
    tmp_path: Path, suffix: str, compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / f"text{suffix}"
    path.write_bytes(compress(b"\n" * 30_000_000))
    with open(path, "rb") as file:
        text = CompressedText(str(path), file.fileno(), path.stat().st_size, NAMES[suffix])
        tracemalloc.start()
        try:
            assert sum(map(len, iter(text.next_piece, b""))) == 30_000_000
            assert tracemalloc.get_traced_memory()[1] < 10_000_000
        finally:
            tracemalloc.stop()


def test_without_a_library_for_it_a_file_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "ZSTD_MODULES", ("no_such_module",))
    (tmp_path / "a.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    with pytest.raises(SourceError, match=r"a\.zst': Zstandard needs a library\. .*: pip install 'megaflow\[zstd\]'$"):
        plan_splits([str(tmp_path / "a.zst")])
