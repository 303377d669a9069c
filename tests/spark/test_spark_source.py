"""Spark feeds a job every line once, even if Spark retries, replays, is killed or stops.

The job is a stand-in: a real port with the staging of two workers behind it, and a coordinator that commits at once.
"""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from megaflow.control.messages import CommitRequest, Done, IngestPorts, Moved, Refused, Request, SourceEnded
from megaflow.control.staging_messages import StageEnd, StageLines
from megaflow.errors import CommandRefused, PeerLost, SourceError, UsageError
from megaflow.job.worker.reading.staging import Staging
from megaflow.spark.push import VARIABLE, Transfer, choose_transfer
from megaflow.spark.query_spec import SparkSpec, parse_spark_spec
from megaflow.spark.source import SparkFeed, check_spark
from megaflow.timely.communication.client import Client
from megaflow.timely.communication.rendezvous import PeerAddress
from megaflow.timely.communication.role_handlers import Connection
from megaflow.timely.communication.tcp_allocator import TcpAllocator
from megaflow.timely.communication.tcp_fabric import TcpFabric
from tests.results import check_equal
from tests.words import says

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore:Cannot infer the eval type:UserWarning")]

SECRET = b"known to the test only"
WAIT_SECONDS = 360
ROOT = Path(__file__).resolve().parent.parent.parent


class Job:
    """One process with workers 0 and 1 and the coordinator, all on one thread."""

    def __init__(self) -> None:
        self.stagings = {worker: Staging(worker, limit_bytes=100_000) for worker in (0, 1)}
        self.lines: list[str] = []
        self.requests: list[Any] = []  # bodies, in order of arrival
        self.staged = 0  # lines that have arrived, committed or not
        self.answering = threading.Event()  # cleared: commits are accepted but not acknowledged
        self.answering.set()
        self.refusal = ""
        self.moved: tuple[str, int] | None = None  # address of the coordinator, if it is elsewhere
        self._committed: set[tuple[str, int]] = set()
        self._waiting: list[tuple[Connection, Done]] = []
        self._ending = threading.Event()
        self._error: BaseException | None = None
        listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = listener.getsockname()
        self._fabric = TcpFabric(listener, [0, 1], SECRET, {"ingest": Ingest(self), "control": Control(self)})
        self._fabric.connect([PeerAddress(0, *self.address, (0, 1))], 0, 2)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def commit(self, connection: Connection, request: Request) -> None:
        batch = request.body.commit
        if (batch.query, batch.batch) not in self._committed:
            self._committed.add((batch.query, batch.batch))
            for staging in self.stagings.values():
                staging.commit(batch)
        self._waiting.append((connection, Done(request.id, 1)))

    def _run(self) -> None:
        allocator = TcpAllocator(self._fabric, 0)
        try:
            while not self._ending.is_set():
                allocator.park(0.02)
                allocator.receive()
                for staging in self.stagings.values():
                    while lines := staging.take(4096):
                        self.lines += lines
                    staging._check()
                if self.answering.is_set():
                    for connection, answer in self._waiting:
                        connection.send(answer)
                    self._waiting.clear()
        except BaseException as error:
            self._error = error

    def wait_for_lines(self, count: int) -> None:
        wait_until(lambda: len(self.lines) >= count or self._error is not None)

    def close(self) -> None:
        if self._ending.is_set():
            return
        self._ending.set()
        self._thread.join()
        self._fabric.close()
        if self._error is not None:
            raise self._error


class Ingest:
    """Stages the lines that executors send."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def connected(self, connection: Connection, hello: dict[str, Any]) -> None:
        """Do nothing."""

    def received(self, connection: Connection, value: Any) -> None:
        assert isinstance(value, StageLines | StageEnd)
        staging = self.job.stagings[value.worker]
        if isinstance(value, StageLines):
            staging.stage(value, connection)
            self.job.staged += value.lines
        else:
            connection.send(staging.end(value, connection))

    def lost(self, connection: Connection) -> None:
        for staging in self.job.stagings.values():
            staging.lost(connection)


class Control:
    """A coordinator without other work."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def connected(self, connection: Connection, hello: dict[str, Any]) -> None:
        """Do nothing."""

    def received(self, connection: Connection, value: Any) -> None:
        self.job.requests.append(value.body)
        if self.job.moved is not None:
            connection.send(Moved(value.id, *self.job.moved))
        elif self.job.refusal:
            connection.send(Refused(value.id, self.job.refusal))
        elif isinstance(value.body, IngestPorts):
            connection.send(Done(value.id, [(worker, *self.job.address) for worker in self.job.stagings]))
        elif isinstance(value.body, CommitRequest):
            self.job.commit(connection, value)
        else:
            assert isinstance(value.body, SourceEnded)
            connection.send(Done(value.id, None))

    def lost(self, connection: Connection) -> None:
        """Do nothing."""


