"""A job that runs beside the program that started it: status, steering, waiting. Its errors reach the program."""

import _thread
import asyncio
import contextlib
import itertools
import os
import queue
import selectors
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import megaflow
from megaflow.control.client import commands
from megaflow.errors import ClusterError, CommandRefused, JobNotFound, JobRecovers, PeerFailed, PeerLost, UsageError
from megaflow.job.launcher.outputs.program_output import ProgramWriter
from megaflow.job.launcher.outputs.writer import ListWriter
from megaflow.job.launcher.program.function_pickler import pickle_app
from megaflow.job.launcher.run import started_job
from megaflow.job.launcher.run.launch import LaunchOptions
from megaflow.job.launcher.run.started_job import JobHandle
from megaflow.job.spec import JobSpec
from tests.forks import forked
from tests.results import check_equal, comparing
from tests.test_floor_plan import ROOT

SECONDS = 180.0


def count(word: str, n: int, total: int | None) -> tuple[int, list[tuple[str, int]]]:
    total = (total or 0) + n
    return total, [(word, total)]


def dataflow(flow: megaflow.Flow) -> Any:
    return flow.lines().map(lambda line: (line, 1)).stateful_state_machine(count, bins=8)


def faulty(flow: megaflow.Flow) -> Any:
    return flow.lines().map(lambda line: line.no_such_thing)  # type: ignore[attr-defined]


def endless(enough: threading.Event) -> Iterator[str]:
    """Yield lines until there are enough."""
    return itertools.takewhile(lambda line: not enough.wait(0.01), itertools.cycle("abc"))


def begin(function: Any, lines: Any, writer: ListWriter | None = None, **more: Any) -> JobHandle:
    return JobHandle(LaunchOptions(JobSpec(pickle_app(function), **more), lines, lambda: writer or ListWriter()))


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
    check_equal(summary.lines, len(writer.records))
    assert summary.lines > 0
    with pytest.raises(JobNotFound, match="has ended"):
        job.status()
    job.stop()


def test_stop_waits_for_a_job_that_ends_before_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_gone(*_: Any) -> None:
        raise JobNotFound("job 'job' does not answer at 127.0.0.1:2101: it has closed the connection")

    monkeypatch.setattr(started_job, "LOOK_SECONDS", 0.0001)
    monkeypatch.setattr(commands, "stop_job", is_gone)
    with begin(dataflow, endless(threading.Event())) as job:
        job.stop()
        assert not job.is_running


def test_a_command_under_way_when_the_job_ends_finds_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = threading.Event()
    with begin(dataflow, endless(threading.Event())) as job:  # else it may end by itself before the command begins

        def lose(*_: Any, **__: Any) -> None:
            if ends.is_set():
                job.stop()
            raise PeerLost("the connection ended")

        monkeypatch.setattr(commands, "ask_status", lose)
        with pytest.raises(PeerLost):
            job.status()
        ends.set()
        with pytest.raises(JobNotFound, match="has ended"):
            job.status()


def test_a_status_is_asked_again_after_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = commands.ask_status

    def lose(*_: Any, **__: Any) -> None:
        monkeypatch.setattr(commands, "ask_status", ask)
        raise JobRecovers("Job 'job' lost a process and is resuming")

    with begin(dataflow, endless(threading.Event())) as job:
        monkeypatch.setattr(commands, "ask_status", lose)
        assert job.status().workers


def test_a_job_that_does_not_answer_as_it_ends_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with begin(dataflow, endless(threading.Event())) as job:

        def refuse(*_: Any, **__: Any) -> None:
            threading.Thread(target=job.stop).start()
            raise JobNotFound("job 'job' does not answer at 127.0.0.1:2101: [Errno 111] Connection refused")

        monkeypatch.setattr(commands, "ask_status", refuse)
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
def sockets() -> dict[str, str]:
    """Return the sockets that this process has open."""
    found = {}
    for file in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the folder itself
            found[file] = os.readlink(f"/proc/self/fd/{file}")
    return {file: name for file, name in found.items() if name.startswith("socket:")}


