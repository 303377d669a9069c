"""Signals to the launcher: the first drains the job; each further one interrupts only what may take long."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from megaflow.errors import EndedBySignal
from megaflow.job.launcher.processes.wakeups import Signals, watched_signals


@pytest.fixture
def signals() -> Iterator[Signals]:
    with watched_signals(True) as signals:
        yield signals


def send(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_drains_and_the_second_interrupts(signals: Signals, number: int) -> None:
    with pytest.raises(KeyboardInterrupt), signals.interruptible():
        signals.can_drain = True
        send(number)
        signals.clear()
        assert signals.received == [number]
        send(number)
    assert signals.interrupted == (number == signal.SIGINT)


def test_before_a_job_can_drain_the_first_signal_interrupts(signals: Signals) -> None:
    with pytest.raises(KeyboardInterrupt), signals.interruptible():
        send(signal.SIGTERM)


@pytest.mark.parametrize(
    ("numbers", "code", "said"),
    [
        ([signal.SIGINT], 130, "interrupted"),
        ([signal.SIGTERM], 143, "ended by SIGTERM"),
        ([signal.SIGHUP], 129, "ended by SIGHUP"),
        ([signal.SIGTERM, signal.SIGINT], 130, "interrupted"),
        ([signal.SIGHUP, signal.SIGTERM], 143, "ended by SIGTERM"),
    ],
)
def test_the_signal_that_ends_a_job_gives_its_exit_code(
    signals: Signals, numbers: list[int], code: int, said: str
) -> None:
    signals.can_drain = len(numbers) > 1
    with pytest.raises(EndedBySignal) as ended, signals.interruptible():
        send(*numbers)
    assert ended.value.exit_code == code and str(ended.value) == said


def test_a_signal_that_comes_where_nothing_is_interruptible_interrupts_what_is_next(signals: Signals) -> None:
    send(*[signal.SIGINT] * 6)
    with pytest.raises(KeyboardInterrupt), signals.interruptible():
        raise AssertionError("not begun")
    send(*[signal.SIGINT] * 6)
    with signals.interruptible(anew=True):
        pass


def test_what_is_held_in_an_interruptible_block_is_done_first(signals: Signals) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), signals.interruptible():
        with signals.held():
            send(signal.SIGINT)
            done.append("held")
        done.append("more")
    assert done == ["held"]


def test_another_thread_ends_a_start_where_it_pauses_and_not_the_thread_itself(signals: Signals) -> None:
    with signals.interruptible():
        signals.pause(0.0)
        signals.end()
        with pytest.raises(KeyboardInterrupt):
            signals.pause(0.0)


def test_of_signals_without_a_gap_one_interrupts(signals: Signals) -> None:
    with pytest.raises(KeyboardInterrupt):
        try:
            with signals.interruptible():
                send(signal.SIGINT)
        finally:
            send(*[signal.SIGINT] * 5)  # as while an exception passes through


@pytest.mark.parametrize("handler", [signal.SIG_IGN, signal.SIG_DFL, signal.default_int_handler])
def test_a_hang_up_that_was_ignored_stays_so(handler: Callable[[int, object], None]) -> None:
    before = signal.signal(signal.SIGHUP, handler)
    try:
        with watched_signals(True) as signals:
            assert signal.getsignal(signal.SIGHUP) == (handler if handler is signal.SIG_IGN else signals.handle)
        assert signal.getsignal(signal.SIGHUP) is handler
    finally:
        signal.signal(signal.SIGHUP, before)