def wait_until(predicate: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def job() -> Iterator[Job]:
    running = Job()
    yield running
    running.close()


class Feed(SparkFeed):
    """A feed whose end is counted."""

    def __init__(self, lines: Any, job: Job) -> None:
        self.changes: list[bool] = []
        self.said: list[str] = []
        super().__init__(lines, job.address, SECRET, lambda: self.changes.append(self.done), self.said.append)

    def __enter__(self) -> "Feed":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        assert self.join(WAIT_SECONDS)
        assert self.changes == [True]

    def ended(self) -> None:
        wait_until(lambda: self.done)


@pytest.fixture(params=[pytest.param("rows", marks=pytest.mark.slow), "arrow"])
def transfer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Transfer:
    """The way in which lines leave Spark in the test."""
    return want(request.param, monkeypatch)


def want(transfer: Transfer, monkeypatch: pytest.MonkeyPatch) -> Transfer:
    """Set the way in which lines leave Spark."""
    if transfer == "rows":
        monkeypatch.setenv(VARIABLE, "rows")
    else:
        pytest.importorskip("pandas")
        pytest.importorskip("pyarrow")
        monkeypatch.delenv(VARIABLE, raising=False)
    assert choose_transfer()[0] == transfer
    return transfer


def write(folder: Path, name: str, lines: list[str]) -> list[str]:
    """Put a file atomically into a folder that Spark is watching."""
    folder.mkdir(exist_ok=True)
    hidden = folder / f".{name}"
    hidden.write_text("".join(f"{line}\n" for line in lines))
    hidden.rename(folder / name)
    return lines


def numbered(name: str, count: int) -> list[str]:
    return [f"{name} {number} {'x' * 100}" for number in range(count)]


@pytest.mark.slow
def test_files_are_fed_line_by_line_and_one_added_later_too(
    spark: Any, job: Job, tmp_path: Path, transfer: Transfer
) -> None:
    books = tmp_path / "books"
    expected = write(books, "a.txt", numbered("a", 3000)) + write(books, "b.txt", numbered("b", 2000))
    (books / "odd.txt").write_bytes(b"one\r\ntwo\rthree\n\nf\xffur\n" + "ünï\u2028cödé".encode())
    expected += ["one", "two", "three", "", "f\ufffdur", "ünï\u2028cödé"]
    with Feed(parse_spark_spec(f"spark:text:{books}?maxFilesPerTrigger=2"), job) as feed:
        job.wait_for_lines(len(expected))
        expected += write(books, "later.txt", numbered("later", 100))
        job.wait_for_lines(len(expected))
        assert not feed.done
    assert feed.error is None
    check_equal(Counter(job.lines), Counter(expected))
    assert job.requests[-1] == SourceEnded(feed.queries[0].id)
    how = {"rows": f"rows ({VARIABLE}=rows)", "arrow": "Arrow batches"}[transfer]
    arrived, endless = feed.said
    assert arrived == f"lines leave Spark as {how}"
    assert says(endless, "reads new lines until it is stopped", "trigger=availableNow")


def test_what_is_there_now_is_fed_and_then_the_source_ends_by_itself(spark: Any, job: Job, tmp_path: Path) -> None:
    expected = [line for i in range(5) for line in write(tmp_path / "in", f"{i}.txt", numbered(f"{i}", 10))]
    with Feed(parse_spark_spec(f"spark:text:{tmp_path / 'in'}/*.txt?trigger=availableNow"), job) as feed:
        feed.ended()
    assert feed.error is None
    check_equal(Counter(job.lines), Counter(expected))
    assert job.requests[-1] == SourceEnded(feed.queries[0].id)
    assert len(feed.said) == 1, feed.said


@pytest.mark.parametrize("how", ["raises", pytest.param("is killed", marks=pytest.mark.slow)])
def test_a_task_that_fails_once_loses_and_duplicates_nothing(
    spark: Any, job: Job, tmp_path: Path, how: str, transfer: Transfer
) -> None:
    from pyspark.sql.functions import udf

    expected = write(tmp_path / "in", "a.txt", numbered("a", 20_000))
    marker, staged, late = tmp_path / "failed", tmp_path / "staged", expected[19_500]

    def pass_on(line: str) -> str:
        if line == late and not marker.exists():
            marker.touch()
            for _ in range(6000):
                if staged.exists():
                    break
                time.sleep(0.01)
            if how == "raises":
                raise ValueError("fails once")
            os.kill(os.getpid(), signal.SIGKILL)
        return line

    frame = spark.readStream.text(str(tmp_path / "in")).select(udf(pass_on, "string")("value").alias("line"))
    with Feed(frame, job) as feed:
        wait_until(lambda: marker.exists() and job.staged > 5000)
        check_equal(job.lines, [])
        staged.touch()
        job.wait_for_lines(len(expected))
    assert feed.error is None
    assert job.staged > len(expected), "the failed attempt had staged something"
    check_equal(Counter(job.lines), Counter(expected))
    assert [staging.held_bytes for staging in job.stagings.values()] == [0, 0]


def test_a_replayed_batch_enters_once(spark: Any, job: Job, tmp_path: Path, transfer: Transfer) -> None:
    expected = write(tmp_path / "in", "a.txt", numbered("a", 100))
    feed = SparkFeed(SparkSpec("text", "unused"), job.address, SECRET)
    frame = spark.read.text(str(tmp_path / "in"))
    with closing(feed.queries[0].converse()) as coordinator:
        feed.queries[0].stage_batch(coordinator, transfer, frame, 0)
        feed.queries[0].stage_batch(coordinator, transfer, frame, 0)
        one = spark.read.text(str(tmp_path / "in")).where("value like 'a 7 %'")
        feed.queries[0].stage_batch(coordinator, transfer, one, 1)
        commits = [request.commit for request in job.requests if isinstance(request, CommitRequest)]
        query = feed.queries[0].id
        assert [(commit.query, commit.batch) for commit in commits] == [(query, batch) for batch in (0, 0, 1)]
        assert commits[0].run != commits[1].run
        job.wait_for_lines(101)
    check_equal(Counter(job.lines), Counter([*expected, expected[7]]))
    assert [staging.held_bytes for staging in job.stagings.values()] == [0, 0]


@pytest.mark.slow
def test_whatever_a_text_holds_is_staged_as_it_is_and_an_empty_partition_as_nothing(
    spark: Any, job: Job, transfer: Transfer
) -> None:
    odd = ["", "", " ", "ünï\u2028cödé", "\U0001f600", "two\nlines", "nul\0nul", "\0000\n", "x" * 300_000, "é" * 70_000]
    odd += [f"{number}" for number in range(50)]
    rows = [(line,) for line in odd] + [(None,)] * 5
    frame = spark.createDataFrame(rows, "value string")
    feed = SparkFeed(SparkSpec("text", "unused"), job.address, SECRET)
    with closing(feed.queries[0].converse()) as coordinator:
        feed.queries[0].stage_batch(coordinator, transfer, frame.coalesce(1), 0)
        feed.queries[0].stage_batch(coordinator, transfer, frame.where("value is null").repartition(3), 1)
        few = spark.createDataFrame(rows[:2], "value string").repartition(5)
        feed.queries[0].stage_batch(coordinator, transfer, few, 2)
        job.wait_for_lines(len(odd) + 2)
    check_equal(job.lines, [*odd, *odd[:2]])
    commits = [request.commit for request in job.requests if isinstance(request, CommitRequest)]
    lines = [sum(lines for _, _, lines in commit.winners.values()) for commit in commits]
    check_equal(lines, [len(odd), 0, 2])
    assert not commits[1].winners and len(commits[2].winners) <= 2


def test_bytes_that_are_not_utf_8_are_replaced_alike_in_both_transfers(
    spark: Any, job: Job, tmp_path: Path, transfer: Transfer
) -> None:
    (tmp_path / "odd.txt").write_bytes(b"\xff\n\xf0\x9f\x98\na\xc3(\n\xe2\x82\nfine\n\xc0\xaf\n\xf5\x80")
    feed = SparkFeed(SparkSpec("text", "unused"), job.address, SECRET)
    with closing(feed.queries[0].converse()) as coordinator:
        feed.queries[0].stage_batch(coordinator, transfer, spark.read.text(str(tmp_path)), 0)
        job.wait_for_lines(7)
    check_equal(job.lines, ["\ufffd", "\ufffd", "a\ufffd(", "\ufffd", "fine", "\ufffd\ufffd", "\ufffd\ufffd"])


@pytest.mark.slow
def test_a_coordinator_is_followed_to_where_it_says_that_the_next_one_is_and_found_when_it_has_gone(job: Job) -> None:
    first, last = Job(), Job()
    feed = SparkFeed(SparkSpec("text", "unused"), first.address, SECRET)
    try:
        first.moved = job.address
        with closing(feed.queries[0].converse()) as coordinator:
            assert coordinator.ask(SourceEnded("q")) is None
            assert (len(first.requests), len(job.requests)) == (1, 1)
            feed.move(job.address)  # after a delay: an existing connection is kept
            assert len(coordinator.ask(IngestPorts())) == 2 and len(job.requests) == 2
            job.close()
            threading.Timer(0.3, lambda: feed.move(last.address)).start()
            assert coordinator.ask(SourceEnded("q")) is None and len(last.requests) == 1
            last.close()
            with pytest.raises(PeerLost):  # its place is not known
                coordinator.ask(SourceEnded("q"))
    finally:
        first.close()
        last.close()


def test_an_executor_that_dies_while_it_stages_leaves_nothing(job: Job) -> None:
    with Client.connect(*job.address, SECRET, "ingest", {}, 60) as client:
        client.send(StageLines("q", "r", 0, 0, 5, 1, 1, "half"))
        wait_until(lambda: job.stagings[1].held_bytes > 0)
    wait_until(lambda: job.stagings[1].held_bytes == 0)
    check_equal(job.lines, [])


@pytest.mark.slow
def test_stopping_does_not_wait_for_a_coordinator_that_holds_back(spark: Any, job: Job, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.txt", ["a"])
    job.answering.clear()
    with Feed(parse_spark_spec(f"spark:text:{tmp_path / 'in'}"), job) as feed:
        job.wait_for_lines(1)
        write(tmp_path / "in", "b.txt", ["b"])
        feed.stop()
        wait_until(lambda: feed.done)
    assert feed.error is None
    check_equal(job.lines, ["a"])
    assert job.requests[-1] == SourceEnded(feed.queries[0].id)


@pytest.mark.slow
def test_a_query_that_fails_is_one_sentence_with_its_cause(spark: Any, job: Job, tmp_path: Path) -> None:
    from pyspark.sql.functions import udf

    def always(line: str) -> str:
        raise ValueError(f"no good: {line}")

    write(tmp_path / "in", "a.txt", ["a"])
    with Feed(spark.readStream.text(str(tmp_path / "in")).select(udf(always, "string")("value")), job) as feed:
        feed.ended()
    assert isinstance(feed.error, SourceError)
    line = always.__code__.co_firstlineno + 1
    assert str(feed.error) == f"the streaming DataFrame: ValueError: no good: a ({__file__}, line {line}, in always)"
    check_equal(job.lines, [])


@pytest.mark.slow
def test_a_refusal_of_the_coordinator_ends_the_query_with_its_reason(spark: Any, job: Job, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.txt", ["a"])
    job.refusal = "the job is stopping"
    with Feed(parse_spark_spec(f"spark:text:{tmp_path / 'in'}"), job) as feed:
        feed.ended()
    assert isinstance(feed.error, CommandRefused)
    assert str(feed.error).endswith("refused IngestPorts: the job is stopping")


@pytest.mark.slow
def test_sources_that_give_no_lines_are_refused(spark: Any, job: Job, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    cases = [
        (f"spark:json:{tmp_path / 'in'}?schema=a string, b int", SourceError, "Spark's source has: a string, b int"),
        (f"spark:json:{tmp_path / 'in'}", SourceError, "until you name them: --lines"),
        (f"spark:text:{tmp_path / 'in'}?schema=oops oops", SourceError, ""),
        ("spark:org.example.Missing:x", SourceError, "Failed to find the data source: org.example.Missing"),
    ]
    for text, kind, why in cases:
        with Feed(parse_spark_spec(text), job) as feed:
            feed.ended()
        assert type(feed.error) is kind, text
        assert why.lower() in str(feed.error).lower()
        assert "\n" not in str(feed.error) and "SQLSTATE" not in str(feed.error)
    for frame in (spark.range(3).selectExpr("cast(id as string) as line"), object()):
        with Feed(frame, job) as feed:
            feed.ended()
        assert isinstance(feed.error, UsageError)


@pytest.mark.slow
def test_a_single_column_of_text_will_do_and_nulls_are_no_lines(
    spark: Any, job: Job, tmp_path: Path, transfer: Transfer
) -> None:
    write(tmp_path / "in", "a.json", ['{"word": "a"}', '{"other": 1}', '{"word": "b"}'])
    with Feed(parse_spark_spec(f"spark:json:{tmp_path / 'in'}?schema=word string&trigger=availableNow"), job) as feed:
        feed.ended()
    assert feed.error is None
    check_equal(sorted(job.lines), ["a", "b"])


@pytest.mark.slow
def test_rows_of_a_rate_are_numbers_as_text(spark: Any, job: Job) -> None:
    with Feed(parse_spark_spec("spark:rate:?rowsPerSecond=50"), job):
        job.wait_for_lines(20)
    check_equal(sorted(map(int, job.lines)), list(range(len(job.lines))))


def test_a_wrong_path_is_found_before_spark_starts(tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("a\n")
    with pytest.raises(SourceError, match=f"There is no folder {tmp_path}/nowhere"):
        check_spark(parse_spark_spec(f"spark:text:{tmp_path}/nowhere"))
    with pytest.raises(SourceError, match=f"read it without Spark: --lines {tmp_path}/file.txt"):
        check_spark(parse_spark_spec(f"spark:text:{tmp_path}/file.txt"))
    check_spark(parse_spark_spec(f"spark:text:{tmp_path}/*.txt"))
    check_spark(parse_spark_spec("spark:text:hdfs://host/books"))


# A launcher in a process of its own, so that its Java process ends with it.
LAUNCHER = """
    import os, signal, sys, threading
    from megaflow.spark.source import SparkFeed
    from megaflow.spark.query_spec import parse_spark_spec

    ended = threading.Event()
    spec, coordinator = parse_spark_spec(sys.argv[3]), (sys.argv[1], int(sys.argv[2]))
    feed = SparkFeed(spec, coordinator, b"known to the test only", ended.set)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    feed.start()
    try:
        if sys.argv[4:]:
            sys.stdin.readline()
            from pyspark import SparkContext
            os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
        ended.wait()
    except KeyboardInterrupt:
        feed.stop()
    assert feed.join(180)
    left = [name for name in os.listdir(os.environ["TMPDIR"]) if "megaflow" in name]
    print("pyspark" in sys.modules, left, feed.error)
"""


def launch(job: Job, folder: Path, spec: str, *more: str, **environ: str) -> "subprocess.Popen[str]":
    (folder / "tmp").mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(LAUNCHER), job.address[0], str(job.address[1]), spec, *more],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder / "tmp"), **environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def java_processes(folder: Path) -> list[str]:
    """Return the processes whose command line names the folder: Spark's, which is configured to write below it."""
    return [
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if (command := path.read_bytes() if path.exists() else b"") and b"java" in command
        if str(folder / "tmp").encode() in command
    ]


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_group_ends_a_feed_quietly_and_leaves_nothing_behind(
    job: Job, tmp_path: Path, sent: signal.Signals
) -> None:
    write(tmp_path / "in", "a.txt", ["a", "b"])
    launcher = launch(job, tmp_path, f"spark:text:{tmp_path / 'in'}")
    job.wait_for_lines(2)
    assert java_processes(tmp_path)
    os.killpg(launcher.pid, sent)
    output, errors = launcher.communicate(timeout=WAIT_SECONDS)
    assert (output, errors, launcher.returncode) == ("True [] None\n", "", 0)
    assert java_processes(tmp_path) == []
    assert isinstance(job.requests[-1], SourceEnded)


@pytest.mark.slow
def test_a_java_process_that_is_killed_is_named_as_the_cause(job: Job, tmp_path: Path) -> None:
    write(tmp_path / "in", "a.txt", ["a", "b"])
    spec = f"spark:text:{tmp_path / 'in'}"
    launcher = launch(job, tmp_path, spec, "kill")
    job.wait_for_lines(2)
    output, errors = launcher.communicate("now\n", timeout=WAIT_SECONDS)
    assert (output, errors) == (f"True [] {spec}: Spark's Java process has ended unexpectedly\n", "")
    assert launcher.returncode == 0


def test_without_java_the_feed_says_so_and_imports_no_pyspark(job: Job, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    launcher = launch(job, tmp_path, f"spark:text:{tmp_path / 'in'}", PATH="", JAVA_HOME="")
    output, errors = launcher.communicate(timeout=WAIT_SECONDS)
    assert output.startswith("False [] Spark needs Java 17 or newer, but there is none (JAVA_HOME is not set). Install")
    assert (output.count("\n"), errors) == (1, "")
