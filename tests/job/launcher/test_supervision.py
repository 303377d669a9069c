"""A durable job recovers from its last checkpoint after a loss, a few times, but not from errors that would recur."""

import errno
import gzip
import os
import selectors
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from megaflow.control.launcher_messages import RestartStops, StopRestart
from megaflow.control.messages import InputNames, Split
from megaflow.durable.commits import Commit, Fingerprint, OutputLength, SinkToken
from megaflow.errors import (
    ClusterError,
    KeepsFailing,
    MegaflowError,
    OutputError,
    PeerFailed,
    ProtocolError,
    RecordRefused,
    StoreDamaged,
    StoreError,
    StoreUnfit,
)
from megaflow.job.formats.raw_file import print_of
from megaflow.job.job_file import Job
from megaflow.job.launcher.inputs.launcher_input import JobInput, Resumption
from megaflow.job.launcher.outputs.output_queue import OutputQueue
from megaflow.job.launcher.outputs.writer import ListWriter
from megaflow.job.launcher.processes.child_process import Child
from megaflow.job.launcher.processes.children import Children
from megaflow.job.launcher.processes.drain_limit import DrainLimit
from megaflow.job.launcher.processes.wakeups import Signals, Wakeup
from megaflow.job.launcher.run import supervision as module
from megaflow.job.launcher.run.machine import JobParts, Machine
from megaflow.job.launcher.run.run_summary import RunSummary
from megaflow.job.launcher.run.supervision import Supervision, is_loss
from megaflow.job.launcher.store.commit_draft import ToCommit
from megaflow.job.launcher.store.input_positions import InputPositions
from megaflow.job.launcher.store.resumption import resume
from megaflow.job.launcher.store.store_keeper import StoreKeeper
from megaflow.job.program_code import digest
from megaflow.job.spec import Address, AppFile, JobSpec
from tests.words import says

LOST = ClusterError("worker 1 was killed")
FIRST, SECOND, BY_HAND = ("h", 1), ("h", 2), ("h", 3)
WAIT_SECONDS = 90.0

Attempt = Callable[["Bench"], MegaflowError | None]


