"""The format of a file, by its first bytes: compressed text, text in UTF-16 or UTF-32, or a named binary format.

A name proves nothing: `data.csv` may be compressed, and what a browser has saved as `data.csv.gz` is often plain text.
So these functions look at content alone. They take the first HEAD_BYTES of a file, or of a decompressed text.

1. A format is recognized only by bytes that no line of text begins with. A short mark made of letters alone must be
   followed by bytes that text does not have.
2. Any other file is taken for text. The strict decoder then finds the first byte that is not.
"""

import re
from typing import Final

from megaflow.quick_dataclass import dataclass

HEAD_BYTES: Final = 4096
"""Enough for all marks, and for the first kilobytes of a compressed text."""


@dataclass(frozen=True, slots=True)
class BinaryFormat:
    """A format that has no lines."""

    name: str  # with its article
    remedy: str  # one sentence; {path} stands for the file, quoted
    is_text: bool = False  # in an encoding that has no mark


UNPACK: Final = "Unpack it, and name the files inside it."
PIPE: Final = "Unpack it into a pipe: {command} {{path}} | megaflow run … --lines -"
SPARK: Final = "Read it with Spark: --rows NAME=spark:{kind}:PATH, and flow.rows(NAME) in the program."
CONVERT: Final = "Convert it to text first."

