"""A job beside the program that has started it: looked at, steered, waited for; its errors are the program's."""

import asyncio
import itertools
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import megaflow
from megaflow.control.client import commands
from megaflow.errors import ClusterError, CommandRefused, JobNotFound, PeerFailed, PeerLost, UsageError
from megaflow.job.launcher.epoch_merge import ListWriter
from megaflow.job.launcher.function_pickler import pickle_app
from megaflow.job.launcher.started_job import JobHandle
from megaflow.job.spec import JobSpec
from tests.test_floor_plan import ROOT

SECONDS = 60.0


def count(word: str, n: int, total: int | None) -> tuple[int, list[tuple[str, int]]]:
    total = (total or 0) + n
    return total, [(word, total)]


def dataflow(flow: megaflow.Flow) -> Any:
    return flow.lines().map(lambda line: (line, 1)).stateful_state_machine(count, bins=8)


def faulty(flow: megaflow.Flow) -> Any:
    return flow.lines().map(lambda line: line.no_such_thing)  # type: ignore[attr-defined]


def endless(enough: threading.Event) -> Iterator[str]:
    """Lines until there are enough."""
    return itertools.takewhile(lambda line: not enough.wait(0.01), itertools.cycle("abc"))


def begin(function: Any, lines: Any, writer: ListWriter | None = None, **more: Any) -> JobHandle:
    return JobHandle(JobSpec(pickle_app(function), **more), lambda: writer or ListWriter(), lines)


pytestmark = pytest.mark.cluster


def test_a_job_is_looked_at_and_steered_while_it_runs_and_stopped_at_the_end_of_the_block() -> None:
    enough, writer = threading.Event(), ListWriter()
    with begin(dataflow, endless(enough), writer, processes=2) as job:
        assert [worker.id for worker in job.status().workers] == [0, 1]
        assert job.move_bins(drain=0).bins == 4
        assert job.status().operators[0].table == (1,) * 8
        with pytest.raises(UsageError, match="exactly one of"):
            job.move_bins()
        with pytest.raises(CommandRefused, match="worker 7"):
            job.move_bins(bins="0", to=7)
        with pytest.raises(TimeoutError, match="has not ended within"):
            job.wait(0.01)
    enough.set()
    assert not job.is_running and "has ended" in repr(job)
    summary = job.wait()
    assert summary.lines == len(writer.records) > 0
    with pytest.raises(JobNotFound, match="has ended"):
        job.status()
    job.stop()


def test_a_command_under_way_when_the_job_ends_finds_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    enough = threading.Event()
    with begin(dataflow, endless(enough)) as job:

        def lose(*_: Any, **__: Any) -> None:
            if enough.is_set():
                job.stop()
            raise PeerLost("the connection ended")

        monkeypatch.setattr(commands, "ask_status", lose)
        with pytest.raises(PeerLost):
            job.status()
        enough.set()
        with pytest.raises(JobNotFound, match="has ended"):
            job.status()


def test_what_the_program_raises_is_raised_by_wait_and_again() -> None:
    job = begin(faulty, iter(["a"]))
    for _ in range(2):
        with pytest.raises(PeerFailed, match="AttributeError: 'str' object has no attribute 'no_such_thing'"):
            job.wait(SECONDS)


def test_a_job_ends_at_once_when_the_block_is_left_by_an_error() -> None:
    enough = threading.Event()
    with pytest.raises(ZeroDivisionError), begin(dataflow, endless(enough)) as job:
        raise ZeroDivisionError
    enough.set()
    with pytest.raises(ClusterError, match="ended by force"):
        job.wait(SECONDS)


def test_what_has_made_the_job_fail_is_raised_rather_than_what_follows_from_it() -> None:
    with pytest.raises(PeerFailed, match="no_such_thing"), begin(faulty, iter(["a"])) as job:
        while job.is_running:
            threading.Event().wait(0.01)
        raise ConnectionError("The job's launcher does not answer")


def test_a_job_that_cannot_start_says_so_where_it_was_asked_for() -> None:
    with pytest.raises(UsageError, match="--processes must be at least 1"):
        begin(dataflow, iter("a"), processes=0)


