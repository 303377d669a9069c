"""Planted faults: one line of the real code is made wrong, and the simulation must notice.

If a fault here survives 200 seeds the oracle test proves less than it says.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SEEDS = 200


@dataclass(frozen=True)
class Fault:
    """A line made wrong."""

    module: str
    right: str
    wrong: str


FAULTS = {
    "a batch is split: consumption is told before what was minted from it": Fault(
        "timely/dataflow/builder.py",
        "            yield CapabilityRef(",
        "            self._graph.send_progress(); yield CapabilityRef(",
    ),
    "a batch is split: decrements are told before increments": Fault(
        "timely/dataflow/graph.py",
        "            self._progcaster.broadcast(self.changes)",
        "            [self._progcaster.broadcast(ChangeBatch([c]))"
        " for c in sorted(self.changes.drain(), key=lambda c: c[1])]",
    ),
    "a retained capability is not counted": Fault(
        "timely/dataflow/capability.py",
        "held = port.retained[time] = mint(port, time)",
        "held = port.retained[time] = Capability(port, time)",
    ),
    "what leaves for another worker is not counted": Fault(
        "timely/dataflow/channels.py",
        "        self._end.send(worker, time, batch)\n        return len(batch)",
        "        self._end.send(worker, time, batch)\n        return len(batch) if worker == self._end.index else 0",
    ),
    "F routes before the control frontier has passed": Fault(
        "router.py",
        "            if passed.less_equal(time):\n                self._keep(time, batch)",
        "            if passed.less_than(time):\n                self._keep(time, batch)",
    ),
    "F decides a reconfiguration while commands may still come for its time": Fault(
        "router.py",
        "            if passed.less_equal(time):\n                break\n            self._history.append",
        "            if passed.less_than(time):\n                break\n            self._history.append",
    ),
    "F takes a bin out before everything earlier is applied": Fault(
        "router.py",
        "not finished.less_than(self._history.pending[0].time)",
        "not finished.less_than(self._history.pending[0].time - 1)",
    ),
    "F does not listen to S": Fault(
        "router.py", "        builder.graph.connect(from_output, node.targets[-1])", "        pass"
    ),
    "F lets go of the state capability when the command arrives": Fault(
        "router.py",
        "            self._moving[time] = mint(self._state_output, time)",
        "            self._moving[time] = mint(self._state_output, time); self._moving[time].release()",
    ),
    "F ships a bin after its time": Fault(
        "router.py",
        "self._state_output.ship_to(target, time, [chunk])",
        "self._state_output.ship_to(target, time + 1, [chunk])",
    ),
    "F routes by the active table, whatever is pending": Fault(
        "router.py", "table = self._history.at(time)", "table = self._history.active"
    ),
    "a reconfiguration is in force only after its time": Fault(
        "routing.py",
        "not less_equal(each.time, time)",
        "not less_than(each.time, time)",
    ),
    "S applies at t before the bins that move at t are in": Fault(
        "stateful.py",
        "not self._state.frontier.less_equal(time)",
        "not self._state.frontier.less_than(time)",
    ),
    "S applies before earlier records are in": Fault(
        "stateful.py", "return not self._data.frontier.less_than(time) and", "return"
    ),
    "S keeps a record without a capability": Fault(
        "stateful.py",
        "            self._stash[time] = (mint(self._output, time), [])",
        "            self._stash[time] = (mint(self._output, time), []); self._stash[time][0].release()",
    ),
    "S sends what it kept at the time of the newest": Fault(
        "stateful.py",
        "                    self._apply(waiting, batch)",
        "                    self._apply(max([waiting, *self._stash]), batch)",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_within_200_seeds(name: str, tmp_path: Path) -> None:
    fault = FAULTS[name]
    shutil.copytree(ROOT / "megaflow", tmp_path / "megaflow", ignore=shutil.ignore_patterns("__pycache__"))
    module = tmp_path / "megaflow" / fault.module
    text = module.read_text()
    assert text.count(fault.right) == 1, f"the line to make wrong must stand once in {fault.module}: {fault.right!r}"
    module.write_text(text.replace(fault.right, fault.wrong))
    assert search(tmp_path).returncode == 3, f"{name}: not found"


@pytest.mark.slow
def test_the_search_finds_nothing_in_the_code_as_it_is() -> None:
    found = search(ROOT)
    assert found.returncode == 0, found.stdout + found.stderr


def search(package_folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run the seeds against the megaflow in this folder."""
    return subprocess.run(
        [sys.executable, str(ROOT / "tests" / "simulation" / "search.py"), str(SEEDS)],
        env={**os.environ, "PYTHONPATH": f"{package_folder}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=110,
    )
