"""Standard output is UTF-8 in every locale, and unread standard error does not stop a job."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.processes import END_SECONDS, ROOT
from tests.results import check_equal

pytestmark = pytest.mark.cluster

LOCALES = {
    "posix": {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "latin": {"PYTHONIOENCODING": "latin-1"},
    "utf-16": {"PYTHONIOENCODING": "utf-16:strict"},
}

PRINTING = """
import sys

def told(line):
    print("é", line)
    print("é", line, file=sys.stderr)
    return line

def count(word, one, total):
    return one, [word]

def dataflow(flow):
    return flow.lines().map(told).map(lambda word: (word, 1)).stateful_state_machine(count, name="zählen")
"""

TALKATIVE = """
import sys

def told(line):
    print("x" * 1000)
    if line == "broken":
        raise ValueError
    return line

def dataflow(flow):
    return flow.lines().map(told)
"""


def megaflow(folder: Path, *words: str, **more: str) -> list[str]:
    """Run a command in a folder, with the variables `more`. Return the lines of its output, as UTF-8 bytes."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(folder), **more}
    command = [sys.executable, "-m", "megaflow", *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=END_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().splitlines()


@pytest.mark.parametrize("locale", LOCALES)
def test_output_and_answers_are_utf_8_in_every_locale(tmp_path: Path, locale: str) -> None:
    (tmp_path / "app.py").write_text(PRINTING, encoding="utf-8")
    (tmp_path / "in.txt").write_text("ü→\n", encoding="utf-8")
    run = ("run", "app.py", "--lines", "in.txt", "--state", "kept")
    check_equal(megaflow(tmp_path, *run, **LOCALES[locale]), ["ü→"])
    for words in (("graph", "app.py"), ("state", "ls", "kept"), ("state", "export", "kept")):
        said = megaflow(tmp_path, *words, **LOCALES[locale])
        assert any("zählen" in line for line in said), said
    assert '"ü→"' in said[0]


@pytest.mark.slow
@pytest.mark.parametrize(("last", "code"), [("fine", 0), ("broken", 1)])
def test_an_unread_standard_error_does_not_stop_a_job(tmp_path: Path, last: str, code: int) -> None:
    (tmp_path / "app.py").write_text(TALKATIVE)
    lines = [*map(str, range(300)), last]
    (tmp_path / "in.txt").write_text("\n".join(lines))
    command = [sys.executable, "-m", "megaflow", "run", "app.py", "--lines", "in.txt", "--output", "jsonl:out.jsonl"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE) as process:
        try:
            assert process.wait(END_SECONDS) == code  # by then nothing has read more than a pipe holds
        finally:
            process.kill()
        assert process.stderr is not None and 300 * 1000 > len(process.stderr.read()) > 0
    if code == 0:
        check_equal(len((tmp_path / "out.jsonl").read_text().splitlines()), len(lines))
