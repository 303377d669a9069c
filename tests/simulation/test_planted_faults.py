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
    more: "tuple[Fault, ...]" = ()  # where one line is not enough


FAULTS = {
    "a batch is split: consumption is told before what was minted from it": Fault(
        "timely/dataflow/builder.py",
        "            yield CapabilityRef(",
        "            self._graph.send_progress(); yield CapabilityRef(",
    ),
    "a batch is split: decrements are told before increments": Fault(
        "timely/dataflow/graph.py",
        "        if self._progcaster is not None and self._progcaster.offer(self.changes, flush):",
        "        if any([self._progcaster.offer(ChangeBatch([c]), flush)"
        " for c in sorted(self.changes.drain(), key=lambda c: c[1])]):",
    ),
    "a batch is held though a part of it holds a frontier back": Fault(
        "timely/progcaster.py",
        "        return all(delta > 0 or behind(location, time) for (location, time), delta in self._held)",
        "        return any(delta > 0 or behind(location, time) for (location, time), delta in self._held)",
    ),
    "a batch is held behind its own pointstamps": Fault(
        "timely/progress/integer_tracker.py",
        "+ add == time:\n                return True\n        return False",
        "+ add == time:\n                return True\n        return True",
    ),
    "a count below zero holds a frontier back": Fault(
        "timely/progress/integer_tracker.py",
        "for time, count in all_counts[location].items() if count > 0]",
        "for time, count in all_counts[location].items()]",
    ),
    "what leads to a location is looked at after it": Fault(
        "timely/progress/integer_tracker.py", "            number = heappop(heap)", "            number = heap.pop()"
    ),
    "a retained capability is not counted": Fault(
        "timely/dataflow/capability.py",
        "            held = mint(port, time)",
        "            held = Capability(port, time)",
    ),
    "what leaves for another worker is not counted": Fault(
        "timely/dataflow/channels.py",
        "        self.end.send(worker, time, batch)\n        return len(batch)",
        "        self.end.send(worker, time, batch)\n        return len(batch) if worker == self.end.index else 0",
    ),
    "F routes before the control frontier has passed": Fault(
        "megaphone/router.py",
        "            if passed.less_equal(time):\n                self._keep(time, batch)",
        "            if passed.less_than(time):\n                self._keep(time, batch)",
    ),
    "F decides a reconfiguration while commands may still come for its time": Fault(
        "megaphone/command_log.py",
        "            if passed.less_equal(time):\n                break\n",
        "            if passed.less_than(time):\n                break\n",
    ),
    "F takes a bin out before everything earlier is applied": Fault(
        "megaphone/router.py",
        "not finished.less_than(history.pending[0].time)",
        "not finished.less_than(history.pending[0].time - 1)",
    ),
    "F does not listen to S": Fault(
        "megaphone/router.py", "        builder.graph.connect(from_output, node.targets[-1])", "        pass"
    ),
    "F lets go of the state capability when the command arrives": Fault(
        "megaphone/bin_transfer.py",
        "            self.claimed[time] = mint(self._output, time)",
        "            self.claimed[time] = mint(self._output, time); self.claimed[time].release()",
    ),
    "F ships a bin after its time": Fault(
        "megaphone/bin_transfer.py",
        "self._output.ship_to(target, time, parcel)",
        "self._output.ship_to(target, time + 1, parcel)",
    ),
    "credit is not waited for": Fault(
        "megaphone/chunks.py",
        "        room = CHUNK_BYTES - sum(self._under_way) if self._under_way else None",
        "        room = None",
    ),
    "credit is given twice": Fault(
        "megaphone/bin_transfer.py",
        "            self._freight[credit.worker].installed()",
        "            self._freight[credit.worker]._under_way.clear()",
    ),
    "no credit is given": Fault("megaphone/bin_transfer.py", "        if chunk.awaited:", "        if False:"),
    "credit is given without a right to it": Fault(
        "megaphone/bin_transfer.py",
        "            self.expected[time] = mint(self.credits, time)",
        "            self.expected[time] = mint(self.credits, time); self.expected[time].release()",
    ),
    "the right to give credit goes before the bins are whole": Fault(
        "megaphone/bin_transfer.py",
        "self._coming[time] == self._whole[time]",
        "self._coming[time] >= self._whole[time]",
    ),
    "F lets go of the state capability with the first parcel": Fault(
        "megaphone/bin_transfer.py",
        "        if not self._freight and self._shipping in self.claimed:",
        "        if self._shipping in self.claimed:",
    ),
    "a bin that comes in several chunks is whole with the first": Fault(
        "megaphone/chunks.py",
        "        if chunk.last:\n            seconds",
        "        if chunk.first:\n            seconds",
    ),
    "F routes by the active table, whatever is pending": Fault(
        "megaphone/router.py", "history.at(time)", "history.active"
    ),
    "a reconfiguration is in force only after its time": Fault(
        "megaphone/routing.py",
        "not less_equal(each.time, time)",
        "not less_than(each.time, time)",
    ),
    "S applies at t before the bins that move at t are in": Fault(
        "megaphone/stateful.py",
        "not self._state.frontier.less_equal(time)",
        "not self._state.frontier.less_than(time)",
    ),
    "S applies before earlier records are in": Fault(
        "megaphone/stateful.py", "return not self._data.frontier.less_than(time) and", "return"
    ),
    "S keeps a record without a capability": Fault(
        "megaphone/stateful.py",
        "        return mint(self._output, time), deque()",
        "        held = mint(self._output, time); held.release(); return held, deque()",
    ),
    "S sends what it kept at the time of the newest": Fault(
        "megaphone/stateful.py",
        "            self._apply(waiting, batch)",
        "            self._apply(max([waiting, *self._stash]), batch)",
    ),
    "timers stay where they were set": Fault(
        "megaphone/bins.py", "strict=True), self.timers.take(bin))", "strict=True), [])"
    ),
    "timers stay where they were set, and leave as well": Fault(
        "megaphone/timers.py",
        "            taken += [(time, key, payload) for key, payloads in bins.pop(bin).items()",
        "            self._bins.setdefault(bin, set()).add(time)\n"
        "            taken += [(time, key, payload) for key, payloads in bins[bin].items()",
    ),
    "a bin that comes home finds the timers that it left with": Fault(
        "megaphone/timers.py",
        "            taken += [(time, key, payload) for key, payloads in bins.pop(bin).items()",
        "            self._bins.setdefault(bin, set()).add(time)\n"
        "            taken += [(time, key, payload) for key, payloads in bins[bin].items()",
        more=(
            Fault(
                "megaphone/stateful_timed.py",
                "            assert bin in self._core.store.bins, f",
                "            if bin not in self._core.store.bins:\n                continue\n            _ = f",
            ),
        ),
    ),
    "timers do not travel": Fault(
        "megaphone/chunks.py", " = [(taken.pairs, False), (taken.timers, True)]", " = [(taken.pairs, False)]"
    ),
    "S applies a time before it is closed": Fault(
        "megaphone/stateful_timed.py", "any(frontier.less_equal(time) for", "any(frontier.less_than(time) for"
    ),
    "S applies a time before the bins that move at it are in": Fault(
        "megaphone/stateful_timed.py", "for each in (*self._data, self._state)]", "for each in self._data]"
    ),
    "S does not wait for its second input": Fault(
        "megaphone/stateful_timed.py",
        "for each in (*self._data, self._state)]",
        "for each in (self._data[0], self._state)]",
    ),
    "S holds nothing for timers": Fault(
        "megaphone/stateful_timed.py",
        "        self._hold(time)\n",
        "        self._hold(self._stash.least())\n",
    ),
    "S lets go of its capability when the first of several times is applied": Fault(
        "megaphone/stateful_timed.py",
        "                held.downgrade(least)",
        "                held.downgrade(least + 1)",
    ),
    "S never lets go of what it held for a bin that left": Fault(
        "megaphone/stateful_timed.py",
        "                held.release()\n                self._held = None",
        "                pass",
    ),
    "S keeps the time of a timer that is later than an earlier record": Fault(
        "megaphone/stateful_timed.py",
        "                self._held = mint(self._output, least)\n                held.release()",
        "                pass",
    ),
    "payloads come after the records": Fault(
        "megaphone/stateful_timed.py",
        "                records = [group.get(key) or [] for group in groups]",
        "                records = [(group.get(key) or [])[::-1] for group in groups]",
    ),
    "the two halves of a key go by tables of different times": Fault(
        "megaphone/router.py",
        "            forwarder.forward(passed, control.history)",
        "            forwarder.forward(passed, control.history if forwarder is self._forwarders[0] else "
        "RoutingHistory(control.history.active))",
    ),
}

