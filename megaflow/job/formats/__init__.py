"""Formats: how the bytes of a file become records.

raw_file       the bytes of a file, whatever they mean, and hashes of the part that was read
compression    the text of compressed files
file_formats   recognizes formats by their first bytes
text_encoding  the compression and encoding of a file, and decoding
text_lines     the lines in text
record_format  the protocol of a format, and plain lines
line_records   records of several lines, and lines with their source
csv_format     CSV
csv_head       the header of a file
csv_parser     the rows after it
csv_types      types of columns
json_format    JSON lines
json_values    JSON arrays, and values over several lines
json_scanner   the values in a piece of text

A name below is loaded from its module when it is first used, so a job whose lines are text loads none of them. Its type
is in `__init__.pyi`.
"""

from megaflow.front_door import offer

_NAMES = {
    "megaflow.job.formats.csv_format": ("Csv",),
    "megaflow.job.formats.csv_types": ("ReadColumns",),
    "megaflow.job.formats.json_format": ("JsonLines",),
    "megaflow.job.formats.json_values": ("JsonValues",),
}  # module -> names that it offers

__getattr__, __dir__, __all__ = offer(globals(), _NAMES)
