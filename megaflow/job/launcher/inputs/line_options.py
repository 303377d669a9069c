"""The options of `--lines PATH?OPTIONS`: the order in which files are read, and their encoding.

`?` is also a character of globs and file names. So a path that exists is taken literally, and the last `?` begins
options only if all of them are known.
"""

import os
from typing import Final

from megaflow.errors import UsageError, similar
from megaflow.job.formats.text_encoding import parse_encoding
from megaflow.quick_dataclass import dataclass

UNORDERED: Final = "unordered"  # the program needs no order
ORDERED: Final = "ordered-by=name"  # files are begun in the order of their names
NATURAL: Final = "ordered-by=natural"  # the same, and digits in names count as numbers
ENCODING: Final = "encoding="
EXAMPLE: Final = "encoding=latin-1"


@dataclass(frozen=True, slots=True)
class LineOptions:
    """The options of one input of lines."""

    order: str = ""  # UNORDERED, ORDERED, NATURAL or nothing
    encoding: str = ""  # Python's name; "": UTF-8, or the encoding of a byte order mark


def split_options(spec: str) -> tuple[str, LineOptions]:
    """Return a path and its options. Raises UsageError for an unknown encoding, and for two orders or encodings.

    >>> split_options("logs/*?ordered-by=name&encoding=latin-1")
    ('logs/*', LineOptions(order='ordered-by=name', encoding='iso8859-1'))
    >>> split_options("books/?.txt")
    ('books/?.txt', LineOptions(order='', encoding=''))
    """
    path, mark, text = spec.rpartition("?")
    given = text.split("&")
    if not mark or os.path.exists(spec) or not all(map(_is_known, given)):
        return spec, LineOptions()
    orders = [each for each in given if not each.startswith(ENCODING)]
    encodings = [each.removeprefix(ENCODING) for each in given if each.startswith(ENCODING)]
    if len(orders) > 1 or len(encodings) > 1:
        raise UsageError(f"--lines {spec}: give one order and one encoding, as in ?{UNORDERED}&{EXAMPLE}.")
    try:
        encoding = parse_encoding(encodings[0]) if encodings else ""
    except UsageError as error:
        raise UsageError(f"--lines {spec}: {error}") from None
    return path, LineOptions("".join(orders), encoding)


def _is_known(option: str) -> bool:
    return option in (UNORDERED, ORDERED, NATURAL) or option.startswith(ENCODING)


def _is_meant(name: str) -> bool:
    """Return whether a user who wrote this name probably meant the option `encoding`."""
    option = ENCODING[:-1]
    is_begun = len(name) > 1 and option.startswith(name)
    return is_begun or name == "charset" or bool(similar(name, [option]))


def options_meant(path: str) -> str:
    """Return a path with its options corrected to similar known ones; "" if an option is like none of them.

    >>> options_meant("a.txt?unorderd"), options_meant("a.txt?enc=cp1252")
    ('a.txt?unordered', 'a.txt?encoding=cp1252')
    >>> options_meant("a.txt?Encoding=latin-1&un-ordered"), options_meant("b?c.txt")
    ('a.txt?encoding=latin-1&unordered', '')
    """
    body, mark, text = path.rpartition("?")
    meant = []
    for option in text.split("&") if mark else ():
        name, sign, value = option.partition("=")
        if sign and _is_meant(name.lower()):
            meant.append(f"{ENCODING}{value}")
        else:
            meant += filter(None, [similar(option, [UNORDERED, ORDERED, NATURAL])])
    return f"{body}?{'&'.join(meant)}" if mark and len(meant) == text.count("&") + 1 else ""