class Bench:
    """A job whose attempts are calls, in order. The result of each call ends its attempt."""

    def __init__(
        self, folder: Path, stack: ExitStack, restarts: int, attempts: Sequence[Attempt], shrink: bool = False
    ) -> None:
        self.folder, self.lines, self.app = folder, folder / "lines", folder / "app.py"
        self.lines.write_text("line\n" * 10)
        self.app.write_text("dataflow = 1")
        self.reports: list[str] = []
        self.published: list[Job] = []
        self.stayed: list[list[Address]] = []  # of the processes that founded an attempt
        self.founded: list[tuple[Resumption, tuple[Address, ...]]] = []
        self.clock = 0.0
        self.has_slots = True
        self.given_up = False
        self._attempts = list(attempts)
        self.spec = JobSpec(AppFile(str(self.app), "dataflow"), processes=2, restarts=restarts, shrink=shrink)
        self.signals = Signals()
        stack.callback(self.signals.close)
        self.children = stack.enter_context(Children(is_durable=True))
        self.keeper = StoreKeeper(str(folder / "store"), "app.py:dataflow", 3)
        stack.callback(self.keeper.close)
        self.writer = ListWriter()
        self.output = OutputQueue(self.writer)
        stack.callback(self.output.close)
        size = self.lines.stat().st_size
        job_input = JobInput(splits=(Split(0, str(self.lines), 0, size),))
        begun = resume(self.keeper, self.spec, self.writer, job_input, self.reports.append)
        self.drain_limit = DrainLimit(b"", self.children)
        machine = Machine(
            now=lambda: self.clock, wall=lambda: 1000.0, selector=self.selector, publish=self.published.append
        )
        parts = JobParts(
            self.children, self.output, self.signals, self.reports.append, self.drain_limit, self.keeper, machine
        )
        self.supervision = Supervision(
            self.spec, parts, self, begun, Job("job", 1, None, *FIRST, "secret", attempt=1)  # type: ignore[arg-type]
        )

    def selector(self) -> Any:
        """Return a selector for which time passes at once, unless it must wait for a thread."""
        real = selectors.DefaultSelector()

        def select(seconds: float | None) -> Any:
            self.clock += seconds or 0.0
            return real.select(WAIT_SECONDS if seconds is None else 0.0)

        return SimpleNamespace(register=real.register, select=select, close=real.close)

    def seek(self, begun: Resumption, again: Sequence[Address]) -> None:
        self.again = again

    def settled(self) -> Sequence[Address] | None:
        return self.again if self.has_slots else None

    def waits_for(self) -> str:
        return "2 queued: no free slot"

    def give_up(self) -> None:
        self.given_up = True

    def found(self, begun: Resumption, addresses: Sequence[Address]) -> None:
        self.founded.append((begun, tuple(addresses)))
        self.stayed.append([address for address in addresses if self.children.take_staying(address) is not None])
        for worker, address in enumerate(addresses):
            process: Any = SimpleNamespace(
                kill=lambda: None, wait=lambda: None, poll=lambda: None, stdin=SimpleNamespace(close=lambda: None)
            )
            self.children.all.append(Child(address, process))
            self.children.all[-1].join([worker])

    def start(self, *_: Any) -> Any:
        raise AssertionError("no more are started")

    def run(self) -> RunSummary:
        """Run the job to its end."""
        self.supervision.begin((FIRST, SECOND))
        return self.supervision.run()

    def loop(self, parts: JobParts, start: Any, job_input: Any, job: Job, warned: Any) -> Any:
        """Stand in for an attempt's loop."""
        attempt = self._attempts.pop(0)

        def steps(*_: Any) -> Iterator[float | None]:
            self.keeper.start(lambda: None)
            self.output.start(lambda: None)
            yield 0.0
            if (error := attempt(self)) is not None:
                raise error

        return SimpleNamespace(
            turns=steps, job=job, selector=self.selector(), close=lambda: None, summary=RunSummary(), waits_text=str
        )

    def commit(
        self, checkpoint: int, length: int = 0, read: int = 10, code: Fingerprint | None = None,
        tokens: tuple[SinkToken, ...] = (),
    ) -> None:  # fmt: skip
        """Commit a checkpoint with an output of this length."""
        latest, woken = self.keeper.latest, Wakeup()
        self.keeper.start(woken.wake)
        outputs = (OutputLength("records", 0),)
        commit = replace(
            latest, checkpoint=checkpoint, time=10 * checkpoint, written_at=998.0, code=code, outputs=outputs
        )
        left = Split(0, str(self.lines), read, 50, print=print_of(str(self.lines), read))
        self.keeper.commit(ToCommit(replace(commit, tokens=tokens), (left,), length))
        woken.clear()
        assert [result.checkpoint for result in self.keeper.results()] == [checkpoint]
        woken.close()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Bench]]:
    with ExitStack() as stack:

        def made(*attempts: Attempt, restarts: int = 3, shrink: bool = False) -> Bench:
            bench = Bench(tmp_path, stack, restarts, attempts, shrink)
            monkeypatch.setattr(module, "Loop", bench.loop)
            return bench

        yield made


def ends(bench: Bench) -> None:
    """Simulate the attempt in which the job ends."""


def is_lost(bench: Bench) -> MegaflowError:
    return LOST


def test_a_lost_process_is_followed_by_an_attempt_from_the_last_checkpoint_with_what_the_launcher_had(
    job: Callable[..., Bench],
) -> None:
    def commits_and_is_lost(bench: Bench) -> MegaflowError:
        bench.output.put([(1, ["a", "b"], ""), (2, ["c"], "")])
        bench.commit(4, length=2)
        bench.children.all.append(Child(BY_HAND))
        bench.children.all[-1].join([2])
        bench.children.coordinator = SECOND
        return LOST

    bench = job(commits_and_is_lost, ends)
    assert bench.run().since == 4, "what an attempt read and wrote counts from its checkpoint"
    (first, before), (second, after) = bench.founded
    assert (before, after) == ((FIRST, SECOND), (SECOND, FIRST)), "at first where it was coordinated"
    assert [(split.start, split.end) for split in second.job_input.splits] == [(10, 50)]
    assert first.part is not None and second.part is not None
    assert (second.part.incarnation, second.part.commit) == (first.part.incarnation + 1, 3)
    [report] = bench.reports
    assert says(report, "worker 1 was killed", "restart 1 of 3", "checkpoint 4, 2 s old", "before epoch 40")
    assert [(each.host, each.port, each.attempt, each.recovering) for each in bench.published] == [
        (*SECOND, 2, "restart 1 of 3: worker 1 was killed"), (*SECOND, 2, "")
    ]  # fmt: skip
    bench.output.close()
    assert bench.writer.records == ["a", "b"], "what is behind the checkpoint comes again"


