"""Valid texts of `--output spark:…`, and the errors for all others."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DayTimeIntervalType,
    DecimalType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructType,
)

from megaflow.errors import StoreError, UsageError
from megaflow.rows.ddl import parse_ddl, schema_text
from megaflow.spark import results_spec
from megaflow.spark.results_spec import check_python, check_results, parse_results_spec
from megaflow.spark.stateful_frame import output_schema


def test_options_go_to_spark_but_for_schema_and_trigger() -> None:
    spec = parse_results_spec("spark:csv:out?schema=n long&header=true&trigger=1.5&sep=%26")
    assert (spec.format, spec.path, spec.trigger_seconds) == ("csv", "out", 1.5)
    assert spec.options == {"header": "true", "sep": "&"}
    assert parse_results_spec("spark:console?schema=n long").path == ""


def test_a_struct_type_names_columns_as_text_does() -> None:
    kind = StructType().add("a b", "string").add("m", MapType(StringType(), DecimalType(5, 2)), nullable=False)
    kind = kind.add("row", StructType().add("an `id`", ArrayType(LongType(), containsNull=False)))
    text = "`a b` string, m map<string, decimal(5,2)>, row struct<`an ``id```: array<long>>"
    assert schema_text(kind) == text and schema_text(text) == text
    assert parse_ddl(schema_text(kind)) == parse_ddl(text)
    assert output_schema(kind) == kind.json()


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (StructType().add("a", DayTimeIntervalType()), "results have no type 'interval'"),
        (StructType().add("a", CharType(3)), "results have no type 'char'"),
        (StructType().add("a", NullType()), "results have no type 'void'"),
        (StructType().add("a", "long").add("A", "long"), "the column 'a' is named twice"),
        (StructType(), "a column is missing"),
        (LongType(), r"schema must be a StructType, or name columns in SQL.* not LongType\(\)"),
    ],
)
def test_a_struct_type_that_results_cannot_have_is_refused(schema: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_ddl(schema_text(schema))
    with pytest.raises(UsageError, match=why.replace("schema must", "outputStructType must")):
        output_schema(schema)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("spark:", "must be spark:FORMAT:PATH?schema=COLUMNS"),
        ("spark:parquet:?schema=n long", "format 'parquet' reads files from a folder"),
        ("spark:console:out?schema=n long", "format 'console' has no path"),
        ("spark:parque:out?schema=n long", "did you mean 'parquet'?"),
        ("spark:parquet:out?compression=zstd", "The columns are missing. Add &schema=word string, n long"),
        ("spark:parquet:out?schema=n", "--output spark:parquet:out: schema=n: a type is missing"),
        ("spark:parquet:out?schema=n long&trigger=availableNow", "trigger must be a number of seconds"),
        ("spark:parquet:out?schema=n long&checkpointLocation=x", "the job chooses the checkpoint"),
        ("spark:megaflow?schema=n long&trigger=1", "has no options but schema. Leave out trigger"),
        ("spark:megaflow:job?schema=n long", "format 'megaflow' has no path"),
        ("spark:parquet:out?schema=n long&a=1&a=2", "option 'a' is given twice"),
    ],
)
def test_what_is_wrong_is_said(text: str, why: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_results_spec(text)
    assert why in str(raised.value)


def test_a_folder_that_has_something_is_refused(tmp_path: Path) -> None:
    spec = parse_results_spec(f"spark:parquet:{tmp_path}?schema=n long")
    spec.check_new()
    (tmp_path / "_spark_metadata").mkdir()
    with pytest.raises(UsageError, match="The folder is not empty"):
        spec.check_new()


@pytest.mark.parametrize(
    ("planned", "done", "written", "older"),
    [
        ("0 1", "0 1", "0 1", ""),
        ("0 1", "0", "0 1", ""),
        ("0 1", "0", "0", ""),
        ("9 10 .10.crc", "9", "9.compact 10", ""),
        ("", "", "", ""),
        ("0 1", "0 1", "0 1 2", "the store"),
        ("0 1", "0 1", "0", "the output"),
        ("0 1", "0 1", "", "the output"),
    ],
)
def test_a_query_and_its_output_are_of_one_moment(
    tmp_path: Path, planned: str, done: str, written: str, older: str
) -> None:
    checkpoint, out = tmp_path / "query", tmp_path / "out"
    spec = parse_results_spec(f"spark:parquet:{out}?schema=n long")
    spec.check_same_batches(checkpoint)
    for folder, names in (
        (checkpoint / "offsets", planned), (checkpoint / "commits", done), (out / "_spark_metadata", written)
    ):  # fmt: skip
        folder.mkdir(parents=True)
        for name in names.split():
            (folder / name).touch()
    if not older:
        spec.check_same_batches(checkpoint)
        return
    with pytest.raises(StoreError, match=f"{older} is an older copy"):
        spec.check_same_batches(checkpoint)
    parse_results_spec(f"spark:parquet:s3a://bucket/{out}?schema=n long").check_same_batches(checkpoint)


def test_what_is_missing_for_arrow_is_one_line_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_spec, "ARROW", ("pandas", "no_such_arrow"))
    with pytest.raises(UsageError, match=r"no_such_arrow cannot be imported .*: pip install 'megaflow\[arrow\]'"):
        check_results(parse_results_spec("spark:noop?schema=n long"))


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


OWN = "{}.{}".format(*sys.version_info)


@pytest.mark.parametrize(
    ("says", "why"),
    [
        (f"echo {OWN} pandas pyarrow", ", which has no pandas and no pyarrow"),
        ("echo 3.1", f", which is Python 3.1, but this is {OWN}"),
        ("echo a line >&2; echo broken >&2; exit 3", r", which does not run \(broken\)"),
        ("exit 3", r", which does not run \(exit code 3\)"),
    ],
)
def test_a_python_of_a_session_that_cannot_read_results_is_named_with_what_it_lacks_and_the_remedy(
    tmp_path: Path, says: str, why: str
) -> None:
    python = script(tmp_path / "python", says)
    remedy = f". Set PYSPARK_PYTHON={sys.executable} before the session starts."
    with pytest.raises(UsageError, match=f"^schema: .*{python} on this machine{why}{remedy}$"):
        check_python("schema", python)


def test_a_python_of_a_session_is_the_one_on_path_as_java_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path), os.pathsep)
    script(tmp_path / "bare-python", f"echo {OWN} pyarrow")
    with pytest.raises(UsageError, match=f"{tmp_path}/bare-python on this machine, which has no pyarrow"):
        check_python("schema", "bare-python")
    with pytest.raises(UsageError, match="starts no-such-python on this machine, which does not exist"):
        check_python("schema", "no-such-python")


def test_this_python_is_not_asked_and_one_that_has_all_is_let_pass(tmp_path: Path) -> None:
    check_python("schema", sys.executable)
    asked = tmp_path / "asked"
    check_python("schema", script(tmp_path / "python", f"touch {asked}; exec {sys.executable} \"$@\""))
    assert asked.exists()
