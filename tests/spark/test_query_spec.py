"""Valid texts of `--lines spark:…`, and the errors for all others."""

import pytest

from megaflow.errors import UsageError
from megaflow.spark.query_spec import TRIGGER_SECONDS, RowFrames, SparkSpec, parse_row_specs, parse_spark_spec


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("spark:text:books/", SparkSpec("text", "books/", {"maxFilesPerTrigger": "64"})),
        ("spark:text:/a:b/*.txt", SparkSpec("text", "/a:b/*.txt", {"maxFilesPerTrigger": "64"})),
        ("spark:text:x?maxFilesPerTrigger=1", SparkSpec("text", "x", {"maxFilesPerTrigger": "1"})),
        ("spark:text:x?maxBytesPerTrigger=1m", SparkSpec("text", "x", {"maxBytesPerTrigger": "1m"})),
        ("spark:rate:?rowsPerSecond=5", SparkSpec("rate", "", {"rowsPerSecond": "5"})),
        ("spark:rate", SparkSpec("rate")),
        ("spark:rate?trigger=2", SparkSpec("rate", trigger_seconds=2.0)),
        ("spark:rate:?trigger=AvailableNow", SparkSpec("rate", trigger_seconds=None)),
        ("spark:rate?unordered", SparkSpec("rate", unordered=True)),
        ("spark:rate?unordered&a=unordered", SparkSpec("rate", options={"a": "unordered"}, unordered=True)),
        (
            "spark:kafka:?kafka.bootstrap.servers=a:9092,b:9092&subscribe=words%26more&startingOffsets=",
            SparkSpec(
                "kafka",
                options={
                    "kafka.bootstrap.servers": "a:9092,b:9092",
                    "subscribe": "words&more",
                    "startingOffsets": "",
                },
            ),
        ),
        ("spark:org.example.Plugin:queue", SparkSpec("org.example.Plugin", "queue")),
    ],
)
def test_a_spec_names_format_path_and_options(text: str, spec: SparkSpec) -> None:
    assert parse_spark_spec(text) == spec


def test_a_spec_without_a_trigger_asks_a_few_times_a_second() -> None:
    assert parse_spark_spec("spark:rate").trigger_seconds == TRIGGER_SECONDS


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("spark:", "must be spark:FORMAT:PATH"),
        ("books/", "must be spark:FORMAT:PATH"),
        ("spark:txet:books/", "did you mean 'text'?"),
        ("spark:Kafka:?subscribe=x", "did you mean 'kafka'?"),
        ("spark:zzz:books/", "must be one of text, csv"),
        ("spark:text:", "reads files from a folder: spark:text:FOLDER"),
        ("spark:rate:books/", "has no path"),
        ("spark:text:x?trigger", "must be option=value"),
        ("spark:text:x?a=1&a=2", "option 'a' is given twice"),
        ("spark:text:x?unordered=yes", "option 'unordered' takes no value"),
        ("spark:text:x?trigger=soon", "availableNow or a number of seconds"),
        ("spark:text:x?trigger=-1", "availableNow or a number of seconds"),
        ("spark:text:x?trigger=nan", "availableNow or a number of seconds"),
        ("spark:text:x?checkpointLocation=/c", "the job chooses the checkpoint"),
    ],
)
def test_a_wrong_spec_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_spark_spec(text)
    assert why in str(refusal.value)
    assert str(refusal.value).startswith(f"--lines {text}: ")
    assert "\n" not in str(refusal.value)


def test_what_is_selected_is_sql_and_a_plus_stays_one() -> None:
    specs = parse_row_specs(
        ["a=spark:json:in/?schema=id LONG, at TIMESTAMP&select=id+1 AS n%26&where=at IS NOT NULL", "b=spark:rate:"]
    )
    assert list(specs) == ["a", "b"]
    assert (specs["a"].select, specs["a"].where) == ("id+1 AS n&", "at IS NOT NULL")
    assert specs["a"].options == {"schema": "id LONG, at TIMESTAMP", "maxFilesPerTrigger": "64"}
    assert RowFrames({"b": 1, "a": 2}).names == ("a", "b")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["orders"], "--rows orders: must be NAME=spark:FORMAT:PATH"),
        (["orders=in/"], "--rows orders=in/: must be NAME=spark:FORMAT:PATH"),
        (["1st=spark:rate:"], "must be NAME=spark:FORMAT:PATH"),
        (["a=spark:rate:", "a=spark:rate:"], "The rows 'a' are given twice"),
        (["a=spark:jsn:in/"], "--rows a=spark:jsn:in/: Spark has no format 'jsn'; did you mean 'json'?"),
    ],
)
def test_wrong_rows_are_refused_with_the_reason(given: list[str], why: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse_row_specs(given)
    assert why in str(refusal.value)
