"""The crash test of `apps.bench`, short: whatever is killed, what is committed is what a job puts out that lives."""

import argparse

import pytest

from apps.bench.crashes import endure

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_sessions_are_right_whatever_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(lines=None, rate=400.0, checkpoint_every=0.2)
    assert endure("sessions", seconds=10.0, seed=8, options=options), capsys.readouterr().out
