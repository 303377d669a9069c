"""Rows of other columns than those in a store are refused if a program could read other values by place or name."""

import json

import pytest

from megaflow.errors import StoreUnfit
from megaflow.rows.ddl import parse_ddl, schema_json
from megaflow.rows.kept_columns import KeptColumns, check_kept_columns, kept_columns
from tests.words import says

COLUMNS = "k LONG, v STRING, at STRUCT<day: DATE, `long`: ARRAY<INT>>, price DECIMAL(5, 2), n INT"


def columns(ddl: str) -> KeptColumns:
    return kept_columns(schema_json(parse_ddl(ddl)))


@pytest.mark.parametrize(
    "now",
    [
        COLUMNS,
        f"{COLUMNS}, new STRING, newer LONG",
        COLUMNS.replace("n INT", "n LONG"),
        COLUMNS.replace("DECIMAL(5", "DECIMAL(20"),
    ],
)
def test_the_same_values_at_the_same_places_are_read_on(now: str) -> None:
    check_kept_columns("orders", columns(COLUMNS), columns(now))


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (COLUMNS.replace("k LONG, v STRING", "v STRING, k LONG"), ["column 1 was 'k' of type long", "'v' of type"]),
        (COLUMNS.replace("k LONG", "k STRING"), ["'k' of type long", "type is string", "CAST(k AS long) AS k, or"]),
        (COLUMNS.replace("k LONG", "k INT"), ["'k' of type long", "type is integer"]),
        (COLUMNS.replace("k LONG", "key LONG"), ["'k' of type long", "it is 'key'", "columns k, v, at, price, n"]),
        (COLUMNS.replace("k LONG", "K LONG"), ["'k' of type long", "it is 'K'"]),
        (f"new STRING, {COLUMNS}", ["column 1 was 'k'", "it is 'new' of type string"]),
        (COLUMNS.replace(", n INT", ""), ["column 5 was 'n' of type integer, and now there is none"]),
        (COLUMNS.replace("k LONG, ", ""), ["column 1 was 'k'", "it is 'v' of type string"]),
        (COLUMNS.replace("(5, 2)", "(5, 3)"), ["decimal(5,2)", "decimal(5,3)"]),
        (COLUMNS.replace("day: DATE", "day: TIMESTAMP"), ["struct<day: date", "struct<day: timestamp"]),
    ],
)  # fmt: skip
def test_other_columns_are_refused_with_both_types_and_the_remedy(now: str, words: list[str]) -> None:
    with pytest.raises(StoreUnfit) as refused:
        check_kept_columns("orders", columns(COLUMNS), columns(now))
    assert says(str(refused.value), "rows 'orders'", *words, "new --state folder", "version= and upgrade=")


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (COLUMNS.replace("k LONG", "k STRING"), ["frame.withColumn('k', frame['k'].cast('long'))"]),
        (COLUMNS.replace("k LONG", "key LONG"), ["'key'", "frame.select('k', 'v', 'at', 'price', 'n')"]),
        (COLUMNS.replace("k LONG, ", ""), ["'v' of type string", "frame.select('k', 'v', 'at', 'price', 'n')"]),
    ],
)
def test_an_error_of_a_query_has_the_words_of_pyspark(now: str, words: list[str]) -> None:
    with pytest.raises(StoreUnfit) as refused:
        check_kept_columns("rows", columns(COLUMNS), columns(now), is_of_a_query=True)
    said = str(refused.value)
    assert says(said, "query's checkpoint", "DataFrame, whose column 1 was 'k'", *words, "new checkpointLocation")
    assert "version" not in said and "'rows'" not in said and "--state" not in said


def test_whether_a_column_may_be_null_does_not_matter() -> None:
    schema = json.loads(schema_json(parse_ddl(COLUMNS)))
    for field in schema["fields"]:
        field |= {"nullable": False, "metadata": {"comment": "new"}}
    schema["fields"][2]["type"]["fields"][1]["type"]["containsNull"] = False
    assert kept_columns(json.dumps(schema)) == columns(COLUMNS)
