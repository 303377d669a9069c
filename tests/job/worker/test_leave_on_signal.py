"""Signals to a process that joins by hand: their effect before it is accepted, and after a refusal."""

import os
import signal
import threading

import pytest

from megaflow.job.worker.process.leave_on_signal import LeaveOnSignal, handled


def test_before_it_is_let_in_the_first_signal_ends_it() -> None:
    leave = LeaveOnSignal(("127.0.0.1", 1), b"secret", lambda: False, lambda text: None)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), handled(leave):
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_who_is_let_in_asks_when_it_has_joined_and_says_why_it_stays() -> None:
    told: list[str] = []
    done = threading.Event()

    def report(text: str) -> None:
        told.append(text)
        if len(told) == 2:
            done.set()

    leave = LeaveOnSignal(("127.0.0.1", 1), b"secret", lambda: True, report)
    with handled(leave):
        os.kill(os.getpid(), signal.SIGTERM)
        assert told == []
        leave.joined(7)
        leave.joined(8)
        assert done.wait(180)
    assert told[0].startswith("worker 7 is leaving: it finishes its work")
    assert told[1].startswith("worker 7 could not leave: 127.0.0.1:1 does not answer: ")
    assert told[1].endswith("; a second Ctrl-C ends it at once and fails the job")


def test_a_hang_up_that_was_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handled(LeaveOnSignal(("127.0.0.1", 1), b"secret", lambda: True, lambda text: None)):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
