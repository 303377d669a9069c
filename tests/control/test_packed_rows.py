"""Packed rows are unpacked unchanged, whatever their values. Other bytes are refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megaflow.errors import ProtocolError
from megaflow.rows.packed_rows import Column, RowPack, columns_of, pack_rows, unpack_rows
from megaflow.timely.communication.codec.encode import encode

VALUES = st.none() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary() | st.decimals(allow_nan=False)
NESTED = (
    VALUES | st.lists(VALUES, max_size=3) | st.tuples(VALUES, VALUES) | st.dictionaries(st.text(), VALUES, max_size=3)
)


@given(st.lists(st.lists(NESTED, min_size=3, max_size=3), min_size=1, max_size=6), st.integers(0, 3))
def test_what_is_packed_is_unpacked_with_its_types_and_so_is_the_rest_of_it(
    columns: list[list[object]], start: int
) -> None:
    pack = RowPack("orders", '{"fields": []}', columns)
    assert repr(unpack_rows(pack_rows(pack))) == repr(pack)
    rest = unpack_rows(pack_rows(pack)).rest(start)
    assert repr(rest.columns) == repr([column[start:] for column in columns])


@pytest.mark.parametrize(
    "value",
    [1, ("orders", "{}"), ("orders", "{}", (1,)), ("orders", 5, [1]), ("orders", "{}", [1], [1, 2])],
)
def test_other_bytes_are_refused(value: object) -> None:
    data = encode(value)
    with pytest.raises(ProtocolError, match="cannot decode"):
        unpack_rows(data)


def test_a_column_has_the_unit_of_its_type() -> None:
    kinds = ["timestamp", "timestamp_ntz", "date", "long", {"type": "array", "elementType": "date"}]
    schema = json.dumps({"type": "struct", "fields": [{"name": str(n), "type": kind} for n, kind in enumerate(kinds)]})
    assert columns_of(schema)[2] == Column("2", "date")
    assert [column.unit for column in columns_of(schema)] == ["microseconds", "microseconds", "days", None, None]
