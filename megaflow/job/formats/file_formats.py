"""Format of a file, by its first bytes: compressed text, text in UTF-16 or UTF-32, or a named binary format.

A name proves nothing: `data.csv` may be compressed, and a file that a browser saved as `data.csv.gz` is often plain
text. So these functions look only at the content: the first `raw_file.HEAD_BYTES` of a file or of a decompressed text.

1. A format is recognized only by bytes that no line of text begins with. After a short mark of letters alone, there
   must also be bytes that do not occur in text.
2. Any other file is taken for text. The strict decoder then finds the first byte that is not text.
3. A mark is compiled only when a file begins with a byte that the mark may begin with. Compiling all marks would add
   about three milliseconds to the start of a process.
"""

import re
from functools import cache
from typing import Final

from megaflow.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class BinaryFormat:
    """A format without lines."""

    name: str  # with its article
    remedy: str  # one sentence; {path} stands for the quoted file
    is_text: bool = False  # text in an encoding without a mark


UNPACK: Final = "Unpack it, and name the files inside it."
PIPE: Final = "Unpack it into a pipe: {command} {{path}} | megaflow run … --lines -"
SPARK: Final = "Read it with Spark: --rows NAME=spark:{kind}:PATH, and flow.rows(NAME) in the program."
CONVERT: Final = "Convert it to text first."