@pytest.mark.slow  # another interpreter
def test_an_error_that_nobody_catches_is_the_last_word_and_alone() -> None:
    program = (
        "from tests.job.launcher.test_started_job import *\nif __name__ == '__main__':\n"
        "    begin(faulty, iter(['a'])).wait()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert ended.returncode == 1 and not ended.stdout
    first, file, *_, last = ended.stderr.splitlines()
    assert first.startswith("Traceback") and __file__ in file and "record 'a'" in last, ended.stderr
    assert "launcher/started_job.py" not in ended.stderr


@pytest.mark.slow  # another interpreter
def test_a_job_that_the_program_leaves_running_is_ended_with_it(tmp_path: Path) -> None:
    program = (
        "from tests.job.launcher.test_started_job import *\nif __name__ == '__main__':\n"
        "    job = begin(dataflow, endless(threading.Event()))\n    print(job.status().workers[0].pid)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS)
    assert ended.returncode == 0 and "call wait() or stop()" in ended.stderr, ended.stderr
    assert not Path(f"/proc/{ended.stdout.strip()}").exists()


@dataclass
class Click:
    """An item; nothing of the dataflow refers to it."""

    user: str
    n: int


def clicks_of(flow: megaflow.Flow) -> Any:
    return flow.items().map(lambda click: (click.user, click.n)).stateful_state_machine(count, bins=8)


def endless_clicks(pulled: list[Click]) -> Iterator[Click]:
    """Clicks that are noted as they are pulled."""
    for number in itertools.count():
        pulled.append(Click("abc"[number % 3], 1))
        yield pulled[-1]


def counted(clicks: list[Click]) -> list[tuple[str, int]]:
    """What a plain loop makes of them, sorted."""
    totals: Counter[str] = Counter()
    found = []
    for click in clicks:
        totals[click.user] += click.n
        found.append((click.user, totals[click.user]))
    return sorted(found)


def test_outputs_come_while_the_job_runs_and_a_stop_works_off_what_was_pulled() -> None:
    pulled: list[Click] = []
    seen = []
    with megaflow.start(clicks_of, items=endless_clicks(pulled), processes=2) as job:
        for record in job.outputs():
            seen.append(record)
            if len(seen) == 500:
                assert job.control.move_bins(drain=0).bins == 4
            elif len(seen) == 1000:
                assert job.control.get("count", "a") > 0 and job.control.get("count", "z") is None
                assert not job.control.explain().held_by or job.status().state == "running"
            elif len(seen) == 2000:
                break
    seen += job.outputs()
    assert sorted(seen) == counted(pulled) and len(seen) == job.wait().lines
    assert [*job.outputs()] == []


@pytest.mark.parametrize("processes", [1, 2])
def test_a_stop_works_off_what_was_pulled_though_files_are_not_read_to_their_ends(
    tmp_path: Path, processes: int
) -> None:
    def dataflow(flow: megaflow.Flow) -> Any:
        words = flow.lines("text").map(lambda word: (word, 1))
        return words.concat(flow.items("clicks").map(lambda click: (click.user, click.n)))

    path, lines = tmp_path / "text", 2_000_000
    path.write_text("word\n" * lines)
    pulled: list[Click] = []
    given: Any = {"lines": {"text": str(path)}, "items": {"clicks": endless_clicks(pulled)}}
    with megaflow.start(dataflow, **given, rate=5000.0, processes=processes) as job:
        seen = [*itertools.islice(job.outputs(), 1000)]
    found = Counter(user for user, _ in itertools.chain(seen, job.outputs()))
    words = found.pop("word")
    assert 0 < words < lines, "of a file that which was read by then"
    assert found == Counter(click.user for click in pulled) and words + len(pulled) == job.wait().lines


def test_who_waits_for_the_end_has_all_kept_and_reads_it_then() -> None:
    clicks = [Click("abc"[number % 3], 1) for number in range(2000)]
    job = megaflow.start(clicks_of, items=iter(clicks))
    assert job.wait(SECONDS).records == 2000
    assert sorted(job.outputs()) == counted(clicks)


def test_two_jobs_of_one_program_in_threads_fed_by_queues() -> None:
    def work(letter: str) -> None:
        source: queue.Queue[Click] = queue.Queue()
        with megaflow.start(clicks_of, items=source) as job:
            outputs = job.outputs()
            for number in range(20):
                source.put(Click(letter, 1))
                found[letter].append(next(outputs))
                assert found[letter][-1] == (letter, number + 1)
        source.put(Click(letter, 7))
        assert source.qsize() == 1, "it is not read any more"

    found: dict[str, list[Any]] = {"a": [], "b": []}
    threads = [threading.Thread(target=work, args=(letter,)) for letter in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert found == {letter: [(letter, n + 1) for n in range(20)] for letter in "ab"}


def test_a_coroutine_feeds_a_job_and_reads_it() -> None:
    async def main() -> list[Any]:
        source: asyncio.Queue[Click] = asyncio.Queue()
        seen = []
        with megaflow.start(clicks_of, items=source) as job:
            source.put_nowait(Click("a", 1))
            async for record in job.outputs():
                seen.append(record)
                if len(seen) == 10:
                    break
                await source.put(Click("a", 1))
        return seen

    assert asyncio.run(main()) == [("a", n + 1) for n in range(10)]


def test_inputs_of_every_kind_go_together_and_one_that_blocks_does_not_hold_up_a_stop() -> None:
    def dataflow(flow: megaflow.Flow) -> Any:
        words = flow.items("blocking").concat(flow.items("ticking"), flow.lines("text"))
        return words.map(lambda word: (word, 1)).stateful_state_machine(count, bins=8)

    go_on = threading.Event()

    def blocking() -> Iterator[str]:
        yield "a"
        go_on.wait(SECONDS)

    async def ticking() -> AsyncIterator[str]:
        yield "b"
        await asyncio.sleep(SECONDS * 100)

    with megaflow.start(dataflow, items={"blocking": blocking(), "ticking": ticking()}, lines={"text": ["c"]}) as job:
        outputs = job.outputs()
        assert {next(outputs) for _ in "abc"} == {("a", 1), ("b", 1), ("c", 1)}
    assert not go_on.is_set() and job.wait().lines == 3
    go_on.set()


def test_an_error_of_the_program_comes_behind_what_came_before() -> None:
    def dataflow(flow: megaflow.Flow) -> Any:
        return flow.items().map(lambda n: 10 // (5 - n))

    go_on = threading.Event()

    def numbers() -> Iterator[int]:
        yield 0
        assert go_on.wait(SECONDS)
        yield 5

    outputs = megaflow.start(dataflow, items=numbers()).outputs()
    assert next(outputs) == 2
    go_on.set()
    for _ in range(2):
        with pytest.raises(PeerFailed, match="ZeroDivisionError"):
            next(outputs)


def test_a_block_that_is_left_by_an_error_ends_the_job_and_by_ctrl_c_works_off_what_was_pulled() -> None:
    pulled: list[Click] = []
    with pytest.raises(ZeroDivisionError), megaflow.start(clicks_of, items=endless_clicks([])) as job:
        raise ZeroDivisionError
    assert not job.is_running
    seen = []
    with pytest.raises(KeyboardInterrupt), megaflow.start(clicks_of, items=endless_clicks(pulled)) as job:
        for record in job.outputs():
            seen.append(record)
            if len(seen) == 100:
                raise KeyboardInterrupt
    assert not job.is_running
    assert sorted([*seen, *job.outputs()]) == counted(pulled)


@pytest.mark.slow  # until nothing grows any more
def test_a_reader_that_is_slow_holds_the_job_back() -> None:
    def dataflow(flow: megaflow.Flow) -> Any:
        return flow.items().map(lambda click: "x" * 1000)

    pulled: list[Click] = []
    with megaflow.start(dataflow, items=endless_clicks(pulled)) as job:
        wait_until_quiet(lambda: len(pulled))
        assert len(pulled) < 500_000, "some 4 MB of outputs are kept, and what is under way"
        seen = sum(1 for _ in itertools.islice(job.outputs(), 50_000))
    assert seen + sum(1 for _ in job.outputs()) == job.wait().lines == len(pulled)


def wait_until_quiet(counter: Callable[[], int]) -> None:
    """Wait until something does not grow any more."""
    before = -1
    while (now := counter()) != before or not now:
        before = now
        threading.Event().wait(1.0)


def codes_of(thread: threading.Thread) -> list[CodeType]:
    """What a thread is in."""
    assert thread.ident is not None
    frame, codes = sys._current_frames().get(thread.ident), []
    while frame is not None:
        codes.append(frame.f_code)
        frame = frame.f_back
    return codes


def test_a_run_that_is_interrupted_has_what_came_until_then() -> None:
    pulled: list[Click] = []

    def clicks() -> Iterator[Click]:
        told = False
        for click in endless_clicks(pulled):
            yield click
            if len(pulled) >= 1000 and not told and JobHandle.wait.__code__ in codes_of(threading.main_thread()):
                told = True
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as interrupt:
        megaflow.run(clicks_of, items=clicks())
    assert sorted(interrupt.value.records) == counted(pulled)  # type: ignore[attr-defined]


def test_what_is_wrong_with_inputs_is_said_where_the_job_is_started() -> None:
    with megaflow.start(clicks_of, items=[], output="none") as job, pytest.raises(UsageError, match="output= sends"):
        job.outputs()
    with pytest.raises(PeerFailed, match="The dataflow reads lines, but the job was given none"):
        megaflow.run(lambda flow: flow.lines())
    with pytest.raises(PeerFailed, match=r"the items 'clicks', but the job was given the items 'items'\. Give them"):
        megaflow.run(lambda flow: flow.items("clicks"), items=[1])
    with pytest.raises(UsageError, match=r"An asyncio\.Queue needs a running event loop"):
        megaflow.run(clicks_of, items=asyncio.Queue())
