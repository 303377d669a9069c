"""JSON for the columns of a database: the same value, or a reason why not."""

import json
from collections import OrderedDict
from decimal import Decimal
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.connect.json_text import json_text, no_json

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
EXACT = st.recursive(PLAIN | DECIMALS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(EXACT)
def test_json_has_the_same_values_and_digits(value: Any) -> None:
    def unchanged(value: Any) -> Any:
        match value:
            case dict():
                return {key: unchanged(inner) for key, inner in value.items()}
            case list():
                return [unchanged(inner) for inner in value]
            case float() | Decimal():
                return str(Decimal(repr(value)) if isinstance(value, float) else value)
        return value

    assert json.loads(json_text(value), parse_float=lambda text: str(Decimal(text)), parse_int=_number) == _numbers(
        unchanged(value)
    )


def _number(text: str) -> Any:
    return str(int(text)) if text != "-0" else text


def _numbers(value: Any) -> Any:
    """Write integers with all their digits, since a Decimal without a fraction is read back as one."""
    match value:
        case dict():
            return {key: _numbers(inner) for key, inner in value.items()}
        case list():
            return [_numbers(inner) for inner in value]
        case int() if not isinstance(value, bool):
            return str(value)
    return value


def test_decimals_beside_other_values_keep_their_digits() -> None:
    class Level(IntEnum):
        HIGH = 3

    value = OrderedDict(price=Decimal("1.10"), rest=(1, 1.5, [Decimal("-0.0"), Decimal("1E+400")]), level=Level.HIGH)
    assert json_text(value) == '{"price": 1.10, "rest": [1, 1.5, [-0.0, 1E+400]], "level": 3}'


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({1: "a"}, "no key 1"),
        ([{"a": {None: 1}}], "no key None"),
        ({True: Decimal(1)}, "no key True"),
        ([float("inf")], "ValueError"),
        ([Decimal("NaN")], "no number NaN"),
        ({"a": {1, 2}}, "TypeError"),
        (["\udfff"], "UnicodeEncodeError"),
        ({"a\0": 1}, "NUL"),
    ],
    ids=range(8),
)
def test_what_json_cannot_have_is_refused(value: Any, said: str) -> None:
    assert said in str(no_json(value, nul=False))


def test_a_list_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert no_json(endless, nul=True) is not None
