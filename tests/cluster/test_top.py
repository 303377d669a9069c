"""`megaflow top` beside a real job: on a screen without a terminal, and as a whole command on one."""

import asyncio
import fcntl
import os
import pty
import re
import select
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import DataTable, Log, Static

from megaflow.cli.top_app import TopApp
from tests.cluster.processes import ROOT, Run
from tests.cluster.test_watching import begin

pytestmark = pytest.mark.cluster

SECONDS = 300.0


def text_of(app: TopApp, part: str) -> str:
    return str(app.query_one(part, Static).render())


async def until(app: TopApp, pilot: Any, wanted: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not wanted():
        assert time.monotonic() < end, (text_of(app, "#head"), text_of(app, "#bins"), app.query_one(Log).lines)
        await pilot.pause(0.1)


def test_the_screen_shows_bins_that_change_owners_a_joiner_and_the_end(
    start: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begin(start, tmp_path)
    for name, value in run.environment.items():
        monkeypatch.setenv(name, value)

    async def look() -> Any:
        app = TopApp(("watched", None, 60.0))
        async with app.run_test(size=(100, 40)) as pilot:
            grid = lambda: text_of(app, "#bins").split("\n")[1:]  # noqa: E731
            await until(app, pilot, lambda: grid() == ["01" * 16])
            await asyncio.to_thread(run.control, "move-bins", "--bins", "0-3", "--to", "1")
            await until(app, pilot, lambda: grid() == ["1111" + "01" * 14])
            await asyncio.to_thread(run.control, "add-workers", "1")
            await until(app, pilot, lambda: app.query_one(DataTable).row_count == 3)
            await until(app, pilot, lambda: any("worker 2 has joined" in line for line in app.query_one(Log).lines))
            assert text_of(app, "#head").startswith("job watched: running, 3 workers, ")
            await pilot.resize_terminal(20, 20)
            await until(app, pilot, lambda: "".join(grid()) == "1111" + "01" * 14 and len(grid()) == 2)
            await asyncio.to_thread(run.control, "stop")
            await until(app, pilot, lambda: app.return_value is not None)
        return app.return_value

    assert asyncio.run(look()) == "the job has ended"
    assert run.end()[0] == 0


@pytest.mark.slow
def test_the_command_runs_on_a_terminal_without_colours_and_ends_with_q(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    run = begin(start, tmp_path)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    environment = {**run.environment, "NO_COLOR": "1", "TERM": "xterm"}
    command = [sys.executable, "-m", "megaflow", "top", "--job", "watched"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=theirs, stdout=theirs, stderr=theirs) as top:
        os.close(theirs)
        seen, end, is_asked = b"", time.monotonic() + SECONDS, False
        while top.poll() is None and time.monotonic() < end:
            if select.select([ours], [], [], 0.5)[0]:
                try:
                    seen += os.read(ours, 1 << 16)
                except OSError:  # it has closed the terminal
                    break
            shown = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", seen)
            if not is_asked and b"0101010101" in shown and b"job watched: running" in shown:
                os.write(ours, b"q")
                is_asked = True
        assert is_asked and top.wait(180) == 0, seen[-2000:]
    os.close(ours)
    assert not re.search(rb"\x1b\[[0-9;]*[34]8;[25];", seen), "no colours"
    assert run.control("stop").returncode == 0
    assert run.end()[0] == 0


def test_leaving_does_not_wait_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGAFLOW_SECRET", "a secret of the tests")
    with socket.create_server(("127.0.0.1", 0)) as silent, ExitStack() as stack:  # it never answers
        place = f"127.0.0.1:{silent.getsockname()[1]}"

        async def leave() -> None:
            app = TopApp((None, place, 10 * SECONDS))
            async with app.run_test() as pilot:
                stack.enter_context((await asyncio.to_thread(silent.accept))[0])
                await pilot.press("q")

        asyncio.run(leave())
        assert any(each.name == "megaflow-top" for each in threading.enumerate()), "it still waits, and is left behind"


def test_without_a_terminal_the_command_names_what_scripts_use(start: Callable[..., Run]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "megaflow", "top"], stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 2 and "megaflow control watch --json" in done.stderr