def test_a_job_that_shrinks_goes_on_with_one_process_less_as_long_as_there_is_one(job: Callable[..., Bench]) -> None:
    def loses_the_first(bench: Bench) -> MegaflowError:
        process: Any = bench.children.all[0].process
        process.poll = lambda: -9
        return LOST

    bench = job(loses_the_first, is_lost, loses_the_first, ends, shrink=True)
    bench.run()
    assert [addresses for _, addresses in bench.founded] == [(FIRST, SECOND), (SECOND,), (SECOND,), (SECOND,)]
    assert [report.split("; ")[1].split(":")[0] for report in bench.reports] == [
        "restart 1 of 3 with 1 process", "restart 2 of 3", "restart 3 of 3"
    ]  # fmt: skip
    first = next(each.recovering for each in bench.published if each.recovering)
    assert first == "restart 1 of 3 with 1 process: worker 1 was killed"


def test_who_stays_is_kept_after_the_first_loss_of_a_row_only(job: Callable[..., Bench]) -> None:
    def stays(bench: Bench) -> MegaflowError:
        for child in bench.children.all:
            pipe: Any = SimpleNamespace(stays=True, kept=((1, 2),), close=lambda: None)
            child.pipe = pipe
        return LOST

    def commits_and_stays(bench: Bench) -> MegaflowError:
        bench.commit(1)
        return stays(bench)

    bench = job(stays, stays, stays, commits_and_stays, ends)
    bench.run()
    both = [FIRST, SECOND]
    assert bench.stayed == [[], both, [], [], both], "a second one in a row is followed by new processes"
    assert [begun.kept for begun, _ in bench.founded] == [(), ((1, 2),) * 2, (), (), ((1, 2),) * 2]


def test_losses_are_counted_from_checkpoint_to_checkpoint_and_waited_for_longer_and_longer(
    job: Callable[..., Bench],
) -> None:
    def commits_and_is_lost(bench: Bench) -> MegaflowError:
        bench.commit(1)
        return LOST

    bench = job(is_lost, is_lost, commits_and_is_lost, is_lost, is_lost, restarts=2)
    with pytest.raises(ClusterError, match=r"worker 1 was killed; no checkpoint was taken since restart 1 of 2$"):
        bench.run()
    assert [report.split("; ")[1].split(":")[0] for report in bench.reports] == [
        "restart 1 of 2", "restart 2 of 2", "restart 1 of 2", "restart 2 of 2"
    ]  # fmt: skip
    assert bench.clock == pytest.approx(0.0 + 0.2 + 0.0 + 0.2)


def ends_itself(number: int) -> Attempt:
    """A process ends with this exit code, and is blamed."""

    def attempt(bench: Bench) -> MegaflowError:
        process: Any = bench.children.all[0].process
        process.poll, process.pid = lambda: number, 0
        error = bench.children.blame([])
        assert isinstance(error, ClusterError)
        return error

    return attempt


@pytest.mark.parametrize(
    ("ends", "is_kept"),
    [([3, 3, 3], False), ([-11, 3, -6], False), ([-9, -9, -9], True), ([3, -9, 3], True), ([-15, 3, 3], True)],
)
def test_the_same_command_helps_unless_all_ended_by_themselves(
    job: Callable[..., Bench], ends: list[int], is_kept: bool
) -> None:
    bench = job(*map(ends_itself, ends), restarts=2)
    with pytest.raises(ClusterError, match="no checkpoint was taken since restart 1 of 2") as raised:
        bench.run()
    assert isinstance(raised.value, KeepsFailing) is (not is_kept) is (not is_loss(raised.value))


@pytest.mark.parametrize(
    ("number", "helps"), [(errno.ENOSPC, True), (errno.EIO, True), (errno.EFBIG, False), (errno.EACCES, False)]
)
def test_an_output_error_is_final_if_a_user_has_to_change_something(number: int, helps: bool) -> None:
    error = OutputError("cannot write")
    error.__cause__ = OSError(number, "…")
    assert is_loss(error) is helps
    assert not is_loss(RecordRefused("no such column", 0))


