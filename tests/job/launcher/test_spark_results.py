"""The writer of results for Spark, and its door, with readers over real sockets."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any
from unittest.mock import MagicMock

import pytest

from megaflow.control.launcher_messages import WhereResults
from megaflow.control.results_messages import (
    RESULTS_ROLE,
    Claim,
    Claimed,
    Latest,
    Offset,
    ResultRows,
    ResultsRefused,
    Take,
)
from megaflow.durable.local_folder import LOCK, SPARK
from megaflow.errors import ConfigMismatch, OutputError
from megaflow.job.launcher.outputs import results_log
from megaflow.job.launcher.outputs.spark_results import SparkResults
from megaflow.job.launcher.outputs.writer import Writer
from megaflow.rows.ddl import parse_ddl, schema_json
from megaflow.rows.result_rows import RowPacker, unpack
from megaflow.spark.kept_query import RESULTS
from megaflow.timely.communication.client import Client

WAIT_SECONDS = 90.0
SECRET = b"secret"
SCHEMA = schema_json(parse_ddl("word string"))
PACKER = RowPacker(SCHEMA)


def rows(*words: str) -> list[bytes]:
    return [PACKER.pack([(word,) for word in words])]


class Reader:
    def __init__(self, results: SparkResults, role: str = RESULTS_ROLE) -> None:
        [(host, port)] = results.open_door(True, "")
        self.client = Client.connect(host, port, SECRET, role, {}, WAIT_SECONDS)

    def ask(self, question: Any) -> Any:
        self.client.send(question)
        return self.client.receive(WAIT_SECONDS)


@contextmanager
def serving(state: Path | None = None, resumes: bool = False, **more: Any) -> Iterator[SparkResults]:
    if state is not None:
        (state / SPARK).mkdir(parents=True, exist_ok=True)
    results = SparkResults(SCHEMA, "results", None if state is None else str(state), resumes, **more)
    if state is not None:
        results.hold()
    try:
        with results.served(SECRET, lambda error: None):
            yield results
    finally:
        results.close()


def test_what_is_written_is_read_and_released() -> None:
    with serving() as results:
        reader = Reader(results)
        results.write(7, rows("a", "b"))
        assert reader.ask(Latest(1, 0)) == Offset(1, 2, False)
        answer = reader.ask(Take(1))
        assert isinstance(answer, ResultRows) and (answer.start, unpack(answer.data)) == (0, [["a", "b"]])
        threading.Timer(0.05, results.await_read, [time.sleep]).start()
        assert reader.ask(Latest(2, 2)) == Offset(2, 2, True)
        results.await_read(time.sleep)


def test_who_asks_for_more_than_there_is_waits_until_there_is() -> None:
    with serving() as results:
        reader = Reader(results)
        reader.client.send(Latest(1, 0))
        reader.client.send(Latest(2, 0))  # connect again
        deadline = time.monotonic() + WAIT_SECONDS
        while [asked.number for asked in list(results._waiting.values())] != [2] and time.monotonic() < deadline:
            time.sleep(0.001)
        results.write(7, rows("a"))
        results.flush()
        assert reader.client.receive(WAIT_SECONDS) == Offset(2, 1, False)


def test_with_a_store_what_is_committed_is_shown_and_stays(tmp_path: Path) -> None:
    with serving(tmp_path) as results:
        job = results.job
        results.write(7, rows("a", "b"))
        assert results.sync() == 2
        results.write(8, rows("c"))
        results.committed(2)
        reader = Reader(results)
        assert reader.ask(Latest(1, 0)) == Offset(1, 2, False)
        assert isinstance(reader.ask(Take(2)), ResultsRefused)
    with serving(tmp_path, resumes=True) as again:
        assert again.job == job
        again.cut_back(2)
        again.write(9, rows("d"))
        assert Reader(again).ask(Latest(1, 0)) == Offset(1, 2, False)


HOLDS = """
import fcntl, os, sys, time
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
os.pwrite(lock, f"{os.getpid():20}".encode(), 20)
print(flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process does not tell which files it has open")
def test_who_takes_over_ends_a_launcher_that_is_suspended(tmp_path: Path) -> None:
    folder = tmp_path / SPARK / RESULTS
    folder.mkdir(parents=True)
    with Popen([sys.executable, "-c", HOLDS, str(folder / LOCK)], stdout=PIPE) as launcher:
        assert launcher.stdout is not None and launcher.stdout.readline()
        launcher.send_signal(signal.SIGSTOP)
        query = MagicMock()
        results = SparkResults(SCHEMA, "results", str(tmp_path), True, query)
        assert results.hold(take_over=True) == 0
        assert launcher.wait(WAIT_SECONDS) == -signal.SIGKILL
        noted = (folder / LOCK).read_bytes()
        assert int(noted[20:]) == os.getpid() and not noted[:20].strip(b"\0")
        results.close()


def test_a_new_store_begins_with_nothing(tmp_path: Path) -> None:
    with serving(tmp_path) as results:
        results.write(7, rows("a"))
        (results.folder / "query").mkdir()
    with serving(tmp_path) as results:
        assert results.sync() == 0
        assert sorted(path.name for path in results.folder.iterdir()) == ["job", "lock"]


def test_who_writes_waits_while_too_much_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results_log, "ROOM_BYTES", 1)
    with serving() as results:
        results.write(7, rows("a"))
        writer = threading.Thread(target=results.write, args=(8, rows("b")))
        writer.start()
        assert results.waits_text() == "results wait for Spark since epoch 7"
        reader = Reader(results)
        assert reader.ask(Latest(1, 0)) == Offset(1, 1, False)
        reader.client.send(Latest(2, 1))
        writer.join(WAIT_SECONDS)
        assert not writer.is_alive()


