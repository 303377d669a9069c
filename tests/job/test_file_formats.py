"""File formats are recognized by their first bytes, as their own libraries write them. Text never matches."""

import bz2
import gzip
import io
import lzma
import pickle
import sqlite3
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.job.formats.file_formats import COMPRESSED, OTHERS, binary_of, compression_of, encoding_of
from megaflow.job.formats.raw_file import HEAD_BYTES

TABLE = {"a": list(range(1000)), "b": ["x"] * 1000}


def zipped(name: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(name, "text")

    return write


def tarred(path: Path) -> None:
    with tarfile.open(path, "w") as file:
        file.addfile(tarfile.TarInfo("a.txt"), io.BytesIO())


def in_sqlite(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (a)")
    connection.close()


def by_arrow(module: str, **options: object) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        pyarrow = pytest.importorskip("pyarrow")
        library = pytest.importorskip(f"pyarrow.{module}")
        (library.write_feather if module == "feather" else library.write_table)(pyarrow.table(TABLE), path, **options)

    return write


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (zipped("a.txt"), "a ZIP archive"), (zipped("[Content_Types].xml"), "an Excel workbook"),
        (tarred, "a tar archive"), (in_sqlite, "a SQLite database"),
        (by_arrow("parquet"), "a Parquet file"), (by_arrow("parquet", use_dictionary=False), "a Parquet file"),
        (by_arrow("orc", compression="uncompressed"), "an ORC file"),
        (by_arrow("orc", compression="zstd"), "an ORC file"),
        (by_arrow("feather"), "an Arrow or Feather file"),
        (lambda path: path.write_bytes(pickle.dumps(TABLE)), "a pickle of Python"),
        (lambda path: path.write_bytes(b"Obj\x01\x04\x14avro.codec"), "an Avro file"),
        (lambda path: path.write_bytes(b"%PDF-1.7\n%"), "a PDF document"),
    ],
)  # fmt: skip
def test_binary_formats_are_known_by_name(write: Callable[[Path], object], name: str, tmp_path: Path) -> None:
    write(tmp_path / "file")
    found = binary_of((tmp_path / "file").read_bytes()[:HEAD_BYTES])
    assert found is not None and found.name == name and found.remedy.endswith((".", "-"))


@pytest.mark.parametrize(
    ("compress", "name"), [(gzip.compress, "gzip"), (bz2.compress, "bzip2"), (lzma.compress, "xz")]
)
def test_compressed_text_is_known_by_its_content(compress: Callable[[bytes], bytes], name: str) -> None:
    for text in (b"", b"a\n", b"text\n" * 10_000):
        assert compression_of(compress(text)[:HEAD_BYTES]) == name


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_a_byte_order_mark_names_the_encoding(encoding: str) -> None:
    for order in ("le", "be"):
        text = "\ufeffname,city\n".encode(f"{encoding}-{order}")
        assert encoding_of(text) == encoding
    assert encoding_of("\ufeffa\n".encode()) == ""


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_a_mark_is_refused_with_its_encoding(encoding: str) -> None:
    found = binary_of("name,city\r\nRené,Orléans\r\n".encode(encoding))
    assert found is not None and f"?encoding={encoding}" in found.remedy


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="".join(map(chr, range(32)))), max_size=600))
def test_text_is_taken_for_no_format(text: str) -> None:
    for data in (text.encode(), (text + "\n" + text).encode(), "".join(f"{text}\t{n}\n" for n in range(9)).encode()):
        assert not compression_of(data) and not encoding_of(data) and binary_of(data) is None


@pytest.mark.parametrize("word", ["PAR1", "ORC", "Obj", "PK", "MZ", "BZh9", "CDF", "SEQ", "GIF", "II*", "Rar!", "DUCK"])
def test_words_that_formats_begin_with_are_text(word: str) -> None:
    for text in (f"{word},1\n", f"{word}\tname\n{word}\t2\n", f"{word}\n", f"{word} is a word\r\n" * 99):
        assert not compression_of(text.encode()) and binary_of(text.encode()) is None


def test_marks_are_within_the_first_bytes() -> None:
    assert len(COMPRESSED) + len(OTHERS) > 30 and HEAD_BYTES >= 512
