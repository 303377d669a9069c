"""A durable job goes on after a loss from its last checkpoint, a few times, and never after what would come again."""

import selectors
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from megaflow.control.messages import Split
from megaflow.durable.commits import Commit, Fingerprint, OutputLength
from megaflow.errors import (
    ClusterError,
    MegaflowError,
    OutputError,
    PeerFailed,
    ProtocolError,
    StoreDamaged,
    StoreError,
    StoreUnfit,
)
from megaflow.job.job_file import Job
from megaflow.job.launcher import supervision as module
from megaflow.job.launcher.child_process import Child
from megaflow.job.launcher.children import Children
from megaflow.job.launcher.early_end import EarlyEnd
from megaflow.job.launcher.epoch_merge import ListWriter
from megaflow.job.launcher.kept_input import KeptInput
from megaflow.job.launcher.launcher_input import JobInput
from megaflow.job.launcher.machine import Machine
from megaflow.job.launcher.output_queue import OutputQueue
from megaflow.job.launcher.resumption import Resumption, resume
from megaflow.job.launcher.run_summary import RunSummary
from megaflow.job.launcher.store_keeper import StoreKeeper
from megaflow.job.launcher.supervision import Supervision, is_loss
from megaflow.job.launcher.wakeups import Signals, Wakeup
from megaflow.job.program_code import digest
from megaflow.job.spec import Address, AppFile, JobSpec

LOST = ClusterError("worker 1 was killed")
FIRST, SECOND, BY_HAND = ("h", 1), ("h", 2), ("h", 3)
WAIT_SECONDS = 30.0

Life = Callable[["Bench"], MegaflowError | None]


class Bench:
    """A job whose lives are calls, in order: what each returns is what ends it."""

    def __init__(
        self, folder: Path, stack: ExitStack, restarts: int, lives: Sequence[Life], shrink: bool = False
    ) -> None:
        self.folder, self.lines, self.app = folder, folder / "lines", folder / "app.py"
        self.lines.write_text("line\n" * 10)
        self.app.write_text("dataflow = 1")
        self.reports: list[str] = []
        self.published: list[Job] = []
        self.stayed: list[list[Address]] = []  # of those that have founded a life
        self.founded: list[tuple[Resumption, tuple[Address, ...]]] = []
        self.clock = 0.0
        self._lives = list(lives)
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
        self.early_end = EarlyEnd(b"", self.children)
        self.supervision = Supervision(
            self.spec, self.children, self, begun, self.output, self.signals, self.reports.append,
            Job("job", 1, None, *FIRST, "secret", life=1), self.early_end,
            Machine(now=lambda: self.clock, wall=lambda: 1000.0, selector=self.selector, publish=self.published.append),
            self.keeper,
        )  # fmt: skip

    def selector(self) -> Any:
        """One for which the time passes at once, unless it is to wait for a thread."""
        real = selectors.DefaultSelector()

        def select(seconds: float | None) -> Any:
            self.clock += seconds or 0.0
            return real.select(WAIT_SECONDS if seconds is None else 0.0)

        return SimpleNamespace(register=real.register, select=select, close=real.close)

    def seek(self, begun: Resumption, again: Sequence[Address]) -> None:
        self.again = again

    def settled(self) -> Sequence[Address]:
        return self.again

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
        """Run to the end."""
        self.supervision.begin((FIRST, SECOND))
        return self.supervision.run()

    def loop(self, children: Children, start: Any, *more: Any) -> Any:
        """Stand in for a life's loop."""
        life = self._lives.pop(0)

        def steps(*_: Any) -> Iterator[float | None]:
            self.supervision.keeper.start(lambda: None)  # type: ignore[union-attr]
            self.output.start(lambda: None)
            yield 0.0
            if (error := life(self)) is not None:
                raise error

        return SimpleNamespace(
            life=steps, job=more[5 - 1], selector=self.selector(), close=lambda: None, summary=RunSummary()
        )

    def commit(self, checkpoint: int, length: int = 0, read: int = 10, code: Fingerprint | None = None) -> None:
        """Commit one, of an output that is so long."""
        latest, woken = self.keeper.latest, Wakeup()
        self.keeper.start(woken.wake)
        self.keeper.commit(
            replace(latest, checkpoint=checkpoint, time=10 * checkpoint, written_at=998.0, code=code,
                    outputs=(OutputLength("records", 0),)),
            (Split(0, str(self.lines), read, 50),), length,
        )  # fmt: skip
        woken.clear()
        assert [result.checkpoint for result in self.keeper.results()] == [checkpoint]
        woken.close()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Bench]]:
    with ExitStack() as stack:

        def made(*lives: Life, restarts: int = 3, shrink: bool = False) -> Bench:
            bench = Bench(tmp_path, stack, restarts, lives, shrink)
            monkeypatch.setattr(module, "Loop", bench.loop)
            return bench

        yield made


