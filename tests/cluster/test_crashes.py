"""The crash test of `apps.bench`, short: whatever is killed, what is committed is what a job puts out that lives."""

import argparse

import pytest

from apps.bench.crashes import endure
from apps.bench.soak import Soak, calm

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_sessions_are_right_whatever_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(lines=None, rate=400.0, checkpoint_every=0.2)
    assert endure("sessions", seconds=10.0, seed=8, options=options), capsys.readouterr().out


def test_a_soak_sees_what_each_process_and_the_store_have(capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(lines=None, rate=400.0, checkpoint_every=0.2)
    soak = Soak()
    assert endure("words", 6.0, 8, options, calm(kill_every=3.0), soak.watch), capsys.readouterr().out
    last = soak.samples[-1]
    assert "launcher" in {held.kind for held in last.processes} and last.store_files and last.output_mb