def test_losses_that_come_often_end_the_job_though_there_are_checkpoints_between(job: Callable[..., Bench]) -> None:
    def commits_and_is_lost(seconds: float) -> Attempt:
        def attempt(bench: Bench) -> MegaflowError:
            bench.clock += seconds
            bench.commit(bench.keeper.latest.checkpoint + 1)
            return LOST

        return attempt

    bench = job(*[commits_and_is_lost(61.0)] * 12, *[commits_and_is_lost(2.0)] * 20, restarts=1)
    with pytest.raises(ClusterError) as raised:
        bench.run()
    assert says(str(raised.value), "worker 1 was killed", "11 times within 10 minutes")
    assert is_loss(raised.value) and len(bench.reports) == 12, "once a minute it goes on"


@pytest.mark.parametrize(
    "error",
    [
        PeerFailed("ValueError"), ProtocolError("x"), StoreError("no checkpoint"), StoreUnfit("no operator"),
        StoreDamaged("restore it"),
    ],
)  # fmt: skip
def test_what_would_come_again_ends_the_job(job: Callable[..., Bench], error: MegaflowError) -> None:
    bench = job(lambda bench: error)
    with pytest.raises(type(error)) as raised:
        bench.run()
    assert raised.value is error and bench.reports == []
    assert is_loss(error) is (type(error) is StoreError), "whose state is kept"


def test_the_state_of_a_job_whose_output_has_no_room_is_kept() -> None:
    assert is_loss(OutputError("no space left"))


@pytest.mark.parametrize("why", ["stopped", "draining", "never", "only by hand"])
def test_a_job_that_is_not_to_go_on_does_not(job: Callable[..., Bench], why: str) -> None:
    def is_lost(bench: Bench) -> MegaflowError:
        if why == "stopped":
            bench.signals.received.append(2)
        if why == "draining":
            bench.drain_limit.drain(0.0, None)
        if why == "only by hand":
            for child in bench.children.all:
                child.process = None
        return LOST

    bench = job(is_lost, restarts=0 if why == "never" else 3)
    with pytest.raises(ClusterError) as raised:
        bench.run()
    assert raised.value is LOST and bench.reports == []


def test_a_forced_end_ends_the_wait_for_the_next_attempt(job: Callable[..., Bench]) -> None:
    bench = job(is_lost, is_lost)
    bench.supervision.begin((FIRST, SECOND))
    attempts = bench.supervision.turns()
    while len(bench.reports) < 2:
        seconds = next(attempts)
        bench.supervision.selector.select(seconds)
    bench.drain_limit.is_forced = True
    with pytest.raises(ClusterError, match="ended by force"):
        next(attempts)


@pytest.mark.parametrize("delivers", [False, True])
def test_a_stop_ends_the_wait_for_slots_at_the_last_checkpoint(job: Callable[..., Bench], delivers: bool) -> None:
    def commits_and_is_lost(bench: Bench) -> MegaflowError:
        bench.output.put([(1, ["a"], ""), (2, ["b"], "")])
        bench.commit(4, length=1, tokens=(SinkToken("table", 4, b"token"),) if delivers else ())
        return LOST

    bench = job(commits_and_is_lost)
    bench.has_slots = False
    bench.supervision.begin((FIRST, SECOND))
    assert bench.drain_limit.stop_restart(StopRestart()) == RestartStops(False), "the coordinator can answer"
    attempts = bench.supervision.turns()
    while not any("queued" in each.recovering for each in bench.published):
        bench.supervision.selector.select(next(attempts))
    assert bench.drain_limit.stop_restart(StopRestart()) == RestartStops(True)
    for seconds in attempts:
        bench.supervision.selector.select(seconds)
    assert bench.supervision.loop.summary.stopped_at == 4 and bench.given_up and len(bench.founded) == 1
    bench.output.close()
    assert bench.writer.records == ["a"], "what is behind the checkpoint comes again"
    left = [each for each in bench.reports if says(each, "rows of checkpoint 4", "'table'", "delivers them again")]
    assert len(left) == delivers