def ends(bench: Bench) -> None:
    """Stand for the life in which the job comes to its end."""


def is_lost(bench: Bench) -> MegaflowError:
    return LOST


def test_a_lost_process_is_followed_by_a_life_from_the_last_checkpoint_with_what_the_launcher_had(
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
    assert bench.run().since == 4, "what a life read and wrote counts from its checkpoint"
    (first, before), (second, after) = bench.founded
    assert (before, after) == ((FIRST, SECOND), (SECOND, FIRST)), "at first where it was coordinated"
    assert [(split.start, split.end) for split in second.job_input.splits] == [(10, 50)]
    assert first.part is not None and second.part is not None
    assert (second.part.incarnation, second.part.commit) == (first.part.incarnation + 1, 3)
    assert bench.reports == [
        "worker 1 was killed; restart 1 of 3: resumes from checkpoint 4, 2 s old: all before epoch 40, 0 keys in 0.0 kB"
    ]
    assert [(each.host, each.port, each.life, each.recovering) for each in bench.published] == [
        (*SECOND, 2, "restart 1 of 3"), (*SECOND, 2, "")
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
    assert next(each.recovering for each in bench.published if each.recovering) == "restart 1 of 3 with 1 process"


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


def test_losses_that_come_often_end_the_job_though_there_are_checkpoints_between(job: Callable[..., Bench]) -> None:
    def commits_and_is_lost(seconds: float) -> Life:
        def life(bench: Bench) -> MegaflowError:
            bench.clock += seconds
            bench.commit(bench.keeper.latest.checkpoint + 1)
            return LOST

        return life

    bench = job(*[commits_and_is_lost(61.0)] * 12, *[commits_and_is_lost(2.0)] * 20, restarts=1)
    with pytest.raises(ClusterError) as raised:
        bench.run()
    assert str(raised.value) == (
        "worker 1 was killed; processes were lost 11 times within 10 minutes, so the job does not restart by itself"
    )
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
            bench.early_end.drain(0.0, None)
        if why == "only by hand":
            for child in bench.children.all:
                child.process = None
        return LOST

    bench = job(is_lost, restarts=0 if why == "never" else 3)
    with pytest.raises(ClusterError) as raised:
        bench.run()
    assert raised.value is LOST and bench.reports == []


def test_a_forced_end_ends_the_wait_for_the_next_life(job: Callable[..., Bench]) -> None:
    bench = job(is_lost, is_lost)
    bench.supervision.begin((FIRST, SECOND))
    lives = bench.supervision.lives()
    while len(bench.reports) < 2:
        seconds = next(lives)
        bench.supervision.selector.select(seconds)
    bench.early_end.is_forced = True
    with pytest.raises(ClusterError, match="ended by force"):
        next(lives)


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
    assert str(raised.value) == (
        "worker 1 was killed; the job does not restart by itself, as the program has changed since it started: "
        "app.py differs"
    )
    assert is_loss(raised.value) and len(bench.founded) == 2


def test_an_input_that_has_changed_meanwhile_is_said(job: Callable[..., Bench]) -> None:
    def commits_and_is_lost(bench: Bench) -> MegaflowError:
        bench.commit(1)
        bench.lines.write_text("LINE\n" * 10)
        return LOST

    bench = job(commits_and_is_lost)
    with pytest.raises(StoreError, match=r"worker 1 was killed; .*lines' has changed in its first 10 bytes"):
        bench.run()


def test_the_input_of_a_store_without_a_checkpoint_is_read_anew(job: Callable[..., Bench]) -> None:
    bench = job(is_lost, ends)
    bench.run()
    assert [begun.job_input.splits[0].start for begun, _ in bench.founded] == [0, 0]
    assert bench.founded[1][0].part is not None and bench.founded[1][0].part.commit is None
    assert isinstance(bench.keeper.input, KeptInput) and isinstance(bench.keeper.latest, Commit)
