"""`--follow` on real processes that may open fewer files than they follow."""

import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.cluster.processes import STATUS_SECONDS, Run, records_of, wait_until
from tests.results import check_equal

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

FILES = 150
LIMIT = 100

APP = """
import os
import subprocess


def dataflow(flow):
    def limits(line):
        if line != "limits":
            return line
        run = subprocess.run(["sh", "-c", "ulimit -Sn"], stdout=subprocess.PIPE, check=True)
        spawned = os.spawnlp(os.P_WAIT, "sh", "sh", "-c", f"test $(ulimit -Sn) = {run.stdout.decode().strip()}")
        system = os.system(f"test $(ulimit -Sn) = {run.stdout.decode().strip()}")
        return f"{run.stdout.decode().strip()} {spawned} {system}"

    return flow.lines().map(limits)
"""


def limit(soft: int, hard: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(("workers", "hard"), [("1", LIMIT), ("2", LIMIT), ("2", 4096)])
def test_lines_of_more_files_than_descriptors_are_read_once(
    start: Callable[..., Run], tmp_path: Path, workers: str, hard: int
) -> None:
    folder, out = tmp_path / "logs", tmp_path / "out.jsonl"
    folder.mkdir()
    (tmp_path / "app.py").write_text(APP)
    written: list[str] = []

    def write(kind: str, numbers: range, suffix: str = "") -> None:
        for number in numbers:
            with (folder / f"{number:04}.log{suffix}").open("a") as file:
                file.write(f"{kind} {number}\n")
            written.append(f"{kind} {number}")

    def await_read() -> None:
        wait_until(lambda: len([*records_of(out)]) >= len(written), STATUS_SECONDS)
        check_equal(sorted(records_of(out)), sorted(written))

    write("first", range(FILES))
    words = [str(tmp_path / "app.py"), "--lines", f"{folder}/*", "--follow", "--output", f"jsonl:{out}",
             "--state", str(tmp_path / "store"), "--checkpoint-every", "0.2"]  # fmt: skip
    job = start(*words, "--workers", workers, preexec_fn=partial(limit, LIMIT, hard))
    await_read()
    write("quiet", range(FILES))
    await_read()
    for number in range(FILES):
        (folder / f"{number:04}.log").rename(folder / f"{number:04}.log.1")
    write("rotated", range(0, FILES, 2), ".1")
    write("new", range(0, FILES, 3))
    await_read()
    for number in range(20):
        (folder / f"{number:04}.log.1").unlink()
    write("later", range(20, FILES))
    (folder / "limits.log").write_text("limits\n")
    written.append(f"{LIMIT} 0 0")
    await_read()
    assert job.control("stop").returncode == 0
    code, _, said = job.end()
    assert code == 0, said
    write("again", range(FILES - 5, FILES))
    job = start(*words, "--workers", workers, preexec_fn=partial(limit, LIMIT, hard))
    await_read()
    assert job.control("stop").returncode == 0
    code, _, said = job.end()
    assert code == 0, said