FAULTS_OF_GRAPHS = {
    "leaving is no path": Fault(
        "timely/dataflow/operators/nesting.py",
        "builder.new_input(port, Pipeline(), {0: path},",
        'builder.new_input(port, Pipeline(), {0: path} if name == "Enter" else {},',
    ),
    "a loop promises one round more than it adds": Fault(
        "timely/dataflow/operators/movement.py",
        "builder.new_input(None, Pipeline(), {0: summary},",
        "builder.new_input(None, Pipeline(), {0: advance_by(scope.depth, advance + 1)},",
    ),
    "a capability delayed from a record is not counted": Fault(
        "timely/dataflow/capability.py",
        'capabilities only move forward"\n            )\n        return mint(port, time)',
        'capabilities only move forward"\n            )\n        return Capability(port, time)',
    ),
    "a capability delayed from another is not counted": Fault(
        "timely/dataflow/capability.py", "return mint(self._output, time)", "return Capability(self._output, time)"
    ),
    "a batch is held behind its own pointstamps, in rounds": Fault(
        "timely/progress/product_tracker.py",
        "        return implied.count_for(time) > (time in self._pointstamps[location].frontier.elements)",
        "        return implied.count_for(time) > 0",
    ),
    "a loop holds itself up": Fault(
        "timely/progress/integer_tracker.py", "            first[member] = None\n", "            pass\n"
    ),
    "of two changes of one implication the later is lost": Fault(
        "timely/progress/product_tracker.py", "            pending[time] += delta\n", "            pass\n"
    ),
}

