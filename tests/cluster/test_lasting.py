"""States with a TTL on real processes, through kill -9: none expires early, and none survives the watermark."""

import json
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megaflow.job.kept_states import read_state
from tests.cluster.processes import STATUS_SECONDS, Run, wait_until
from tests.cluster.test_durable import Counted, end
from tests.results import check_equal, comparing

pytestmark = pytest.mark.cluster

TTL = 3.0
EVENTS = 4_000
PROGRAM = """
def parse(line):
    key, timestamp = line.split()
    return key, float(timestamp)

def counter(kind):
    def count(key, timestamp, total):
        total = (total or 0) + 1
        return total, [(kind, key, timestamp, total)]
    return count

def dataflow(flow):
    plain = flow.lines().map(parse)
    events = plain.event_time(lambda event: event[1])
    counts = events.stateful_state_machine(counter("event"), name="by events", ttl=3)
    return counts.concat(plain.stateful_state_machine(counter("clock"), name="by clock", ttl=0.5))
"""


class Lasting(Counted):
    """The program, on events in the order of their timestamps."""

    def __init__(self, folder: Path, start: Callable[..., Run]) -> None:
        super().__init__(folder, start)
        self.text, self.app = folder / "events", folder / "app.py"
        self.app.write_text(PROGRAM)
        dice = random.Random("events")
        self.events = [(f"key{dice.randrange(300)}", number / 100) for number in range(EVENTS)]
        self.text.write_text("".join(f"{key} {timestamp}\n" for key, timestamp in self.events))

    def check(self) -> None:
        """Check that each event counts once, starting from 1 if its key's last event is a TTL older. The file is in
        order.
        """
        found: dict[tuple[str, str, float], int] = {}
        with self.out.open(encoding="utf-8") as lines:
            for line in map(json.loads, lines):
                kind, key, timestamp, total = line["record"]
                with comparing():
                    assert (kind, key, timestamp) not in found
                found[kind, key, timestamp] = total
        assert self.check_counts(found) > 20, "hardly a state has gone"
        states = dict(read_state(self.store, "by events"))
        check_equal(states, {key: self.totals[key] for key in states})
        with comparing():
            assert states
            assert {key for key, last in self.last.items() if last + TTL > EVENTS / 100} <= states.keys()

    def check_counts(self, found: dict[Any, int]) -> int:
        """Return how often a state had to expire."""
        begun = 0
        self.totals: dict[str, int] = {}
        self.last: dict[str, float] = {}
        seen: dict[str, int] = {}
        check_equal(set(found), {(kind, *event) for event in self.events for kind in ("event", "clock")})
        for key, timestamp in self.events:
            is_over = key in self.last and round(100 * (timestamp - self.last[key])) >= 100 * TTL
            begun += is_over
            total = found.pop(("event", key, timestamp))
            check_equal(total, 1 if is_over else self.totals.get(key, 0) + 1, f"{key} at {timestamp}")
            self.totals[key], self.last[key] = total, timestamp
            total = found.pop(("clock", key, timestamp))
            with comparing():
                assert total in (1, seen.get(key, 0) + 1)
            seen[key] = total
        check_equal(found, {})
        return begun


@pytest.mark.slow
def test_states_go_when_they_have_lasted_whatever_is_killed(tmp_path: Path, start: Callable[..., Run]) -> None:
    lasting = Lasting(tmp_path, start)
    app = str(lasting.app)
    run = lasting.run("--processes", "2", "--restarts", "0", app=app, rate=500)
    lasting.await_more()
    os.kill(run.status()["workers"][1]["pid"], signal.SIGKILL)
    assert "was killed by SIGKILL" in end(run, 75)
    run = lasting.run("--processes", "3", app=app, rate=500)
    lasting.await_more()
    os.kill(run.status()["workers"][0]["pid"], signal.SIGKILL)
    wait_until(lambda: any("restart 1 of" in line for line in run.said), STATUS_SECONDS)
    end(run, 0)
    lasting.check()


PLAIN = """
def count(word, n, total):
    total = (total or 0) + n
    return total, [(word, total)]

def dataflow(flow):
    return flow.lines().map(lambda word: (word, 1)).stateful_state_machine(count, bins=8)
"""
UPGRADED = PLAIN.replace("bins=8", "bins=8, ttl=1000, version=2, upgrade=lambda key, total, version: 10 * total")


@pytest.mark.slow
def test_a_ttl_may_come_and_go_and_states_are_shown_as_the_fold_has_them(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    app, lines = tmp_path / "app.py", tmp_path / "lines"
    found = []
    for program in (PLAIN, PLAIN.replace("bins=8", "bins=8, ttl=1000"), PLAIN, UPGRADED, UPGRADED):
        app.write_text(program)
        with lines.open("a") as file:
            file.write("a\nb\na\n")
        more = ("--output", f"jsonl:{tmp_path / 'out'}", "--state", str(tmp_path / "store"))
        end(start(str(app), "--lines", str(lines), *more), 0)
        found.append(sorted(read_state(tmp_path / "store", "count")))
    check_equal([dict(each)["a"] for each in found], [2, 4, 6, 62, 64])
    check_equal([dict(each)["b"] for each in found], [1, 2, 3, 31, 32])
