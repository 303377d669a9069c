"""Bytes become the same text as with Python's own decoders. Other bytes are reported with their place, or counted."""

import codecs
import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import UsageError
from megaflow.job.formats.text_encoding import (
    NotText,
    ReplacedBytes,
    StreamDecoder,
    decode_counted,
    is_streamed,
    parse_encoding,
)

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x1b"), max_size=50)  # no half escape sequence
CUT_BY_LINES = ["latin-1", "cp1252", "ascii", "gb18030", "big5", "shift_jis", "euc_jp", "koi8-r", "mac-roman", "utf-8"]


@pytest.mark.parametrize("name", CUT_BY_LINES)
def test_line_ends_are_single_bytes_where_lines_are_cut_first(name: str) -> None:
    encoding = parse_encoding(name)
    assert not is_streamed(encoding)
    characters = "".join(chr(number) for number in range(0x10000) if not 0xD800 <= number < 0xE000 and number > 13)
    data = characters.encode(encoding, "ignore")
    assert b"\n" not in data and b"\r" not in data and "\n\r".encode(encoding) == b"\n\r"


@pytest.mark.parametrize("name", ["utf-16", "utf-16-le", "utf_32", "cp037", "cp500", "iso2022_jp", "hz"])
def test_other_encodings_are_decoded_as_a_stream(name: str) -> None:
    assert is_streamed(parse_encoding(name))


@pytest.mark.parametrize("name", ["latin-99", "", "rot13", "base64", "idna", "unicode_escape", "utf-7", "a\0b"])
def test_encodings_that_no_file_of_lines_has_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"Give one such as latin-1"):
        parse_encoding(name)


@given(st.binary(max_size=60))
def test_replaced_text_is_that_of_the_standard_library(data: bytes) -> None:
    text, count = decode_counted(data, "utf-8")
    assert text == data.decode("utf-8", "replace")
    assert count == text.count("\ufffd") - data.count("\ufffd".encode())


def pieces_of(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)] + [b""]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "cp037", "iso2022_jp", "hz"])
@given(TEXTS, st.integers(1, 9))
def test_a_stream_is_decoded_in_whatever_pieces_it_comes(encoding: str, text: str, size: int) -> None:
    data = text.encode(encoding, "ignore")
    decoder = StreamDecoder(encoding, "strict")
    pieces = pieces_of(data, size)
    found = b"".join(decoder.feed(piece, index == len(pieces) - 1) for index, piece in enumerate(pieces))
    assert found.decode() == data.decode(encoding)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-32-be"])
@given(st.binary(max_size=80), st.integers(1, 9))
def test_a_fault_of_a_stream_follows_the_text_before_it(encoding: str, data: bytes, size: int) -> None:
    text, place = "", None
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        place, text = error.start, data[: error.start].decode(encoding)
    decoder, found = StreamDecoder(encoding, "strict"), b""
    pieces = [*pieces_of(data, size), b""]
    try:
        for index, piece in enumerate(pieces):
            found += decoder.feed(piece, index >= len(pieces) - 2)
    except NotText as error:
        assert error.position == place
    else:
        assert place is None
    assert found.decode() == text


def test_a_stream_says_whether_it_has_replaced_bytes() -> None:
    data = "a\n".encode("utf-16-le") + b"\x00\xd8" + "b\n".encode("utf-16-le")
    decoder = StreamDecoder("utf-16-le", "replace")
    assert decoder.feed(data[:4], False) == b"a\n" and not decoder.has_replaced
    assert decoder.feed(data[4:], True).decode() == "\ufffdb\n" and decoder.has_replaced


def test_an_error_about_bytes_survives_its_travels() -> None:
    error = NotText(b"\xe9", 17, "invalid continuation byte")
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert str(other) == str(error) == "byte 17 is 0xe9 (invalid continuation byte)"


def test_the_first_replaced_bytes_of_an_input_are_reported() -> None:
    told: list[str] = []
    replaced = ReplacedBytes(lambda about, text: told.append(text))
    for input, count in (("orders", 2), ("orders", 3), ("", 1)):
        replaced.note(input, count, "'a.csv'")
    assert replaced.counts == {"orders": 5, "": 1} and len(told) == 2 and told[0].startswith("'a.csv' has bytes")


def test_the_handler_leaves_encoding_alone() -> None:
    with pytest.raises(UnicodeEncodeError):
        "é".encode("ascii", "megaflow-replace")
    assert codecs.lookup_error("megaflow-replace")
