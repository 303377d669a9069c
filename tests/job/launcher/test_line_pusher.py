"""The launcher sends its lines no further ahead than the window allows."""

import threading
from contextlib import closing
from typing import Any

import pytest

from megaflow.control.launcher_messages import Lines, LinesEnded
from megaflow.job.launcher.inputs.line_pusher import LEAST_LINES, LinePusher, SendWindow
from megaflow.job.launcher.inputs.line_reader import FAREWELL_SECONDS, FIRST_LINES, LineReader
from megaflow.job.launcher.inputs.pulled_source import PulledLines
from megaflow.job.launcher.processes.child_process import Child

WAIT_SECONDS = 90.0


def test_window_comes_back_as_messages_are_taken_in() -> None:
    window = SendWindow(limit_bytes=100)
    sent = 0
    while window.is_open:
        window.sent(3, 30)
        sent += 3
    assert sent == 12
    window.taken(2)
    assert not window.is_open
    window.taken(1)
    assert window.is_open
    window.taken(sent - 3)
    window.sent(1, 100)
    assert not window.is_open


@pytest.mark.parametrize(("per_second", "least", "most"), [(20.0, 1, 80), (1000.0, 400, 600), (1e6, 400_000, 600_000)])
def test_the_window_has_what_is_taken_in_half_a_second(per_second: float, least: int, most: int) -> None:
    window, now, owed = SendWindow(), 0.0, 0.0
    for _ in range(2000):  # two seconds
        window.look(now)
        if window.is_open:
            window.sent(window.limit - window.lines, 1)
        now, owed = now + 0.001, min(owed + 0.001 * per_second, window.lines)
        window.taken(int(owed))
        owed -= int(owed)
        assert window.lines <= max(2 * FIRST_LINES, most)
    assert least <= window.limit <= most


def test_the_window_grows_fast_after_a_pause() -> None:
    window, now = SendWindow(), 60.0
    window.look(0.0)
    window.look(now)
    assert window.limit == LEAST_LINES
    for _ in range(100):  # a tenth of a second
        window.sent(window.limit, 1)
        window.taken(window.limit)
        now += 0.001
        window.look(now)
    assert window.limit >= 16 * LEAST_LINES


LINE = "x" * 1_000_000


class Reader:
    """A reader that returns these blocks, one at a time. An exception in the list is an error of the source."""

    def __init__(self, *blocks: list[str] | Exception) -> None:
        self.blocks = list(blocks)
        self.stopped = False

    def take(self) -> tuple[list[str], int] | None:
        if not self.blocks:
            return None
        block = self.blocks.pop(0)
        if isinstance(block, Exception):
            raise block
        return block, sum(map(len, block)) + len(block)

    def end(self) -> None:
        """Do nothing, as all blocks are there."""

    def stop(self) -> None:
        self.stopped = True


class Bench:
    """A pusher, with the lines that it has sent to each worker."""

    def __init__(self, *blocks: list[str] | Exception) -> None:
        self.sent: list[tuple[Child, Any]] = []
        self.one, self.other = Child(("127.0.0.1", 1)), Child(("127.0.0.1", 2))
        self.reader: Any = Reader(*blocks)
        self.pusher = LinePusher({"": self.reader}, self.one, lambda child, message: self.sent.append((child, message)))

    def push_all(self) -> list[Any]:
        """Push as long as there may be more; return what this sent."""
        before = len(self.sent)
        while self.pusher.push(0.0):
            pass
        return [message for _, message in self.sent[before:]]


def test_lines_are_sent_while_the_window_is_open() -> None:
    bench = Bench(*[[LINE]] * 4)
    assert bench.push_all() == [Lines([LINE])] * 3
    bench.pusher.window.taken(3)
    assert bench.push_all() == [Lines([LINE]), LinesEnded()] and bench.reader.stopped
    assert bench.push_all() == []


def test_at_the_end_the_rest_is_sent_though_the_window_is_shut() -> None:
    bench = Bench(*[[LINE]] * 5)
    assert bench.push_all() == [Lines([LINE])] * 3
    bench.pusher.end(0.0)
    assert bench.push_all() == [Lines([LINE])] * 2 + [LinesEnded(cut=("",))], "the worker may hold lines"


def test_nothing_is_sent_while_there_are_no_lines_yet() -> None:
    bench = Bench([], ["a"])
    assert bench.push_all() == []
    assert bench.push_all() == [Lines(["a"]), LinesEnded()]


def test_what_the_source_raises_comes_after_its_lines() -> None:
    bench = Bench(["a"], ValueError("no more"))
    assert bench.pusher.push(0.0)
    with pytest.raises(ValueError, match="no more"):
        bench.pusher.push(0.0)
    assert [message for _, message in bench.sent] == [Lines(["a"])]


def test_a_pusher_that_is_stopped_sends_nothing() -> None:
    bench = Bench(["a"])
    bench.pusher.stop()
    assert bench.push_all() == [] and bench.reader.stopped
    bench.pusher.move(bench.other)
    assert bench.sent == []


def test_lines_go_elsewhere_from_one_to_the_next() -> None:
    bench = Bench(*[[LINE]] * 4)
    bench.pusher.push(0.0)
    bench.pusher.move(bench.one)
    bench.pusher.move(bench.other)
    bench.push_all()
    ends = LinesEnded(elsewhere=True)
    lines = Lines([LINE])
    assert bench.sent == [(bench.one, lines), (bench.one, ends), (bench.other, lines), (bench.other, lines)]
    bench.pusher.window.taken(3)
    assert bench.push_all() == [lines, LinesEnded()]
    bench.pusher.move(bench.one)
    assert bench.sent[-1] == (bench.other, LinesEnded())


def test_an_end_waits_for_what_was_pulled_to_be_encoded() -> None:
    begun, go_on, woken = threading.Event(), threading.Event(), threading.Semaphore(0)

    class Slow(PulledLines):
        """The second line is an item that takes long to encode."""

        @staticmethod
        def form(line: str) -> str:  # type: ignore[override]
            if line == "b":
                begun.set()
                assert go_on.wait(WAIT_SECONDS)
            return line

    sent: list[Any] = []
    with closing(LineReader(Slow(iter("abc")), woken.release)) as reader:
        pusher = LinePusher({"": reader}, Child(("127.0.0.1", 1)), lambda child, message: sent.append(message))
        reader.start()
        assert begun.wait(WAIT_SECONDS)
        pusher.end(0.0)
        assert pusher.wait_seconds(0.0) == FAREWELL_SECONDS
        assert pusher.push(WAIT_SECONDS) and not pusher.push(WAIT_SECONDS)
        assert sent == [Lines(["a"])] and pusher.wait_seconds(WAIT_SECONDS) is None, "the reader tells"
        go_on.set()
        while not isinstance(sent[-1], LinesEnded):
            assert woken.acquire(timeout=WAIT_SECONDS)
            while pusher.push(WAIT_SECONDS):
                pass
    assert sent == [Lines(["a"]), Lines(["b"]), LinesEnded(cut=("",))]


def test_inputs_take_turns_and_the_end_is_that_of_all() -> None:
    readers: dict[str, Any] = {"a": Reader([LINE], [], [LINE]), "b": Reader([LINE], [LINE])}
    sent: list[Any] = []
    pusher = LinePusher(readers, Child(("127.0.0.1", 1)), lambda child, message: sent.append(message))
    while pusher.push(0.0):
        pusher.window.taken(1)
    assert [message.input for message in sent[:-1]] == ["a", "b", "b", "a"] and sent[-1] == LinesEnded()
    assert all(reader.stopped for reader in readers.values())
