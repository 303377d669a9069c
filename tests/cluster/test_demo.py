"""`megaflow demo` counts right while half of the bins move, without Java and outside the repository."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.results import comparing

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def test_the_demo_runs_without_java(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "megaflow", "demo"]
    surroundings = {**os.environ, "PATH": str(tmp_path), "JAVA_HOME": "", "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(words, cwd=tmp_path, env=surroundings, capture_output=True, text=True)
    with comparing():
        assert "The counts differ" not in done.stderr, done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no Spark (Spark needs Java" in done.stdout and "watch it at http://127.0.0.1:" in done.stderr
    assert re.search(r"^128 bins moved in \d+ steps, [\d,]+ keys", done.stdout, re.MULTILINE), done.stdout
    assert done.stdout.splitlines()[-1] == "counts equal those of collections.Counter"
