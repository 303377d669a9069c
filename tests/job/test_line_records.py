"""Records of several lines, and lines with their source, compared with a plain loop over the whole file."""

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from megaflow import Flow, Line
from megaflow.errors import BuildError, SourceError, UsageError
from megaflow.job.files.followed_files import FollowedFile, FollowedFiles
from megaflow.job.files.splits import plan_splits
from megaflow.job.formats.json_format import JsonLines
from megaflow.job.formats.line_records import LineRecords
from megaflow.job.formats.record_format import RecordFormat
from megaflow.job.formats.text_lines import lines_of
from megaflow.job.launcher.inputs.file_lines import FileLines
from megaflow.job.worker.process.named_inputs import NamedInputs
from megaflow.testing import Crash, Join, Kill, Leave, SimulatedCluster, Wait
from megaflow.timely import example as dataflow_example
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from tests.examples import many
from tests.job.by_hand import flow_by_hand
from tests.job.reading import (
    COMPRESS,
    ENCODE,
    pushed_to,
    queue_of,
    read,
    read_growing,
    read_in_turns,
    read_pushed,
)

TRACE = "INFO start\nERROR no\n  at a\n  at b\n\nINFO end\n"


def model(text: str, start: str | None, path: str) -> list[Line]:
    """Return the records of a whole file, computed by a plain loop."""
    records: list[Line] = []
    for number, line in enumerate(lines_of(text), 1):
        if records and start is not None and not re.search(start, line):
            records[-1] = Line(f"{records[-1].text}\n{line}", path, records[-1].number)
        else:
            records.append(Line(line, path, number))
    return records


def records_of(path: Path, *arguments: Any) -> list[Any]:
    return read(queue_of(*plan_splits([str(path)]), format=LineRecords(*arguments)))


pieces = st.sampled_from(["#", "#", "a", "é", " ", "\n", "\n", "\r\n", "\r", "\u2028", "\x0b", "\n#", "\n\n"])
texts = st.lists(pieces, max_size=60).map("".join)
starts = st.sampled_from([None, "#", "^#", "^$", "", "^(?!#)"])