def test_a_stop_that_is_too_late_for_the_wait_is_refused(job: Callable[..., Bench]) -> None:
    answers = []

    def is_asked(bench: Bench) -> None:
        answers.append(bench.drain_limit.stop_restart(StopRestart()))

    job(is_lost, is_asked).run()
    assert answers == [RestartStops(False)]


@pytest.mark.parametrize("allow_loss", [False, True])
def test_a_log_compressed_before_a_restart_is_not_lost(job: Callable[..., Bench], allow_loss: bool) -> None:
    def is_lost_with_a_log(bench: Bench) -> MegaflowError:
        names = InputNames(followed=(("", f"{bench.folder}/app.log*", ""),))
        begun = bench.supervision.begun
        bench.supervision.begun = replace(begun, job_input=replace(begun.job_input, names=names))
        bench.commit(1)  # in second 998
        log = bench.folder / "app.log.1.gz"
        log.write_bytes(gzip.compress(b"one\n"))
        os.utime(log, (999.0, 999.0))
        return LOST

    bench = job(is_lost_with_a_log, ends)
    bench.supervision.spec = replace(bench.spec, allow_loss=allow_loss)
    if allow_loss:
        bench.run()
        assert says(bench.reports[0], "skipping compressed files", "app.log.1.gz")
    else:
        with pytest.raises(StoreError) as refused:
            bench.run()
        assert says(str(refused.value), "worker 1 was killed", "cannot tell whether it has read", "app.log.1.gz")


def test_a_program_that_has_changed_meanwhile_is_not_begun_by_itself(job: Callable[..., Bench]) -> None:
    def commits_and_is_lost(bench: Bench) -> MegaflowError:
        code = Fingerprint("app.py:dataflow", (), {"app.py": digest(bench.app.read_bytes())})
        bench.commit(1, code=code)
        return LOST

    def commits_changes_and_is_lost(bench: Bench) -> MegaflowError:
        bench.app.write_text("dataflow = 2")
        return LOST

    bench = job(commits_and_is_lost, commits_changes_and_is_lost)
    with pytest.raises(ClusterError) as raised:
        bench.run()
    assert says(str(raised.value), "worker 1 was killed", "the program has changed", "app.py differs")
    assert is_loss(raised.value) and len(bench.founded) == 2


def test_an_input_that_has_changed_meanwhile_is_said(job: Callable[..., Bench]) -> None:
    def commits_and_is_lost(bench: Bench) -> MegaflowError:
        bench.commit(1)
        bench.lines.write_text("LINE\n" * 10)
        return LOST

    bench = job(commits_and_is_lost)
    with pytest.raises(StoreError, match=r"worker 1 was killed; .*lines' has changed in its first 10 bytes"):
        bench.run()


@pytest.mark.parametrize("has_committed", [True, False])
@pytest.mark.parametrize("has_successor", [True, False])
def test_a_renamed_input_is_left_to_the_next_launcher(
    job: Callable[..., Bench], has_committed: bool, has_successor: bool
) -> None:
    def is_lost_after_a_rename(bench: Bench) -> MegaflowError:
        if has_committed:
            bench.commit(1)
        bench.lines.rename(bench.lines.with_name("renamed"))
        if has_successor and has_committed:
            bench.lines.write_text("LINE\n" * 10)
        return LOST

    bench = job(is_lost_after_a_rename)
    with pytest.raises(ClusterError, match=r"was killed; the job does not restart .*lines' was renamed") as raised:
        bench.run()
    assert is_loss(raised.value)


def test_a_file_that_was_read_may_have_a_successor_when_the_job_recovers(job: Callable[..., Bench]) -> None:
    def commits_and_is_lost(bench: Bench) -> MegaflowError:
        bench.commit(1, read=50)
        bench.lines.write_text("LINE\n" * 10)
        return LOST

    bench = job(commits_and_is_lost, ends)
    bench.run()
    assert [len(begun.job_input.splits) for begun, _ in bench.founded] == [1, 0]


def test_the_input_of_a_store_without_a_checkpoint_is_read_anew(job: Callable[..., Bench]) -> None:
    bench = job(is_lost, ends)
    bench.run()
    assert [begun.job_input.splits[0].start for begun, _ in bench.founded] == [0, 0]
    assert bench.founded[1][0].part is not None and bench.founded[1][0].part.commit is None
    assert isinstance(bench.keeper.input, InputPositions) and isinstance(bench.keeper.latest, Commit)