FAULTS_OF_CHANGES = {
    "there is no gate before a newcomer's batches": Fault(
        "timely/progcaster.py",
        "            self._gates.setdefault(sender, []).append((minter, number))",
        "            pass",
    ),
    "a capability is minted at the server's view of the frontier": Fault(
        "timely/rescale/grants.py",
        "    times = [time for (place, time), count in held if place == location and count > 0]",
        "    times = list(graph.frontier(location).elements)",
    ),
    "the snapshot misses what was folded since the last step": Fault(
        "timely/rescale/bootstrap_server.py", "            graph.show_frontiers()  #", "            pass  #"
    ),
    "the snapshot is one batch behind the numbers that it tells": Fault(
        "timely/rescale/catch_up.py",
        "        self.following = dict(following)",
        "        self.following = {sender: max(0, number - 1) for sender, number in following.items()}",
    ),
    "what a newcomer sends is not kept until the commit is applied": Fault(
        "timely/rescale/member.py", "        if early is not None and", "        if False and early is not None and"
    ),
    "no gap is filled by a range": Fault(
        "timely/rescale/catch_up.py",
        "            if number > due and dataflow not in self.complete:",
        "            if False and number > due and dataflow not in self.complete:",
    ),
    "a leaver does not wait for what is on its way to it": Fault(
        "timely/rescale/leaver.py",
        "not self.gone and not self._open and self._holds_nothing()",
        "not self.gone and self._holds_nothing()",
    ),
    "a leaver goes with capabilities in its hands": Fault(
        "timely/rescale/leaver.py",
        "            if any(count for _, count in graph.caster.capabilities()):",
        "            if False:",
    ),
    "the change is over before the minting batches are folded": Fault(
        "timely/rescale/grants.py", "        if self._silent:\n            return False\n", ""
    ),
    "dataflows are founded by who is there now": Fault(
        "timely/rescale/founders.py", "reversed(foundings) if first <= dataflow)", "reversed(foundings))"
    ),
}

