"""Signals at a process that joined by hand: what they come to before it is let in, and when the job says no."""

import os
import signal
import threading

import pytest

from megaflow.job.worker.departure import Departure, handled


def test_before_it_is_let_in_the_first_signal_ends_it() -> None:
    departure = Departure(("127.0.0.1", 1), b"secret", lambda: False, lambda text: None)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), handled(departure):
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_who_is_let_in_asks_when_it_has_joined_and_says_why_it_stays() -> None:
    told: list[str] = []
    done = threading.Event()

    def report(text: str) -> None:
        told.append(text)
        if len(told) == 2:
            done.set()

    departure = Departure(("127.0.0.1", 1), b"secret", lambda: True, report)
    with handled(departure):
        os.kill(os.getpid(), signal.SIGTERM)
        assert told == []
        departure.joined(7)
        departure.joined(8)
        assert done.wait(60)
    assert told[0].startswith("worker 7 is leaving: it finishes its work")
    assert told[1].startswith("worker 7 could not leave: 127.0.0.1:1 does not answer: ")
    assert told[1].endswith("; a second Ctrl-C ends it at once and fails the job")


def test_a_hang_up_that_was_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handled(Departure(("127.0.0.1", 1), b"secret", lambda: True, lambda text: None)):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
