"""The crash test of `apps.bench`, short: through all kills, the committed output equals an undisturbed job's."""

import argparse

import pytest

from apps.bench.crashes import endure
from apps.bench.soak import Soak, calm
from tests.results import comparing

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_sessions_are_right_whatever_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(lines=None, rate=400.0, checkpoint_every=0.2)
    is_right = endure("sessions", seconds=10.0, seed=8, options=options)
    with comparing():
        assert is_right, capsys.readouterr().out


def test_words_are_right_and_each_process_is_watched_in_a_soak(capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(lines=None, rate=400.0, checkpoint_every=0.2)
    soak = Soak()
    is_right = endure("words", 4.0, 8, options, calm(kill_every=2.0), soak.watch)
    with comparing():
        assert is_right, capsys.readouterr().out
    assert all("launcher" in {held.kind for held in sample.processes} for sample in soak.samples) and soak.samples