@pytest.mark.parametrize(
    "more",
    [
        {"name": "-x"}, {"lines": "/nowhere"}, {"processes": 0}, {"listen": "busy"}, {"web": "busy"},
        {"args": [threading.Lock()]},
    ],
    ids=lambda more: next(iter(more)),
)
def test_a_start_that_fails_leaves_no_socket_open(more: dict[str, Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        place = f"127.0.0.1:{busy.getsockname()[1]}"
        given = {"lines": ["a"], **{name: place if each == "busy" else each for name, each in more.items()}}
        before = sockets()
        with pytest.raises(megaflow.errors.MegaflowError) as failed:
            megaflow.start(dataflow, **given)
        assert sockets() == before and failed.tb is not None  # whatever the traceback holds


@pytest.mark.cluster
def test_a_job_without_a_file_is_steered_by_its_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "runtime").touch()
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / "a.txt").write_text("a\n")
    monkeypatch.setenv("MEGAFLOW_RUNTIME_DIR", str(tmp_path / "runtime"))
    more: dict[str, Any] = {"lines": tmp_path / "lines", "follow": True, "output": "none"}
    job = megaflow.start(dataflow, **more)
    assert len(job.status().workers) == 1 and "commands do not find job" in caplog.text
    job.stop()
    assert job.wait().seconds > 0
    job = megaflow.start(dataflow, **more)
    job.end()
    assert not job.is_running
    with pytest.raises(ValueError, match="of the block"), megaflow.start(dataflow, **more):
        raise ValueError("of the block")


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
    """Yield clicks, and note each as it is pulled."""
    for number in itertools.count():
        pulled.append(Click("abc"[number % 3], 1))
        yield pulled[-1]


def counted(clicks: list[Click]) -> list[tuple[str, int]]:
    """Return the results of a plain loop, sorted."""
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
                with comparing():
                    assert job.control.get("count", "a") > 0 and job.control.get("count", "z") is None
                assert not job.control.explain().held_by or job.status().state == "running"
            elif len(seen) == 2000:
                break
    seen += job.outputs()
    check_equal(sorted(seen), counted(pulled))
    check_equal(len(seen), job.wait().lines)
    check_equal([*job.outputs()], [])


def test_arguments_of_another_type_are_refused_by_name() -> None:
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("remove_workers", {"id": [1]}, r"id must be of type int, not \[1\] \(list\)"),
        ("remove_workers", {"id": None}, "id must be of type int, not None"),
        ("add_workers", {"count": "2"}, r"count must be of type int, not '2' \(str\)"),
        ("add_workers", {"count": True}, "count must be of type int, not True"),
        ("add_workers", {"balance": 1}, "balance must be of type bool, not 1"),
        ("move_bins", {"balance": "load"}, "balance must be of type bool, not 'load'"),
        ("move_bins", {"drain": [0]}, "drain must be of type int"),
        ("move_bins", {"bins": [1, 2], "to": 1}, "bins must be of type str"),
        ("move_bins", {"drain": 0, "gap": "1"}, "gap must be of type float"),
        ("resume", {"gap": "1"}, "gap must be of type float"),
        ("checkpoint", {"name": 3}, "name must be of type str"),
        ("get", {"operator": 3, "key": "a"}, "operator must be of type str"),
    ]
    with megaflow.start(clicks_of, items=endless_clicks([])) as job:
        for call, given, why in wrong:
            with pytest.raises(UsageError, match=f"^{call}: {why}"):
                getattr(job, call)(**given)


def test_added_workers_get_their_share_of_the_bins_if_asked() -> None:
    pulled: list[Click] = []
    with megaflow.start(clicks_of, items=endless_clicks(pulled)) as job:
        seen = [next(iter(job.outputs()))]
        [joined] = job.control.add_workers(balance=True).joins
        assert {worker.id: worker.bins for worker in job.status().workers} == {0: 4, joined.workers[0]: 4}
    seen += job.outputs()
    check_equal(sorted(seen), counted(pulled))


@pytest.mark.slow
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
    check_equal(found, Counter(click.user for click in pulled))
    check_equal(job.wait().lines, words + len(pulled))