def test_results_wait_for_spark_if_it_does_not_ask_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as results:
        results.write(7, rows("a"))
        assert results.waits_text() == ""
        results._asked_at = time.monotonic() - 11
        assert results.waits_text() == "results wait for Spark since epoch 7"


def test_a_query_that_fails_fails_who_writes_and_who_waits() -> None:
    heard: list[Exception] = []
    results = SparkResults(SCHEMA, "results", None, False)
    with results.served(SECRET, heard.append):
        results.write(7, rows("a"))
        results.fail(OutputError("no room"))
        results.open_door(True, "")
        for action in (lambda: results.await_read(time.sleep), lambda: results.write(8, rows("b"))):
            with pytest.raises(OutputError, match="no room"):
                action()
    results.close()
    assert list(map(str, heard)) == ["no room"]


def test_a_job_that_fails_tells_its_readers_why() -> None:
    told = []
    with pytest.raises(ValueError, match="bad record"), serving() as results:
        reader = Reader(results)
        reader.client.send(Latest(1, 0))
        told.append(reader)
        raise ValueError("bad record")
    assert told[0].client.receive(WAIT_SECONDS) == ResultsRefused("the job has failed: bad record")


def test_a_job_that_has_failed_tells_why_to_a_reader_that_comes_too_late() -> None:
    came: list[SparkResults] = []
    with pytest.raises(ValueError, match="bad record"), serving() as results:
        results.open_door(True, "")
        came.append(results)
        raise ValueError("bad record")
    assert Reader(came[0]).ask(Latest(1, 0)) == ResultsRefused("the job has failed: bad record")


def refusal(answer: Any) -> str:
    assert isinstance(answer, ResultsRefused), answer
    return answer.reason


def test_another_consumer_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    with serving(tmp_path) as results:
        results.write(7, rows("a"))
        results.committed(results.sync())
        first, second = Reader(results), Reader(results)
        assert first.ask(Claim("daily", "app 'totals'")) == Claimed("")
        assert first.ask(Latest(1, 0)) == Offset(1, 1, False)
        assert "The consumer 'daily' (app 'totals') reads the results" in refusal(second.ask(Claim("hourly", "")))
    with serving(tmp_path, resumes=True) as again:
        again.cut_back(1)
        other = Reader(again)
        assert "The consumer 'daily' has read the results" in refusal(other.ask(Claim("hourly", "")))
        assert "The consumer 'daily' has read" in refusal(Reader(again).ask(Latest(1, 0)))
        assert again.consumer == "daily" and "'daily' is not connected" in str(again.consumer_trouble())
        assert other.ask(Claim("daily", "")) == Claimed("")
        assert other.ask(Latest(1, 0)) == Offset(1, 1, False) and again.consumer_trouble() is None


def test_the_next_query_of_a_consumer_waits_for_the_end_of_the_first() -> None:
    with serving() as results:
        first, second = Reader(results), Reader(results)
        assert first.ask(Claim("daily", "one")) == Claimed("")
        answer = second.ask(Claim("daily", "two"))
        assert isinstance(answer, Claimed) and "The consumer 'daily' (one) reads" in answer.taken
        assert "'daily' (one) reads" in second.ask(Claim("hourly", "two")).taken
        first.client.close()
        deadline = time.monotonic() + WAIT_SECONDS
        while second.ask(Claim("hourly", "two")) != Claimed("") and time.monotonic() < deadline:
            time.sleep(0.001)
        assert results.consumer == "hourly", "the first has received no rows"


def test_a_program_that_reads_its_results_has_no_consumer() -> None:
    with serving() as results:
        results.write(7, rows("a"))
        assert Reader(results).ask(Latest(1, 0)) == Offset(1, 1, False)
        assert "The program that started the job reads" in refusal(Reader(results).ask(Claim("daily", "")))


def test_only_the_results_of_no_own_query_have_a_place_for_others() -> None:
    with serving() as results:
        found = results.where(WhereResults(True, ""))
        assert (found.job, found.schema, found.addresses) == (results.job, SCHEMA, results.open_door(True, ""))
        assert "had a local master" in results.where(WhereResults(False, "host")).refused
    own = SparkResults(SCHEMA, "results", None, False, MagicMock())
    assert "Its own query reads" in own.where(WhereResults(True, "")).refused
    own.close()
    assert "started without results" in Writer().where(WhereResults(True, "")).refused


def test_only_readers_are_let_in() -> None:
    with serving() as results, pytest.raises(ConfigMismatch, match="port serves 'results', not the role"):
        Reader(results, "agent")


@pytest.mark.parametrize("count", [0, 1])
def test_a_job_that_is_through_before_it_is_asked_for_results_waits(count: int) -> None:
    with serving() as results:
        for _ in range(count):
            results.write(7, rows("a"))
        readers: list[Reader] = []

        def pause(seconds: float) -> None:  # the program asks only now
            if not readers:
                readers.append(Reader(results))
                readers[0].client.send(Latest(1, count))

        results.await_read(pause)
        assert readers[0].client.receive(WAIT_SECONDS) == Offset(1, count, True)


def test_nobody_waits_for_results_that_will_not_be_asked_for() -> None:
    with serving() as results:
        results.write(7, rows("a"))
        results.forgo()
        results.await_read(lambda seconds: pytest.fail("it waits"))


def test_the_wait_for_spark_can_be_ended() -> None:
    def pause(seconds: float) -> None:
        raise KeyboardInterrupt

    with serving() as results:
        results.open_door(True, "")
        results.write(7, rows("a"))
        with pytest.raises(KeyboardInterrupt):
            results.await_read(pause)