FAULTS_OF_HAND_OVERS = {
    "the successor waits for no fence": Fault(
        "timely/rescale/handover.py",
        "            if not self._heir.silent and self.coordinator is None:",
        "            if self.coordinator is None:",
    ),
    "what still comes to the old coordinator is lost": Fault(
        "timely/rescale/handover.py",
        "            return [(self._successor, Forwarded(source, message))]",
        "            return [(self._successor, Forwarded(source, message))] if isinstance(message, Fence) else []",
    ),
    "ids begin anew": Fault(
        "timely/rescale/sequencer.py",
        "succession.change, succession.worker, succession.process",
        "succession.change, made._next_id, succession.process",
    ),
    "the control stream changes its writer before all have read what the old one wrote": Fault(
        "testing/membership_driver.py",
        '        elif self._stage == "handing over" and self._is_passed():',
        '        elif self._stage == "handing over":',
    ),
    "a capability that is given away is counted where it comes": Fault(
        "timely/dataflow/input_handle.py",
        "            feed.capability.fill(time)",
        "            feed.capability.fill(time); feed.output.changes.update((feed.output.location, time), 1)",
    ),
    "who gives a capability away goes on counting it as its own": Fault(
        "timely/dataflow/input_handle.py",
        "                feed.graph.caster.give_capability(feed.output.location, feed.capability.time)",
        "                pass",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_within_200_seeds(name: str, tmp_path: Path) -> None:
    check_found(FAULTS[name], "moves", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS_OF_GRAPHS)
def test_a_planted_fault_is_found_within_200_graphs(name: str, tmp_path: Path) -> None:
    check_found(FAULTS_OF_GRAPHS[name], "graphs", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS_OF_CHANGES)
def test_a_planted_fault_is_found_within_200_runs_with_changes(name: str, tmp_path: Path) -> None:
    check_found(FAULTS_OF_CHANGES[name], "changes", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS_OF_HAND_OVERS)
def test_a_planted_fault_is_found_within_200_runs_with_hand_overs(name: str, tmp_path: Path) -> None:
    check_found(FAULTS_OF_HAND_OVERS[name], "hand-overs", tmp_path)


def check_found(fault: Fault, kind: str, tmp_path: Path) -> None:
    """Plant a fault in a copy of the code and search."""
    shutil.copytree(ROOT / "megaflow", tmp_path / "megaflow", ignore=shutil.ignore_patterns("__pycache__"))
    for each in (fault, *fault.more):
        module = tmp_path / "megaflow" / each.module
        text = module.read_text()
        assert text.count(each.right) == 1, f"the line to make wrong must stand once in {each.module}: {each.right!r}"
        module.write_text(text.replace(each.right, each.wrong))
    assert search(tmp_path, kind).returncode == 3, "not found"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["moves", "graphs", "changes", "hand-overs"])
def test_the_search_finds_nothing_in_the_code_as_it_is(kind: str) -> None:
    """A few seeds; the tests of each kind run them all."""
    found = search(ROOT, kind, 20)
    assert found.returncode == 0, found.stdout + found.stderr


def search(package_folder: Path, kind: str, seeds: int = SEEDS) -> "subprocess.CompletedProcess[str]":
    """Run the seeds against the megaflow in this folder."""
    return subprocess.run(
        [sys.executable, str(ROOT / "tests" / "simulation" / "search.py"), kind, str(seeds)],
        env={**os.environ, "PYTHONPATH": f"{package_folder}{os.pathsep}{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=110,
    )