def test_who_waits_for_the_end_has_all_kept_and_reads_it_then() -> None:
    clicks = [Click("abc"[number % 3], 1) for number in range(2000)]
    job = megaflow.start(clicks_of, items=iter(clicks))
    check_equal(job.wait(SECONDS).records, 2000)
    check_equal(sorted(job.outputs()), counted(clicks))


def test_two_jobs_of_one_program_in_threads_fed_by_queues() -> None:
    def work(letter: str) -> None:
        source: queue.Queue[Click] = queue.Queue()
        with megaflow.start(clicks_of, items=source) as job:
            outputs = job.outputs()
            for number in range(20):
                source.put(Click(letter, 1))
                found[letter].append(next(outputs))
                check_equal(found[letter][-1], (letter, number + 1))
        source.put(Click(letter, 7))
        assert source.qsize() == 1, "it is not read any more"

    found: dict[str, list[Any]] = {"a": [], "b": []}
    threads = [threading.Thread(target=work, args=(letter,)) for letter in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    check_equal(found, {letter: [(letter, n + 1) for n in range(20)] for letter in "ab"})


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

    check_equal(asyncio.run(main()), [("a", n + 1) for n in range(10)])


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
        check_equal({next(outputs) for _ in "abc"}, {("a", 1), ("b", 1), ("c", 1)})
    assert not go_on.is_set()
    check_equal(job.wait().lines, 3)
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
    check_equal(next(outputs), 2)
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
    check_equal(sorted([*seen, *job.outputs()]), counted(pulled))


@pytest.mark.slow  # until nothing grows any more
def test_a_reader_that_is_slow_holds_the_job_back() -> None:
    def dataflow(flow: megaflow.Flow) -> Any:
        return flow.items().map(lambda click: "x" * 1000)

    pulled: list[Click] = []
    with megaflow.start(dataflow, items=endless_clicks(pulled)) as job:
        wait_until_quiet(lambda: len(pulled))
        assert len(pulled) < 500_000, "some 4 MB of outputs are kept, and what is under way"
        seen = sum(1 for _ in itertools.islice(job.outputs(), 50_000))
    seen += sum(1 for _ in job.outputs())
    check_equal(seen, job.wait().lines)
    check_equal(seen, len(pulled))


def wait_until_quiet(counter: Callable[[], int]) -> None:
    """Wait until a value stops growing."""
    before = -1
    while (now := counter()) != before or not now:
        before = now
        threading.Event().wait(1.0)


def codes_of(thread: threading.Thread) -> list[CodeType]:
    """Return the code objects that a thread is running."""
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
    check_equal(sorted(interrupt.value.records), counted(pulled))  # type: ignore[attr-defined]


def interrupt_in(code: CodeType) -> list[float]:
    """Start a thread that interrupts the main thread while it runs this code; the list gets the time."""

    def interrupt() -> None:
        while code not in codes_of(threading.main_thread()):
            if time.monotonic() > deadline:
                return
            threading.Event().wait(0.01)
        began.append(time.monotonic())
        _thread.interrupt_main()

    began, deadline = list[float](), time.monotonic() + SECONDS / 2
    threading.Thread(target=interrupt).start()
    return began


def test_interrupt_main_ends_a_wait() -> None:
    with megaflow.start(clicks_of, items=queue.Queue(), output="none") as job:
        began = interrupt_in(JobHandle.wait.__code__)
        with pytest.raises(KeyboardInterrupt):
            job.wait(SECONDS)
        assert time.monotonic() - began[0] < 60, "0.2 s on an idle machine"


def test_interrupt_main_ends_a_wait_of_a_coroutine() -> None:
    async def main() -> None:
        with megaflow.start(clicks_of, items=queue.Queue()) as job:
            began.append(interrupt_in(selectors.DefaultSelector.select.__code__))
            jobs.append(job)
            async for _ in job.outputs():
                pass

    began: list[list[float]] = []
    jobs: list[JobHandle] = []
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert time.monotonic() - began[0][0] < 60, "0.2 s on an idle machine"
    assert not jobs[0].is_running


def test_a_fork_cannot_read_or_stop_the_job() -> None:
    with megaflow.start(clicks_of, items=endless_clicks([])) as job:
        outputs = job.outputs()
        assert next(outputs)

        def in_fork() -> list[str]:
            refused = []
            for call in (lambda: next(outputs), job.outputs, job.wait):
                try:
                    call()
                except UsageError as error:
                    refused.append(str(error).partition(",")[0])
            job.stop()
            job.end()
            with job:
                pass
            return [*refused, f"{len(job.status().workers)} worker"]

        with forked(in_fork) as said:
            assert said == repr([f"This process is a fork of process {os.getpid()}"] * 3 + ["1 worker"])
        assert job.is_running and next(outputs)


def test_what_is_wrong_with_inputs_is_said_where_the_job_is_started() -> None:
    with megaflow.start(clicks_of, items=[], output="none") as job, pytest.raises(UsageError, match="output= sends"):
        job.outputs()
    with pytest.raises(PeerFailed, match="The dataflow reads lines, but the job was given none"):
        megaflow.run(lambda flow: flow.lines())
    with pytest.raises(PeerFailed, match=r"the items 'clicks', but the job was given the items 'items'\. Give them"):
        megaflow.run(lambda flow: flow.items("clicks"), items=[1])
    with pytest.raises(UsageError, match=r"An asyncio\.Queue needs a running event loop"):
        megaflow.run(clicks_of, items=asyncio.Queue())


def dying_once(flow: megaflow.Flow) -> Any:
    """Kill the process at the first line, unless the file that is the first argument exists."""

    def die(line: str) -> str:
        if not os.path.exists(flow.args[0]):
            Path(flow.args[0]).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return line

    return flow.lines().map(die)


def test_a_restart_is_warned_of_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "lines").write_text("a\nb\n")
    with caplog.at_level("INFO", "megaflow"):
        job = megaflow.start(
            dying_once, lines=str(tmp_path / "lines"), state=tmp_path / "kept", args=[str(tmp_path / "died")]
        )
        summary = job.wait(SECONDS)
    assert summary.restarts == 1
    check_equal((summary.lines, summary.late), (2, Counter()))
    said = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "megaflow.job"]
    assert [text for level, text in said if level == "WARNING" and "restart 1 of 3" in text]
    assert [level for level, text in said if "steer it with" in text or "2 lines, 2 records" in text] == ["INFO"] * 2


