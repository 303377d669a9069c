"""Values in a piece of a JSON file's text: see the rules of `json_values`.

1. A text may end within a value. A value that fails near the end of the text may be whole with more text, so it waits.
2. A fault is placed where `json.JSONDecodeError` places it.
3. A text may also end within a value that would be whole with more text. Such a fault is open: see `is_unfinished`.
4. A `]` that closes nothing is a fault, and so is a `,` outside an array. But a text may begin within an array. So a
   `]` or `,` at its beginning is no fault, unless the caller passes `is_outside`.
"""

import json
import re
from typing import Any, Final, NamedTuple

BLANKS: Final = re.compile(r"[ \t\r\n]*")
TOKENS: Final = ("true", "false", "null", "NaN", "Infinity", "-Infinity")
CUT_ESCAPE: Final = re.compile(r"u[0-9a-fA-F]{0,4}")  # of a string
CUT_NUMBER: Final = re.compile(r"\.|[eE][+-]?")  # after a digit
TOKEN_CHARACTERS: Final = 16
"""Length of the longest token that the end of a text may cut: `-Infinity`, or two escapes of a surrogate pair."""
SCAN: Final = json.JSONDecoder().raw_decode
MEASURE: Final = json.JSONDecoder(parse_int=len).raw_decode  # for a number with too many digits


class Wrong(NamedTuple):
    """A fault in a text."""

    before: int  # number of records before it
    at: int  # character of the fault
    end: int  # character at which reading continues
    reason: str


class FoundValues(NamedTuple):
    """The records and faults of a text."""

    records: list[Any]
    ends: list[int]  # the character after each record
    wrong: list[Wrong]
    taken: int  # number of characters
    is_last: bool  # whether the last fault ends the file
    outside: int | None = None  # the last character known to be outside an array, if it is after all records
    open_from: int | None = None  # the position before a value in which the text ends, if that is the last fault

    def without_last(self) -> "FoundValues":
        """Return the same without the last character taken, which is a blank."""
        taken = self.taken - 1
        return self._replace(taken=taken, outside=None if self.outside is None else min(self.outside, taken))


def find_values(text: str, is_end: bool, is_outside: bool = False) -> FoundValues:
    """Return the records of a text that begins at a possible position. `is_end`: the file ends with the text.

    `is_outside`: the text is known to begin outside an array.

    >>> find_values('[1, {"a": [2]}, 3', False)[:2], find_values('1 [] "b"[2]', True)[:2]
    (([1, {'a': [2]}], [2, 14]), ([1, 'b', 2], [1, 8, 10]))
    """
    records, ends, wrong = list[Any](), list[int](), list[Wrong]()
    size, taken, skip = len(text), 0, BLANKS.match
    while True:
        at = skip(text, taken).end()  # type: ignore[union-attr]
        if at == size:
            return FoundValues(records, ends, wrong, at, False, at if is_outside else None)
        first, is_element = text[at], False
        if is_outside and (first == "]" or first == ","):
            wrong.append(Wrong(len(records), at, size, "Extra data"))
            return FoundValues(records, ends, wrong, size, True, taken)
        if first == "]":
            taken, is_outside = at + 1, True
            continue
        if first == "[" or first == ",":
            is_element = True
            at = skip(text, at + 1).end()  # type: ignore[union-attr]
            if first == "[" and text[at : at + 1] == "]":
                taken, is_outside = at + 1, True
                continue
        try:
            value, end = value_at(text, at)
            if is_element:
                place = end if text[end : end + 1] in (",", "]") else skip(text, end).end()  # type: ignore[union-attr]
                if text[place : place + 1] not in (",", "]"):
                    raise json.JSONDecodeError("Expecting ',' or ']'", text, place)
            elif text[end - 1] not in '}]"' and text[end : end + 1] not in ("", " ", "\t", "\r", "\n", ",", "]"):
                raise json.JSONDecodeError("Extra data", text, end)
            elif end == size and not is_end and text[end - 1] not in '}]"':
                return FoundValues(records, ends, wrong, taken, False, taken if is_outside else None)
        except (json.JSONDecodeError, RecursionError) as error:
            place = error.pos if isinstance(error, json.JSONDecodeError) else at
            is_cut = str(error).startswith("Unterminated string") or place + TOKEN_CHARACTERS >= size
            if is_cut and not is_end:
                return FoundValues(records, ends, wrong, taken, False, taken if is_outside else None)
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "the value is nested too deeply"
            if place >= size:
                reason += ", but the file ends"
            wrong.append(Wrong(len(records), place, size, reason))
            open_from = taken if is_unfinished(text, place, reason) else None
            return FoundValues(records, ends, wrong, size, True, open_from=open_from)
        if isinstance(value, TooLong):
            wrong.append(Wrong(len(records), at, end, str(value)))
        else:
            records.append(value)
            ends.append(end)
        taken, is_outside = end, not is_element


def is_unfinished(text: str, place: int, reason: str) -> bool:
    """Return whether the value with a fault at a place may be whole with more text.

    >>> is_unfinished('{"a": tr', 6, "Expecting value"), is_unfinished('{"a": tx', 6, "Expecting value")
    (True, False)
    >>> is_unfinished("[1.", 2, "Expecting ',' or ']'"), is_unfinished("[1x", 2, "Expecting ',' or ']'")
    (True, False)
    """
    tail = text[place : place + TOKEN_CHARACTERS]
    if not tail or reason.startswith("Unterminated string"):
        return True
    if reason.startswith("Expecting value"):
        return any(token.startswith(tail) for token in TOKENS)
    if reason.startswith("Invalid \\uXXXX escape"):
        return CUT_ESCAPE.fullmatch(tail) is not None
    return text[place - 1 : place].isdigit() and CUT_NUMBER.fullmatch(tail) is not None


class TooLong(str):
    """Reason why a number has no value: it has too many digits."""


def value_at(text: str, at: int) -> tuple[Any, int]:
    """Return the value at a place, and its end. Raises JSONDecodeError or RecursionError."""
    try:
        return SCAN(text, at)
    except json.JSONDecodeError:
        raise
    except ValueError as error:
        return TooLong(error), MEASURE(text, at)[1]