COMPRESSED: Final[tuple[tuple[str, re.Pattern[bytes]], ...]] = (
    ("gzip", re.compile(rb"\x1f\x8b\x08")),
    ("bzip2", re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)")),
    ("Zstandard", re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18")),
    ("xz", re.compile(rb"\xfd7zXZ\x00")),
)
MARKS: Final = (
    ("utf-32", b"\xff\xfe\x00\x00"),  # before UTF-16, whose mark it begins with
    ("utf-32", b"\x00\x00\xfe\xff"),
    ("utf-16", b"\xff\xfe"),
    ("utf-16", b"\xfe\xff"),
)

EXCEL: Final = BinaryFormat("an Excel workbook", "Save its sheet as CSV (UTF-8), and read that.")
OTHERS: Final[tuple[tuple[bytes, BinaryFormat], ...]] = tuple(
    (mark, BinaryFormat(name, remedy))
    for mark, name, remedy in (
        (rb"PAR1\x15|PARE\x15", "a Parquet file", SPARK.format(kind="parquet")),
        (rb"ORC(?=.{0,16}[\x00-\x08\x0e-\x1f])", "an ORC file", SPARK.format(kind="orc")),
        (rb"Obj\x01", "an Avro file", SPARK.format(kind="avro")),
        (rb"ARROW1\x00\x00|FEA1\x00", "an Arrow or Feather file", "Write it as CSV or JSON lines first."),
        (rb"SQLite format 3\x00", "a SQLite database",
         "Read its rows with megaflow.connect.QuerySource, and flow.read in the program."),
        (rb"PK(?:\x03\x04|\x05\x06|\x07\x08)", "a ZIP archive", PIPE.format(command="unzip -p")),
        (rb".{257}ustar(?:  )?\x00", "a tar archive", PIPE.format(command="tar -xOf")),
        (rb"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", UNPACK),
        (rb"Rar!\x1a\x07", "a RAR archive", UNPACK),
        (rb"\x04\x22\x4d\x18", "compressed by LZ4", PIPE.format(command="lz4 -dc")),
        (rb"\xff\x06\x00\x00sNaPpY", "compressed by Snappy", "Decompress it, and read its text."),
        (rb"LZIP\x01", "compressed by lzip", PIPE.format(command="lzip -dc")),
        (rb"\x89LZO\x00\r\n\x1a\n", "compressed by lzop", PIPE.format(command="lzop -dc")),
        (rb"\x5d\x00\x00.{2}\xff{8}", "compressed by LZMA", PIPE.format(command="xz --format=lzma -dc")),
        (rb"\x1f[\x9d\xa0]", "compressed by compress", PIPE.format(command="zcat")),
        (rb"%PDF-\d", "a PDF document", CONVERT),
        (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a document of Microsoft Office", "Save it as CSV or text first."),
        (rb"\x89HDF\r\n\x1a\n", "an HDF5 file", CONVERT),
        (rb"CDF[\x01\x02\x05]", "a NetCDF file", CONVERT),
        (rb"\x93NUMPY", "an array of NumPy", "Write it with numpy.savetxt first."),
        (rb"\x80[\x02-\x05][\x95c\x8c}\](\x4b\x58]", "a pickle of Python", CONVERT),
        (rb".{8}DUCK[\x00-\x7f]\x00", "a DuckDB database", "Export its tables as CSV first."),
        (rb"PGDMP[\x00-\x08]", "a dump of PostgreSQL", "Dump it as text, or as CSV by COPY."),
        (rb"SEQ[\x04-\x06]", "a Hadoop SequenceFile", CONVERT),
        (rb"\$FL[23]@\(#\)", "a file of SPSS", "Save it as CSV first."),
        (rb"\x00{12}\xc2\xea\x81\x60", "a data set of SAS", "Export it as CSV first."),
        (rb"<stata_dta><header>", "a data set of Stata", "Export it as CSV first."),
        (rb"(?:\xd4\xc3\xb2\xa1|\xa1\xb2\xc3\xd4|\n\r\r\n.{4}(?:\x1a\x2b\x3c\x4d|\x4d\x3c\x2b\x1a))",
         "captured network packets", "Print them as text first: tcpdump -r {path} | megaflow run … --lines -"),
        (rb"\x7fELF|MZ(?=.{0,500}\x00\x00)|\xca\xfe\xba\xbe\x00|\xcf\xfa\xed\xfe", "a program", CONVERT),
        (rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|GIF8[79]a|II\*\x00|MM\x00\*", "an image", CONVERT),
        (rb"RIFF.{4}(?:WAVE|AVI |WEBP)|OggS\x00|fLaC\x00|ID3[\x02-\x04]|\x00\x00.{2}ftyp|\x1a\x45\xdf\xa3",
         "a file of sound or pictures", CONVERT),
    )
)  # fmt: skip
BINARY: Final = tuple((re.compile(mark, re.DOTALL), found) for mark, found in OTHERS)
WORKBOOK: Final = re.compile(rb"\[Content_Types\]\.xml|xl/|_rels/\.rels|docProps/")
UTF_16_TEXT: Final = "text in UTF-16 without a byte order mark"
NULS_MIN: Final = 0.4
"""Share of the bytes at even, or at odd places, that are NUL in UTF-16 text of mostly ASCII or Latin letters."""


def compression_of(head: bytes) -> str:
    r"""Return how a file is compressed that begins with these bytes; "" if it is not, or in a way that is not read.

    >>> compression_of(b"\x1f\x8b\x08\x00"), compression_of(b"BZhang was here")
    ('gzip', '')
    """
    return next((name for name, mark in COMPRESSED if mark.match(head)), "")


def encoding_of(head: bytes) -> str:
    r"""Return the encoding that a byte order mark names, but for that of UTF-8; "" if there is none.

    >>> encoding_of(b"\xff\xfea\x00"), encoding_of(b"\xff\xfe\x00\x00"), encoding_of(b"\xef\xbb\xbfa")
    ('utf-16', 'utf-32', '')
    """
    return next((encoding for encoding, mark in MARKS if head.startswith(mark)), "")


def binary_of(head: bytes) -> BinaryFormat | None:
    r"""Return the binary format of what begins with these bytes; None if it may be text.

    >>> binary_of(b"PK\x03\x04\x14\x00").name, binary_of(b"PK\tname\n"), binary_of(b"MZ,3\n"), binary_of(b"ORC,3\n")
    ('a ZIP archive', None, None, None)
    """
    for mark, found in BINARY:
        if mark.match(head):
            return EXCEL if found.name == "a ZIP archive" and WORKBOOK.search(head) else found
    if half := utf_16_half(head):
        return BinaryFormat(UTF_16_TEXT, f"Name its encoding: add ?encoding={half} to the path.", True)
    return None


def utf_16_half(head: bytes) -> str:
    r"""Return the encoding of UTF-16 text without a byte order mark, as its NULs tell; "" if it is not that.

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
