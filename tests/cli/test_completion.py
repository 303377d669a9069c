"""A shell that has read the script of `megaflow completion` completes commands, options, files and names of jobs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from megaflow.cli.main import SHELLS, cli
from megaflow.job.job_file import Job, process_namespace, process_start, publish

BASH = r"""
eval "$(megaflow completion bash)"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_megaflow_completion megaflow
printf '%s\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def completed(*words: str) -> list[str]:
    """Return what bash offers for the last of these words."""
    done = subprocess.run(["bash", "-c", BASH, "bash", "megaflow", *words], capture_output=True, text=True, check=True)
    assert not done.stderr.replace("bash: warning: setlocale", ""), done.stderr
    return done.stdout.split()


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["gr"], ["graph"]),
        (["control", "move"], ["move-bins"]),
        (["new", "shop", "--template", "e"], ["events", "engine"]),
        (["control", "status", "--job", "ord"], ["orders"]),
        (["run", "app.py", "--lines", "a", "--lines", "b", "--proc"], ["--processes"]),
        (["run", "app.py", "stray", "--proc"], ["--processes"]),
    ],
)
def test_bash_completes_a_word(words: list[str], offered: list[str]) -> None:
    pid = os.getpid()
    publish(Job("orders", pid, process_start(pid), "127.0.0.1", 1, "s", process_namespace()))
    assert completed(*words) == offered


@pytest.mark.parametrize("words", ["megaflow run ", "megaflow run a --lines ", "megaflow graph ", "megaflow state ls "])
def test_files_are_left_to_the_shell(words: str) -> None:
    environment = {"_MEGAFLOW_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    done = CliRunner().invoke(cli, [], env=environment, prog_name="megaflow")
    assert done.exit_code == 0 and done.stdout.startswith("file,"), done.output


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_one_that_its_shell_reads(shell: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["completion", shell], prog_name="megaflow")
    assert done.exit_code == 0 and f"_MEGAFLOW_COMPLETE={shell}_complete" in done.stdout
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=done.stdout, text=True, check=True)
