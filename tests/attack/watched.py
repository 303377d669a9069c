"""A job whose page is open for an hour and clicked every second: `python -m tests.attack.watched --minutes 60`.

The job is real: an endless source, checkpoints, bins that move every few seconds, and a process that joins and leaves
every minute. The browser is real also. Each minute the page comes to rest, its garbage is collected, and the run prints
what launcher, founders and tab hold. The run fails if a series of these figures has grown beyond its limit in `LIMITS`:

    growth = median of the last quarter of the samples - median of their second quarter

1. The first quarter is the warm-up. In a run of an hour, the curves of 15 minutes and the 400 entries of the timeline
   fill in that time. In a short run they fill later: below 20 minutes, the elements of the page grow in any run.
2. Three histories are bounded, but fill in more than an hour. The limits leave room for them. The ledger of the last
   10,000 moves takes 2.5 MB in the coordinator's process. The charts get three coarse points a minute, for six hours.
   The page keeps 20,000 earlier rows of bins, to show an earlier time: its heap grows by some 0.03 MB a minute.
3. The rule takes medians, because a heap grows and shrinks at any time. Of descriptors and threads it takes the least
   of all looks, one for each click: while another process is part of the job, the launcher has some for it. One look a
   minute is too few, because the process comes and goes once a minute: all looks of a quarter may find it there.
4. For each sample, the tables of the page are open and nothing is selected, so that samples differ only by what is left
   behind. The page goes on meanwhile. So its garbage is collected several times, and the least heap counts: with one
   collection, messages that came after it hid a leak of 0.3 MB a minute.
5. `--plant` plants a leak: the page keeps each message, or the launcher each status. Eight minutes find either.
"""

import argparse
import contextlib
import itertools
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pytest

from tests.attack.jobs import kept_folder, processes_of
from tests.attack.leaks import Held, resident_bytes
from tests.cluster.processes import STATUS_SECONDS, Run, wait_until
from tests.cluster.test_web_page import printed_page
from tests.web.browser import browsing
from tests.web.clicks import MEGABYTE, Clicker

BINS = 256
MOVED_BINS = 8  # neighbours
MOVE_SECONDS = 6.0
JOIN_EVERY = 10  # moves
SAMPLE_SECONDS = 60.0
SAMPLES_MIN = 24  # of a short run also
CLICK_SECONDS = 1.0
LIMITS: Final[Mapping[str, float]] = {
    "launcher": 4.0,  # MB; a heap grows and shrinks by this much at any time
    "workers": 6.0,  # MB, of both founders
    "descriptors": 4,  # of the launcher: connections come and go
    "threads": 3,  # of the launcher
    "tab": 24.0,  # MB that the renderers share with no other process: V8 and the canvases keep spare room
    "heap": 1.5,  # MB of objects that a script can still reach; see rule 2
    "nodes": 600,
    "listeners": 300,
}
BY_THE_LEAST = ("descriptors", "threads")  # rule 3
REFUSED = (HTTPStatus.OK, HTTPStatus.CONFLICT)  # a click may have begun a move
REFUSAL = f"status of {HTTPStatus.CONFLICT}"  # on the browser's console

APP = f"""
import time
from megaflow.connect import Found, Idle

class Endless:
    def discover(self):
        return Found([f"part {{number}}" for number in range(4)], again_seconds=None)

    def open(self, partition, position):
        return Reader(position or 0)

class Reader:                                         # 50 records a second from each partition, without an end
    def __init__(self, position):
        self.first = self.position = position
        self.begun = time.monotonic()

    def read(self, limit):
        due = self.first + int(50 * (time.monotonic() - self.begun))
        upto = min(due, self.position + limit)
        if upto <= self.position:
            return Idle(after_seconds=0.05)
        records, self.position = [f"key{{number * 7919 % 500}}" for number in range(self.position, upto)], upto
        return records, self.position

    def close(self):
        pass

def count(key, value, state):
    return (state or 0) + 1, [(key, (state or 0) + 1)]

def dataflow(flow):
    keyed = flow.read(Endless(), "endless").map(lambda key: (key, 1))
    counted = keyed.stateful_state_machine(count, bins={BINS}, name="count")
    return counted.stateful_state_machine(count, bins={BINS}, name="again")
"""
PAGE_LEAK = """
const kept = [], add = EventSource.prototype.addEventListener;
EventSource.prototype.addEventListener = function (name, act) {
    add.call(this, name, (event) => { kept.push(JSON.parse(event.data)); act(event); });
};
globalThis.kept = kept;
"""
LAUNCHER_LEAK = """
from megaflow.web import view
kept, take = [], view.View.take
def keeping(self, news, now):
    kept.append(news)
    take(self, news, now)
view.View.take = keeping
"""


@dataclass(frozen=True)
class Sample:
    """What is held at a time."""

    minutes: float
    held: Mapping[str, float]

    def __str__(self) -> str:
        return f"{self.minutes:5.1f} min: " + ", ".join(f"{name} {value:.1f}" for name, value in self.held.items())


def growth(name: str, samples: Sequence[Sample]) -> float:
    """Return the figure of the last quarter less that of the second quarter (rule 3)."""
    values = [sample.held[name] for sample in samples]
    quarter = len(values) // 4
    figure = min if name in BY_THE_LEAST else statistics.median
    return float(figure(values[-quarter:]) - figure(values[quarter : 2 * quarter]))


def leaks_of(samples: Sequence[Sample], limits: Mapping[str, float] = LIMITS) -> list[str]:
    """Return a sentence for each series that has grown beyond its limit."""
    grown = {name: growth(name, samples) for name in limits}
    return [f"{name} has grown by {grown[name]:.1f}" for name in limits if grown[name] > limits[name]]