@settings(deadline=None, max_examples=many(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=texts, start=starts, block_bytes=st.integers(1, 40), steps=st.lists(st.integers(0, 4)),
    suffix=st.sampled_from([*ENCODE]), mark=st.booleans(),
)  # fmt: skip
@example(text="a\r\n#\r\n\r\n#", start="#", block_bytes=1, steps=[1, 0, 1], suffix="", mark=True)
def test_any_text_gives_the_same_records_however_read(
    tmp_path: Path, text: str, start: str | None, block_bytes: int, steps: list[int], suffix: str, mark: bool
) -> None:
    path = tmp_path / f"a.log{suffix}"
    path.write_bytes(ENCODE[suffix](("\ufeff" * (mark and suffix != ".utf-16") + text).encode()))
    records, left_out = read_in_turns(path, LineRecords(start, True), block_bytes, steps)
    assert records == model(text, start, str(path))
    assert len(records) + left_out == len(lines_of(text)), "lines are counted, not records"


@settings(deadline=None, max_examples=many(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=texts, start=starts, sizes=st.lists(st.integers(0, 9), max_size=20), moves=st.lists(st.booleans()),
    limit=st.integers(1, 3),
)  # fmt: skip
def test_a_file_that_grows_gives_the_same_records_but_the_last(
    tmp_path: Path, text: str, start: str | None, sizes: list[int], moves: list[bool], limit: int
) -> None:
    path = tmp_path / "a.log"
    source = FollowedFiles(str(path), format=LineRecords(start, True))
    records, reader = read_growing(source, path, text.encode(), sizes, moves, limit)
    wanted = model(text, start, str(path))
    waiting = wanted[len(records) :]
    assert records == wanted[: len(records)]
    assert len(waiting) <= 1 + (not text.endswith("\n")), "the last record waits, and a line that has no end"
    path.unlink()
    source.now = lambda: float("inf")
    for _ in range(9):
        if isinstance(answer := reader.read(9), tuple):
            records += answer[0]
    reader.close()
    assert records == wanted, "a file that was removed has ended"


@settings(deadline=None, max_examples=many(200))
@given(text=texts, start=starts, sizes=st.lists(st.integers(1, 9)), moves=st.lists(st.booleans()))
def test_standard_input_gives_the_same_records_on_any_workers(
    text: str, start: str | None, sizes: list[int], moves: list[bool]
) -> None:
    records, _ = read_pushed(text.encode(), LineRecords(start, True), sizes, moves)
    assert records == model(text, start, "-")


def test_stack_traces_are_one_record_each(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_text("  of an older file\n" + TRACE)
    wanted = ["  of an older file", "INFO start", "ERROR no\n  at a\n  at b\n", "INFO end"]
    assert records_of(path, r"^[A-Z]+ ") == records_of(path, re.compile(r"^[A-Z]+ ")) == wanted
    path.write_text(TRACE.replace("\n", "\r\n"), newline="")
    assert records_of(path, r"^[A-Z]+ ") == wanted[1:]
    assert [line.number for line in records_of(path, r"^[A-Z]+ ", True)] == [1, 2, 6]


def test_lines_know_their_file_and_number(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt.gz"):
        path = tmp_path / name
        path.write_bytes(COMPRESS[path.suffix if path.suffix == ".gz" else ""](b"one\n\ntwo"))
        assert records_of(path, None, True) == [("one", str(path), 1), ("", str(path), 2), ("two", str(path), 3)]
    line = Line("text", "/logs/a", 7)
    assert pickle.loads(pickle.dumps(line)) == line and decode(encode(line)) == line
    assert type(decode(encode(line))) is Line and line.text == "text"


def test_a_record_that_does_not_end_is_an_error(tmp_path: Path) -> None:
    format = LineRecords("^#", bytes_max=1 << 20)
    path = tmp_path / "app.log"
    path.write_text("#\n" + "a line\n" * 200_000)
    with pytest.raises(SourceError, match=r"app.log' has a record of more than 1 MiB at byte 0\. Does start='\^#' ma"):
        read(queue_of(*plan_splits([str(path)]), format=format))
    reader = FollowedFile(FollowedFiles(str(path), format=format), path.stat().st_ino, None)
    with pytest.raises(SourceError, match=r"app.log' has a record of more than 1 MiB at byte 0"):
        while True:
            reader.read(100)
    queue = pushed_to(format, piped=False)
    queue.push(path.read_text().splitlines())
    with pytest.raises(SourceError, match=r"more than 1 MiB at line 1 of the launcher's input"):
        read(queue)


@pytest.mark.parametrize("longest", [1 << 20, 1_000_000])
@pytest.mark.parametrize("kind", [RecordFormat, JsonLines], ids=["lines", "json"])  # they read blocks of other sizes
def test_the_longest_line_is_the_same_however_read(tmp_path: Path, kind: type[RecordFormat], longest: int) -> None:
    format = kind(bytes_max=longest)
    for size in (longest, longest + 1):  # with the line end
        path = tmp_path / f"{size}.txt"
        path.write_text("1\n" * 40_000 + "2" * 4_000 + " " * (size - 4_001) + "\n3\n")

        def split(path: Path = path) -> int:
            return len(read(queue_of(*plan_splits([str(path)]), format=format)))

        def followed(path: Path = path) -> int:
            reader, count = FollowedFile(FollowedFiles(str(path), format=format), path.stat().st_ino, None), 0
            while count < 40_002:
                answer = reader.read(1_000)
                count += len(answer[0]) if isinstance(answer, tuple) else 0
            return count

        def piped(path: Path = path) -> int:
            with path.open("rb") as file:
                lines, count = FileLines(file.fileno(), "standard input"), 0
                lines.bytes_max = longest
                while not lines.done:
                    count += len(lines.read())
            return count

        for way in (split, followed, piped):
            if size == longest:
                assert way() == 40_002
            else:
                what = r"has a line of more than (1|0\.954) MiB at byte \d+\. .* --line-size-max allows a longer line\."
                with pytest.raises(SourceError, match=what):
                    way()


def test_a_truncated_file_counts_its_lines_anew(tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    path.write_text("#1\n a\n#2\n")
    reader = FollowedFile(FollowedFiles(str(path), format=LineRecords("#", True)), path.stat().st_ino, None)

    def found() -> list[Any]:
        return [(r.text, r.number) for _ in range(5) if isinstance(a := reader.read(9), tuple) for r in a[0]]

    assert found() == [("#1\n a", 1)], "the last record waits"
    path.write_text("#3\n#4\n\n#5\n")
    assert found() == [("#3", 1), ("#4\n", 2)]
    path.rename(tmp_path / "app.log.1")
    with (tmp_path / "app.log.1").open("a") as file:
        file.write("#6\n")
    assert found() == [("#5", 4)]
    reader.close()


def test_what_has_no_order_or_number_is_refused() -> None:
    for format, why in ((LineRecords("#"), r"flow.lines\(start=…\) reads"), (LineRecords(None, True), "with_source")):
        queue = queue_of(format=format)
        queue.expect_pushed()
        queue.push(["of Spark"])
        with pytest.raises(SourceError, match=why):
            read(queue)
        with pytest.raises(BuildError, match=r"The input has \?unordered\. .* Leave \?unordered out\."):
            NamedInputs(unordered=[""]).parse("", format)
    patterns: list[tuple[Any, str]] = [("(", "not a regular expression: missing"), (7, "not a"), (b"a", "for bytes")]
    for pattern, why in patterns:
        with pytest.raises(UsageError, match=why):
            LineRecords(pattern)

    def build(scope: Any) -> None:
        flow = flow_by_hand(scope)
        flow.lines(start="#")
        with pytest.raises(BuildError, match="is read twice"):
            flow.lines()

    dataflow_example(build)


def length(key: str, text: str, state: int | None) -> tuple[int, list[tuple[str, int, int]]]:
    return (state or 0) + 1, [(key, (state or 0) + 1, text.count("\n"))]


@pytest.mark.parametrize("seed", range(2))
def test_records_of_files_that_grow_are_exact_after_a_kill(seed: int) -> None:
    lines: list[str | Wait] = []
    for number in range(60):
        lines += [f"#{number % 3}", " more"] if number % 5 else ["#0", Wait(0.5), " more"]
    lines.append("#0 waits")

    def dataflow(flow: Flow) -> Any:
        records = flow.lines(start="^#", with_source=True)
        return records.map(lambda line: (line.text[1], line.text)).stateful_state_machine(length)

    cluster = SimulatedCluster(seed, durable=True)
    cluster.at(record=20, do=Kill())
    cluster.at(record=40, do=Crash())
    outputs = cluster.run(dataflow, lines=[lines, lines])
    assert len(outputs) == 120 and all(lines == 1 for _, _, lines in outputs)


@pytest.mark.parametrize("seed", range(3))
def test_records_are_joined_while_workers_come_and_go(seed: int) -> None:
    files = [[f"#{name}" if number % 3 == 0 else " more" for number in range(60)] for name in "abc"]

    def dataflow(flow: Flow) -> Any:
        records = flow.lines(start="^#", with_source=True)
        return records.map(lambda line: (line.text[1], f"{line.number}{line.text}")).stateful_state_machine(length)

    cluster = SimulatedCluster(seed)
    cluster.at(record=20, do=Join())
    cluster.at(record=40, do=Leave(seed % 2))
    wanted = [(name, number, 2) for name in "abc" for number in range(1, 21)]
    assert sorted(cluster.run(dataflow, lines=files)) == wanted