def test_a_summary_counts_skipped_lines_and_dropped_records(caplog: pytest.LogCaptureFixture) -> None:
    def counting(flow: megaflow.Flow) -> Any:
        numbers = flow.json_lines(on_error="skip").event_time(float)
        flow.output("kept", numbers.window(megaflow.tumbling(10), key=str, name="kept").late())
        return numbers.window(megaflow.tumbling(10), key=str, name="dropping").count()

    with megaflow.start(counting, lines=["30", "1", "{", "2"], outputs={"kept": []}) as job:
        summary = job.wait(SECONDS)
    check_equal((summary.skipped, summary.late), ({"": 1}, {"dropping": 2}))
    check_equal(summary.windowed, {"dropping": 3, "kept": 3})
    assert caplog.records[-1].getMessage().endswith(
        "; 1 fault skipped; 2 of 3 records were late and left out by 'dropping'"
    )
    assert {record.levelname for record in caplog.records} == {"WARNING"}


def failing_at_a_word(flow: megaflow.Flow) -> Any:
    def fail(item: str) -> str:
        if item == "fail":
            raise ValueError("no such word")
        return item

    return flow.items().map(fail)


def failures(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]


def test_a_failure_that_no_call_raises_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    job = megaflow.start(failing_at_a_word, items=(items := queue.Queue[Any]()), output="none")
    assert failures(caplog) == []
    items.put("fail")
    while not failures(caplog):
        time.sleep(0.01)
    for _ in range(2):
        with pytest.raises(ValueError, match="no such word"):
            job.wait(SECONDS)
    (said,) = failures(caplog)
    assert f"the job {job.name!r} has failed: Traceback" in said and "no such word" in said


