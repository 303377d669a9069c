"""Columns in Spark's DDL: the types that are understood, and the errors for all others."""

import json
from typing import Any

import pytest

from megaflow.errors import UsageError
from megaflow.rows.ddl import parse_ddl, schema_json, type_text


def test_types_come_out_as_sparks_json_has_them() -> None:
    text = "a INT, `b c` decimal(5,2), c: array<struct<x: bigint, y double>>, d map<string, timestamp>, e dec"
    array: dict[str, Any] = {"type": "array", "elementType": None, "containsNull": True}
    pairs = (("x", "long"), ("y", "double"))
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in pairs]
    array["elementType"] = {"type": "struct", "fields": fields}
    kinds = [column.kind for column in parse_ddl(text)]
    mapping = {"type": "map", "keyType": "string", "valueType": "timestamp", "valueContainsNull": True}
    assert kinds == ["integer", "decimal(5,2)", array, mapping, "decimal(10,0)"]
    assert [column.name for column in parse_ddl(text)] == ["a", "b c", "c", "d", "e"]
    assert json.loads(schema_json(parse_ddl("a int")))["fields"][0]["type"] == "integer"
    assert type_text(array) == "array<struct<x: long, y: double>>"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "a column is missing"),
        ("word", "a type is missing"),
        ("word string n long", "',' is missing before 'n'"),
        ("word string,", "a column is missing"),
        ("a array<long", "'>' is missing"),
        ("a interval", "no type 'interval'"),
        ("a decimal(39)", "must have 1 to 38 digits"),
        ("a decimal(2, 3)", "must have 1 to 38 digits"),
        ("a long, A string", "'a' is named twice"),
        ("a long; b long", "cannot parse ; b long"),
    ],
)
def test_what_is_wrong_is_said(text: str, why: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_ddl(text)
    assert why in str(raised.value)
