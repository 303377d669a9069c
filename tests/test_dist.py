"""The wheel: built once, it works in an environment of its own, away from the clone."""

import sys
from pathlib import Path

import pytest

from tests.dist import build, check_files, install, make_environment, try_out

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


def test_the_wheel_works_away_from_the_clone(tmp_path: Path) -> None:
    built = build(tmp_path / "dist")
    check_files(built)
    environment = make_environment(sys.executable, tmp_path / "environment")
    try_out(built, install(built, environment), tmp_path / "work", demo=False)