@pytest.mark.parametrize("way", ["wait", "outputs"])
def test_a_failure_that_a_call_raises_is_not_logged(way: str, caplog: pytest.LogCaptureFixture) -> None:
    writer = ProgramWriter(durable=False)

    def items() -> Iterator[str]:
        while not (writer.is_awaited if way == "outputs" else job.is_awaited):
            time.sleep(0.01)
        yield "fail"

    options = LaunchOptions(JobSpec(pickle_app(failing_at_a_word)), None, lambda: writer, items=items())
    job = JobHandle(options, writer)
    with pytest.raises(ValueError, match="no such word"):
        next(job.outputs()) if way == "outputs" else job.wait(SECONDS)
    assert failures(caplog) == []


def test_a_stop_with_state_counts_what_it_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def counting(flow: megaflow.Flow) -> Any:
        numbers = flow.json_lines(on_error="skip").event_time(float)
        return numbers.window(megaflow.tumbling(10), key=str, name="dropping").count()

    def line(number: int) -> str:
        return "{" if number % 7 == 3 else str(number - 50 if number % 5 == 4 else number)

    def left_out(*summaries: Any) -> Any:
        names = "skipped", "late", "windowed"
        return [sum((getattr(each, name) for each in summaries), Counter()) for name in names]

    (tmp_path / "lines").write_text("".join(f"{line(number)}\n" for number in range(2000)))
    given = {"lines": str(tmp_path / "lines"), "output": "none"}
    whole = megaflow.start(counting, **given).wait(SECONDS)
    with megaflow.start(counting, state=tmp_path / "kept", rate=100, **given) as job:
        while job.status().workers[0].records < 20:
            time.sleep(0.05)
    first, said = job.wait(SECONDS), caplog.records[-1]
    late = f"{first.late['dropping']} of {first.windowed['dropping']} records were late and left out by 'dropping'"
    expected = f"; {first.skipped['']} faults skipped; {late}; stopped at checkpoint"
    assert said.levelname == "WARNING" and expected in said.getMessage(), said
    second = megaflow.start(counting, state=tmp_path / "kept", **given).wait(SECONDS)
    assert 0 < first.lines < 2000
    check_equal(first.lines + second.lines, whole.lines)
    check_equal(left_out(first, second), left_out(whole))


def test_jobs_lists_what_runs_and_stops_it() -> None:
    enough = threading.Event()
    with begin(dataflow, endless(enough), name="listed") as job:
        [found] = [each for each in megaflow.jobs() if each.name == "listed"]
        assert (found.pid, found.state) == (os.getpid(), None) and "secret" not in repr(found)
        status = found.control.status()
        assert status.job == "listed"
        assert repr(status).startswith("<JobStatus: 'listed' is running; workers 1, epoch ") and len(repr(status)) < 120
        found.stop()  # while there are lines: the job must not end by itself
        summary = job.wait(SECONDS)
        enough.set()
    assert repr(summary).startswith(f"<RunSummary: {summary.lines} line") and len(repr(summary)) < 120
    assert "listed" not in [each.name for each in megaflow.jobs()]


def test_help_on_run_begins_with_an_example_that_runs() -> None:
    assert megaflow.run.__doc__ is not None
    _, example, *_ = megaflow.run.__doc__.split("\n\n    Inputs:")[0].split("\n\n", 1)
    code, _, result = textwrap.dedent(example).rpartition("#")
    before, _, call = code.strip().rpartition("\n")
    names: dict[str, Any] = {"megaflow": megaflow}
    exec(before, names)
    check_equal(repr(eval(call, names)), result.strip())


def test_a_failed_job_raises_its_error_at_status_and_not_at_stop() -> None:
    job = megaflow.start(faulty, lines=["a"])
    while job.is_running:
        time.sleep(0.01)
    for call in (job.status, job.control.explain, job.wait):
        with pytest.raises(AttributeError, match="no_such_thing"):
            call()
    job.stop()