COMPRESSED: Final[tuple[tuple[bytes, bytes, str], ...]] = (
    (b"\x1f", rb"\x1f\x8b\x08", "gzip"),
    (b"B", rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)", "bzip2"),
    (b"\x28" + bytes(range(0x50, 0x60)), rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18", "Zstandard"),
    (b"\xfd", rb"\xfd7zXZ\x00", "xz"),
)
"""Bytes that the mark may begin with, the mark, and the format."""
MARKS: Final = (
    ("utf-32", b"\xff\xfe\x00\x00"),  # before UTF-16, whose mark it begins with
    ("utf-32", b"\x00\x00\xfe\xff"),
    ("utf-16", b"\xff\xfe"),
    ("utf-16", b"\xfe\xff"),
)

EXCEL: Final = BinaryFormat("an Excel workbook", "Save its sheet as CSV (UTF-8), and read that.")
OTHERS: Final[tuple[tuple[bytes, bytes, BinaryFormat], ...]] = tuple(
    (first, mark, BinaryFormat(name, remedy))
    for first, mark, name, remedy in (
        (b"P", rb"PAR1\x15|PARE\x15", "a Parquet file", SPARK.format(kind="parquet")),
        (b"O", rb"ORC(?=.{0,16}[\x00-\x08\x0e-\x1f])", "an ORC file", SPARK.format(kind="orc")),
        (b"O", rb"Obj\x01", "an Avro file", SPARK.format(kind="avro")),
        (b"AF", rb"ARROW1\x00\x00|FEA1\x00", "an Arrow or Feather file", "Write it as CSV or JSON lines first."),
        (b"S", rb"SQLite format 3\x00", "a SQLite database",
         "Read its rows with megaflow.connect.QuerySource, and flow.read in the program."),
        (b"P", rb"PK(?:\x03\x04|\x05\x06|\x07\x08)", "a ZIP archive", PIPE.format(command="unzip -p")),
        (b"", rb".{257}ustar(?:  )?\x00", "a tar archive", PIPE.format(command="tar -xOf")),
        (b"7", rb"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", UNPACK),
        (b"R", rb"Rar!\x1a\x07", "a RAR archive", UNPACK),
        (b"\x04", rb"\x04\x22\x4d\x18", "compressed by LZ4", PIPE.format(command="lz4 -dc")),
        (b"\xff", rb"\xff\x06\x00\x00sNaPpY", "compressed by Snappy", "Decompress it, and read its text."),
        (b"L", rb"LZIP\x01", "compressed by lzip", PIPE.format(command="lzip -dc")),
        (b"\x89", rb"\x89LZO\x00\r\n\x1a\n", "compressed by lzop", PIPE.format(command="lzop -dc")),
        (b"\x5d", rb"\x5d\x00\x00.{2}\xff{8}", "compressed by LZMA", PIPE.format(command="xz --format=lzma -dc")),
        (b"\x1f", rb"\x1f[\x9d\xa0]", "compressed by compress", PIPE.format(command="zcat")),
        (b"%", rb"%PDF-\d", "a PDF document", CONVERT),
        (b"\xd0", rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a document of Microsoft Office",
         "Save it as CSV or text first."),
        (b"\x89", rb"\x89HDF\r\n\x1a\n", "an HDF5 file", CONVERT),
        (b"C", rb"CDF[\x01\x02\x05]", "a NetCDF file", CONVERT),
        (b"\x93", rb"\x93NUMPY", "an array of NumPy", "Write it with numpy.savetxt first."),
        (b"\x80", rb"\x80[\x02-\x05][\x95c\x8c}\](\x4b\x58]", "a pickle of Python", CONVERT),
        (b"", rb".{8}DUCK[\x00-\x7f]\x00", "a DuckDB database", "Export its tables as CSV first."),
        (b"P", rb"PGDMP[\x00-\x08]", "a dump of PostgreSQL", "Dump it as text, or as CSV by COPY."),
        (b"S", rb"SEQ[\x04-\x06]", "a Hadoop SequenceFile", CONVERT),
        (b"$", rb"\$FL[23]@\(#\)", "a file of SPSS", "Save it as CSV first."),
        (b"\x00", rb"\x00{12}\xc2\xea\x81\x60", "a data set of SAS", "Export it as CSV first."),
        (b"<", rb"<stata_dta><header>", "a data set of Stata", "Export it as CSV first."),
        (b"\xd4\xa1\n", rb"(?:\xd4\xc3\xb2\xa1|\xa1\xb2\xc3\xd4|\n\r\r\n.{4}(?:\x1a\x2b\x3c\x4d|\x4d\x3c\x2b\x1a))",
         "captured network packets", "Print them as text first: tcpdump -r {path} | megaflow run … --lines -"),
        (b"\x7fM\xca\xcf", rb"\x7fELF|MZ(?=.{0,500}\x00\x00)|\xca\xfe\xba\xbe\x00|\xcf\xfa\xed\xfe",
         "a program", CONVERT),
        (b"\x89\xffGIM", rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|GIF8[79]a|II\*\x00|MM\x00\*", "an image", CONVERT),
        (b"ROfI\x00\x1a",
         rb"RIFF.{4}(?:WAVE|AVI |WEBP)|OggS\x00|fLaC\x00|ID3[\x02-\x04]|\x00\x00.{2}ftyp|\x1a\x45\xdf\xa3",
         "a file of sound or pictures", CONVERT),
    )
)  # fmt: skip
"""Bytes that the mark may begin with, b"" for any; the mark; and the format."""
WORKBOOK: Final = rb"\[Content_Types\]\.xml|xl/|_rels/\.rels|docProps/"
UTF_16_TEXT: Final = "text in UTF-16 without a byte order mark"
NULS_MIN: Final = 0.4
"""Least share of NULs among the bytes at even, or at odd, places of UTF-16 text in mostly ASCII or Latin letters."""


def compression_of(head: bytes) -> str:
    r"""Return the compression of a file with these first bytes. "" if there is none, or none that can be read.

    >>> compression_of(b"\x1f\x8b\x08\x00"), compression_of(b"BZhang was here")
    ('gzip', '')
    """
    first = head[:1]
    return next((name for firsts, mark, name in COMPRESSED if first and first in firsts and re.match(mark, head)), "")


def encoding_of(head: bytes) -> str:
    r"""Return the encoding that a byte order mark names, except that of UTF-8. "" if there is none.

    >>> encoding_of(b"\xff\xfea\x00"), encoding_of(b"\xff\xfe\x00\x00"), encoding_of(b"\xef\xbb\xbfa")
    ('utf-16', 'utf-32', '')
    """
    return next((encoding for encoding, mark in MARKS if head.startswith(mark)), "")


def binary_of(head: bytes) -> BinaryFormat | None:
    r"""Return the binary format of a file with these first bytes. None if it may be text.

    >>> binary_of(b"PK\x03\x04\x14\x00").name, binary_of(b"PK\tname\n"), binary_of(b"MZ,3\n"), binary_of(b"ORC,3\n")
    ('a ZIP archive', None, None, None)
    """
    for mark, found in _marks(head[:1]):
        if mark.match(head):
            return EXCEL if found.name == "a ZIP archive" and re.search(WORKBOOK, head) else found
    if half := utf_16_half(head):
        return BinaryFormat(UTF_16_TEXT, f"Name its encoding: add ?encoding={half} to the path.", True)
    return None


@cache
def _marks(first: bytes) -> list[tuple[re.Pattern[bytes], BinaryFormat]]:
    """Return the marks that may begin with this byte. b"" stands for no byte."""
    here = [(mark, found) for firsts, mark, found in OTHERS if first and (not firsts or first in firsts)]
    return [(re.compile(mark, re.DOTALL), found) for mark, found in here]


def utf_16_half(head: bytes) -> str:
    r"""Return the encoding of UTF-16 text without a byte order mark, judged by its NULs. "" if it is not UTF-16.

    >>> utf_16_half("name,city\n".encode("utf-16-le")), utf_16_half("name\n".encode("utf-16-be"))
    ('utf-16-le', 'utf-16-be')
    >>> utf_16_half(b"a\x00b\x00c,1,2,3\n")
    ''
    """
    even, odd = head[::2], head[1::2]
    if len(odd) < 4:
        return ""
    nuls = even.count(0) / len(even), odd.count(0) / len(odd)
    if nuls[0] == 0 and nuls[1] >= NULS_MIN:
        return "utf-16-le"
    return "utf-16-be" if nuls[1] == 0 and nuls[0] >= NULS_MIN else ""