class WatchedJob:
    """The job, with the visitor that steers it."""

    def __init__(self, folder: Path, plant: str | None) -> None:
        app = folder / "watched.py"
        app.write_text(APP)
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
        if plant == "launcher":
            planted = folder / "planted"
            planted.mkdir()
            (planted / "sitecustomize.py").write_text(LAUNCHER_LEAK)
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(planted), os.environ.get("PYTHONPATH")]))
        self.folder = folder
        self.run = Run(
            folder, str(app), "--processes", "2", "--output", "none", "--state", str(folder / "state"),
            "--checkpoint-every", "4", "--name", "watched", "--web", "0", "--web-control", env=environment,
        )  # fmt: skip
        self.run.environment = environment
        self.launcher = self.run.process.pid

    def begin(self) -> str:
        """Wait until both workers run; return the page's link."""
        self.page = printed_page(self.run.process)
        with self.page.viewer() as viewer:
            shown = viewer.shows(lambda document: [*document.get("workers", ())] == ["0", "1"])
        self.founders = [worker["pid"] for worker in shown["workers"].values()]
        return f"http://{self.page.host}:{self.page.port}/?token={self.page.token}"

    def held(self) -> dict[str, float]:
        """Return what launcher and founders hold."""
        return {
            "launcher": resident_bytes(self.launcher) / MEGABYTE,
            "workers": sum(map(resident_bytes, self.founders)) / MEGABYTE,
        }

    def opened(self) -> tuple[int, int]:
        """Return how many descriptors and threads the launcher has."""
        launcher = Held.by(self.launcher)
        return launcher.descriptors, launcher.threads

    def command(self, name: str, **given: object) -> int:
        status, record = self.page.command(name, **given)
        assert status in REFUSED, (name, given, record)
        return status

    def steer(self, rng: random.Random, over: threading.Event) -> None:
        """Move bins, and let a process join and leave, until `over` is set."""
        joined = None
        for number in itertools.count(1):
            if over.wait(MOVE_SECONDS):
                break
            first = rng.randrange(BINS // MOVED_BINS) * MOVED_BINS
            to = rng.choice([0, 1] if joined is None else [0, 1, joined])
            self.command("move", bins=f"{first}-{first + MOVED_BINS - 1}", to=to, strategy="all-at-once")
            if number % JOIN_EVERY == 0 and joined is None:
                status, record = self.page.command("add", count=1, balance=False)
                assert status in REFUSED, record
                if status == HTTPStatus.OK:
                    [joined] = record["result"]["joins"][0]["workers"]
            elif joined is not None and number % JOIN_EVERY >= JOIN_EVERY // 2:  # again, if a move is under way
                if self.command("remove", worker=joined) == HTTPStatus.OK:
                    joined = None

    def end(self) -> None:
        """Stop the job; it must end normally and leave no process."""
        stop = self.run.control("stop")
        assert stop.returncode == 0, stop
        code, _, said = self.run.end()
        assert code == 0, said
        wait_until(lambda: processes_of(self.folder) == [], STATUS_SECONDS)


@contextlib.contextmanager
def steered(job: WatchedJob, rng: random.Random) -> Iterator[Future[None]]:
    """Steer a job, on a thread of its own, for as long as the block takes."""
    over = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        steering = pool.submit(job.steer, rng, over)
        try:
            yield steering
        finally:
            over.set()


def play(minutes: float, rng: random.Random, plant: str | None) -> list[Sample]:
    """Click and sample; print and return the samples."""
    samples: list[Sample] = []
    console: list[str] = []  # of the browser
    pause = min(SAMPLE_SECONDS, minutes * 60 / SAMPLES_MIN)
    with kept_folder() as folder, browsing() as browser:
        if plant == "page":
            browser.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": PAGE_LEAK})
        job = WatchedJob(folder, plant)
        try:
            browser.open(job.begin())
            clicker = Clicker(browser, rng)
            begun = time.monotonic()
            with steered(job, random.Random(rng.random())) as steering:
                while time.monotonic() < begun + minutes * 60:
                    until, opened = time.monotonic() + pause, [job.opened()]
                    while (now := time.monotonic()) < until:
                        clicker.click()
                        opened.append(job.opened())
                        assert job.run.process.poll() is None, job.run.said
                        time.sleep(max(0.0, CLICK_SECONDS - (time.monotonic() - now)))
                    if steering.done():
                        steering.result()
                    held = {**clicker.held(), "tab": clicker.renderer_megabytes(), **job.held()}
                    held |= zip(("descriptors", "threads"), map(min, zip(*opened)))
                    samples.append(Sample((time.monotonic() - begun) / 60, held))
                    print(samples[-1], f"after {clicker.clicks} clicks", flush=True)
                    console += [text for text in browser.errors() if REFUSAL not in text]
                    print(*console[len(console) - 3 :], sep="\n", end="", flush=True)
            assert console == [], console
            assert clicker.evaluate("document.getElementById('connection').textContent") == "Live"
            job.end()
        finally:
            job.run.process.finish()
    return samples


def main() -> None:
    """Watch and click, or say why not."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack.watched", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, metavar="N", help="how long (60)")
    parser.add_argument("--seed", type=int, default=1, help="of clicks and moves")
    parser.add_argument("--plant", choices=("page", "launcher"), help="plant a leak")
    words = parser.parse_args()
    try:
        samples = play(words.minutes, random.Random(words.seed), words.plant)
    except pytest.skip.Exception as missing:
        print(f"the page was not clicked: {missing}")
        return
    for name in LIMITS:
        print(f"{name}: grown by {growth(name, samples):.2f}, at most {LIMITS[name]:g}")
    if found := leaks_of(samples):
        sys.exit("\n".join(found))
    print("memory is flat")


if __name__ == "__main__":
    main()
