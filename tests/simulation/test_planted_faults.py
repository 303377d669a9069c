"""Planted faults: a piece of the real code is made wrong, and the simulation must notice.

If a fault here survives 200 seeds the oracle test proves less than it says.
"""

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import pytest

from tests.simulation.planting import ROOT, Fault, planted

SEEDS = 200

FAULTS = {
    "a batch is split: consumption is told before what was minted from it": Fault(
        "Input.__iter__", "list(batch)", "(self._graph.progress.send(), list(batch))[1]"
    ),
    "a batch is split: decrements are told before increments": Fault(
        "GraphProgress.send",
        "self._progcaster.offer(self.changes, flush)",
        "any([self._progcaster.offer(ChangeBatch([c]), flush)"
        " for c in sorted(self.changes.drain(), key=lambda c: c[1])])",
    ),
    "a batch is held though a part of it holds a frontier back": Fault(
        "Progcaster._may_wait",
        "all(delta > 0 or behind(location, time) for (location, time), delta in self._held)",
        "any(delta > 0 or behind(location, time) for (location, time), delta in self._held)",
    ),
    "a batch is held behind its own pointstamps": Fault(
        "IntegerTracker.is_behind_another", "return False", "return True"
    ),
    "a count below zero holds a frontier back": Fault(
        "IntegerTracker._take_in",
        "[time for time, count in all_counts[location].items() if count > 0]",
        "[time for time, count in all_counts[location].items()]",
    ),
    "what leads to a location is looked at after it": Fault("IntegerTracker.propagate", "heappop(heap)", "heap.pop()"),
    "a retained capability is not counted": Fault("CapabilityRef.retain", "mint(port, time)", "Capability(port, time)"),
    "what leaves for another worker is not counted": Fault(
        "AddressedEdge.push_to", "len(batch)", "len(batch) if worker == self.end.index else 0"
    ),
    "parts of two times leave as one message": Fault("Gathering.add", "kept[0] != time", "False"),
    "what a worker keeps for others never leaves by itself": Fault("Gathering.settle", "self.depart()", "pass"),
    "F routes before the control frontier has passed": Fault(
        "Forwarder.forward", "passed.less_equal(time)", "passed.less_than(time)"
    ),
    "F decides a reconfiguration while commands may still come for its time": Fault(
        "ControlInput.decide", "passed.less_equal(time)", "passed.less_than(time)"
    ),
    "F takes a bin out before everything earlier is applied": Fault(
        "Router._install",
        "finished.less_than(history.pending[0].time)",
        "finished.less_than(history.pending[0].time - 1)",
    ),
    "F does not listen to S": Fault("route.close_loop", "builder.connect(applied, output)", "pass"),
    "F lets go of the state capability when the command arrives": Fault(
        "Shipper.claim",
        "self.claimed[time] = self._output.mint(time)",
        "self.claimed[time] = self._output.mint(time)\nself.claimed[time].release()",
    ),
    "F ships a bin after its time": Fault(
        "Shipper._send", "self._output.ship_to(target, time, parcel)", "self._output.ship_to(target, time + 1, parcel)"
    ),
    "of a batch that is taken one record is not owed": Fault(
        "Debts.add", "self._owed.get(worker, 0) + records", "self._owed.get(worker, 0) + records - 1"
    ),
    "credit is not waited for": Fault(
        "Freight.pop", "CHUNK_BYTES - sum(self._under_way) if self._under_way else None", "None"
    ),
    "credit is given twice": Fault(
        "Shipper.credited",
        "self._freight[credit.worker].installed()",
        "self._freight[credit.worker]._under_way.clear()",
    ),
    "no credit is given": Fault("Shipper.installed", "chunk.awaited", "False"),
    "credit is given without a right to it": Fault(
        "Shipper.expect",
        "self.expected[time] = self.routing.mint(time)",
        "self.expected[time] = self.routing.mint(time)\nself.expected[time].release()",
    ),
    "the right to give credit goes before the bins are whole": Fault(
        "Shipper._settle", "self._coming[time] == self._whole[time]", "self._coming[time] >= self._whole[time]"
    ),
    "F lets go of the state capability with the first parcel": Fault(
        "Shipper._finish", "not self._freight and self._shipping in self.claimed", "self._shipping in self.claimed"
    ),
    "a bin that comes in several chunks is whole with the first": Fault(
        "Installer.install", "chunk.last", "chunk.first"
    ),
    "F routes by the active table, whatever is pending": Fault("Forwarder._send", "history.at(time)", "history.active"),
    "a reconfiguration is in force only after its time": Fault(
        "RoutingHistory.at", "less_equal(each.time, time)", "less_than(each.time, time)"
    ),
    "S applies at t before the bins that move at t are in": Fault(
        "StateMachine._due", "self._state.frontier.less_equal(time)", "self._state.frontier.less_than(time)"
    ),
    "S applies before earlier records are in": Fault(
        "StateMachine._due", "not self._data.frontier.less_than(time)", "True"
    ),
    "S keeps a record without a capability": Fault(
        "StateMachine._entry",
        "return self._output.mint(time), deque()",
        "held = self._output.mint(time)\nheld.release()\nreturn held, deque()",
    ),
    "S sends what it kept at the time of the newest": Fault(
        "StateMachine.run", "apply(waiting, batch)", "apply(max([waiting, *self._stash]), batch)"
    ),
    "timers stay where they were set": Fault("BinStore.take", "self.timers.take(bin)", "[]"),
    "timers stay where they were set, and leave as well": Fault(
        "TimerStore.take", "bins.pop(bin)", "(self._bins.setdefault(bin, set()).add(time), bins[bin])[1]"
    ),
    "a bin that comes home finds the timers that it left with": Fault(
        "TimerStore.take",
        "bins.pop(bin)",
        "(self._bins.setdefault(bin, set()).add(time), bins[bin])[1]",
        more=(
            Fault(
                "TimedFolds._group",
                "assert bin in self._core.store.bins, ...",
                "if bin not in self._core.store.bins:\n    continue",
            ),
        ),
    ),
    "timers do not travel": Fault(
        "_runs", "(taken.pairs, taken.timers, taken.events)", "(taken.pairs, [], taken.events)"
    ),
    "S applies a time before it is closed": Fault(
        "TimedFolds.run",
        "any(frontier.less_equal(time) for frontier in frontiers)",
        "any(frontier.less_than(time) for frontier in frontiers)",
    ),
    "S applies a time before the bins that move at it are in": Fault(
        "TimedFolds.run",
        "[each.frontier for each in (*self._data, self._state)]",
        "[each.frontier for each in self._data]",
    ),
    "S does not wait for its second input": Fault(
        "TimedFolds.run",
        "[each.frontier for each in (*self._data, self._state)]",
        "[each.frontier for each in (self._data[0], self._state)]",
    ),
    "S holds nothing for timers": Fault(
        "TimedFolds.run", "self._hold(time)", "self._hold(self._stash.least())"
    ),
    "S lets go of its capability when the first of several times is applied": Fault(
        "TimedFolds._hold", "held.downgrade(least)", "held.downgrade(least + 1)"
    ),
    "S never lets go of what it held for a bin that left": Fault(
        "TimedFolds._hold", "held.release()\nself._held = None", "pass"
    ),
    "S keeps the time of a timer that is later than an earlier record": Fault(
        "TimedFolds._hold", "self._held = self._output.mint(least)\nheld.release()", "pass"
    ),
    "payloads come after the records": Fault(
        "TimedFolds._call",
        "[group.get(key) or [] for group in groups]",
        "[(group.get(key) or [])[::-1] for group in groups]",
    ),
    "the two halves of a key go by tables of different times": Fault(
        "Router.run",
        "forwarder.forward(passed, control.history)",
        "forwarder.forward(passed, control.history if forwarder is self._forwarders[0]"
        " else RoutingHistory(control.history.active))",
    ),
}

FAULTS_OF_GRAPHS = {
    "leaving is no path": Fault("_cross", "{0: path}", '{0: path} if name == "Enter" else {}'),
    "a loop promises one round more than it adds": Fault(
        "feedback", "{0: summary}", "{0: path_summary.feedback(scope.depth, advance + 1)}"
    ),
    "a capability delayed from a record is not counted": Fault(
        "CapabilityRef.delayed", "mint(port, time)", "Capability(port, time)"
    ),
    "a capability delayed from another is not counted": Fault(
        "Capability.delayed", "mint(self._output, time)", "Capability(self._output, time)"
    ),
    "a batch is held behind its own pointstamps, in rounds": Fault(
        "ProductTracker.is_behind_another",
        "implied.count_for(time) > (time in self._pointstamps[location].frontier.elements)",
        "implied.count_for(time) > 0",
    ),
    "a loop holds itself up": Fault("IntegerTracker._solve_cycle", "first[member] = None", "pass"),
    "of two changes of one implication the later is lost": Fault(
        "ProductTracker._offer", "pending[time] += delta", "pass"
    ),
}

FAULTS_OF_CHANGES = {
    "the change is over before the minting batches are folded": Fault("Gates.are_passed", "self._silent", "False"),
    "there is no gate before a newcomer's batches": Fault(
        "Progcaster.gate", "self._gates.setdefault(sender, []).append((minter, number))", "pass"
    ),
    "a capability is minted at the server's view of the frontier": Fault(
        "_least_capability",
        "[time for (place, time), count in held if place == location and count > 0]",
        "list(graph.frontier(location).elements)",
    ),
    "the snapshot misses what was folded since the last step": Fault("Server._cut", "graph.progress.show()", "pass"),
    "the snapshot is one batch behind the numbers that it tells": Fault(
        "DataflowProgress.begin",
        "dict(following)",
        "{sender: max(0, number - 1) for sender, number in following.items()}",
    ),
    "what a newcomer sends is not kept until the commit is applied": Fault(
        "FollowedChange.keep", "early is None or envelope.channel == MAIL", "True"
    ),
    "no gap is filled by a range": Fault("Intake._gaps", "number > due", "False"),
    "a leaver does not wait for what is on its way to it": Fault("Leaver.turn", "not self._open", "True"),
    "a leaver goes with capabilities in its hands": Fault(
        "Leaver._holds_nothing", "any(count for _, count in graph.progress.caster.capabilities())", "False"
    ),
    "dataflows are founded by who is there now": Fault("founders_of", "first <= dataflow", "True"),
}

FAULTS_OF_PARTITIONS = {
    "what is handed back is read on": Fault(
        "LineQueue.give_back",
        "self._splits = deque(each for each in self._splits if each.split.number not in given)",
        "pass",
    ),
    "of what is handed back the batch that comes next is read": Fault(
        "LineQueue.give_back", "self._next, self._from_split = [], False", "pass"
    ),
    "a leaver keeps the batch that comes next, and drops it": Fault(
        "LineQueue.remainders", "each.rest(0 if index else untaken)", "each.rest(0)"
    ),
    "lines of a split go to the input that was read before": Fault(
        "LineQueue._next_assigned",
        'self.input, self.partition = self._splits[0].split.input, ("split", self._splits[0].split.number)',
        'self.partition = ("split", self._splits[0].split.number)',
    ),
    "records go by the table that is active when they arrive": Fault(
        "Forwarder._send", "history.at(time)", "history.active"
    ),
    "F sends what waited for a time after what came for it later": Fault(
        "Forwarder.forward",
        "for batch in batches:\n    self._send(waiting, batch, history)",
        "for batch in batches[::-1]:\n    self._send(waiting, batch, history)",
    ),
    "of what waits for its time S applies the newest first": Fault(
        "StateMachine.run", "batches.popleft()", "batches.pop()"
    ),
}

FAULTS_OF_HAND_OVERS = {
    "the successor waits for no fence": Fault("Role._take", "not self._successor.silent", "True"),
    "what still comes to the old coordinator is lost": Fault(
        "Role._take",
        "[(self._handed_to, messages.PassedOn(source, message))]",
        "[(self._handed_to, messages.PassedOn(source, message))] if isinstance(message, messages.Fence) else []",
    ),
    "ids begin anew": Fault(
        "Sequencer.resume",
        "(succession.change, succession.worker, succession.process)",
        "(succession.change, made._next_id, succession.process)",
    ),
    "the control stream changes its writer before all have read what the old one wrote": Fault(
        "Rescaling._go_on", "self._is_passed()", "True"
    ),
    "a capability that is given away is counted where it comes": Fault(
        "InputHandle.receive",
        "feed.capability.fill(time)",
        "feed.capability.fill(time)\nfeed.output.changes.update((feed.output.location, time), 1)",
    ),
    "who gives a capability away goes on counting it as its own": Fault(
        "InputHandle.give_away",
        "feed.graph.progress.caster.give_capability(feed.output.location, feed.capability.time)",
        "pass",
    ),
}


FAULTS_OF_PROCESSES = {
    "what the second worker of a process sends before the commit is taken at once": Fault(
        "Member._prepare", "self._change.expect(message.ids)", "self._change.expect(message.ids[:1])"
    ),
}

FAULTS_OF_OBJECTS = {
    "what was met before travels as a row, and once more": Fault(
        "Rows.begin", "self._met.nodes.keys().isdisjoint(ids)", "True"
    ),
    "an object that is in a batch twice becomes two": Fault("Rows.begin", "len(ids) != len(self._objects)", "False"),
    "a row is referred to before it is whole": Fault("Rows.number_of", "not self._complete", "False"),
    "dicts with the same keys in another order are of one shape": Fault(
        "take_dicts_apart",
        "not keys == [*values[1]] == [*values[-1]]",
        "False",
        (Fault("take_dicts_apart", "met != keys * len(values)", "{*met} != {*keys}"),),
    ),
    "of two further references to a row the first has no number": Fault(
        "Rows.number_of", "self._anchors += place, *number", "self._anchors[:] = place, *number"
    ),
}

FAULTS_OF_INTRODUCTIONS = {
    "a worker sees who has joined only when the change is done": Fault("Member._commit", "view.follow()", "pass"),
    "a newcomer claims nothing before it knows the table": Fault("RoutingBacklog.read", "return owns", "return False"),
}

FAULTS_OF_LOOPS = {
    "F looks at the last of the outer times at which a loop still is": Fault(
        "FlatInput.frontier", "flattened(elements[0], self._length)", "flattened(elements[-1], self._length)"
    ),
    "S applies the first round of an outer time before the bins that move at it are in": Fault(
        "StateMachine._due",
        "self._state.frontier.less_equal(time)",
        "self._state.frontier.less_than(time)",
        more=(
            Fault(
                "TimedFolds.run",
                "any(frontier.less_equal(time) for frontier in frontiers)",
                "any([*[each.frontier.less_equal(time) for each in self._data], self._state.frontier.less_than(time)])",
            ),
        ),
    ),
    "F holds the right to send bins from the second round on": Fault(
        "Shipper.claim", "self._output.mint(time)", "self._output.mint((*time[:-1], 1))"
    ),
    "S with timers holds the first of its times alone": Fault(
        "NestedFolds._hold", "self._stash.keys() | self._timers.times()", "{least} - {None}"
    ),
}

FAULTS_OF_STORES = {
    "a commit is acknowledged before its name is durable": Fault(
        "FolderStore.commit", "self._folder.sync_names()", "None"
    ),
    "a segment is reported before its name is durable": Fault("FolderStore.put", "self._folder.sync_names()", "None"),
    "a file is linked before it is synced": Fault("FolderStore._set_aside", "self._folder.sync(file)", "None"),
    "a failed sync is tried again on the same file": Fault(
        "FolderStore._set_aside",
        "self._folder.sync(file)",
        "try:\n    self._folder.sync(file)\nexcept OSError:\n    self._folder.sync(file)",
    ),
    "a failed sync of the folder is tried again": Fault(
        "FolderStore.commit",
        "self._folder.sync_names()",
        "try:\n    self._folder.sync_names()\nexcept OSError:\n    self._folder.sync_names()",
    ),
    "a commit of another launcher is taken for one's own": Fault("FolderStore.commit", "return False", "return True"),
    "a commit in doubt is given up": Fault("FolderStore.commit", "CommitInDoubt(...)", "OSError()"),
    "a commit in doubt is taken for one that failed": Fault(
        "Incarnation.commit", "raise _doubt(self._number, error) from error", "raise"
    ),
    "a launcher that slept does not look for a higher commit": Fault(
        "Incarnation._check_highest", "highest > number", "False"
    ),
    "the store is cleaned before the incarnation is committed": Fault(
        "begin",
        "incarnation.commit(begun)",
        "(incarnation._doom_what_is_left(), incarnation.collect(), incarnation.commit(begun))",
    ),
    "segments in flight are collected": Fault(
        "Incarnation.collect",
        "self._doomed.difference_update(...)",
        "self._doomed.update(name for name in self._store.list() if name.endswith('.seg'))\n"
        "self._doomed.difference_update(*(names for _, names in self._commits.values()))",
    ),
    "what a worker has in flight is collected with what it wrote before": Fault(
        "Incarnation._doom_abandoned", "int(found[3]) < first.get(found[2], 0)", "True"
    ),
    "what a successor has in flight is collected": Fault(
        "Incarnation._doom_what_is_left", "int(segment[1]) < self.latest.incarnation", "True"
    ),
    "segments go though a kept commit names them": Fault(
        "Incarnation.collect", "self._doomed.difference_update(...)", "None"
    ),
    "a commit goes though its checkpoint has a name": Fault(
        "Incarnation.collect", "self.latest.others", "self.latest.kept"
    ),
    "a name stays with a commit that is repeated": Fault("Incarnation.commit", "self._repeats(commit, of)", "False"),
    "a new incarnation forgets the names": Fault("Incarnation.commit", "self.latest.named", "()"),
    "commits with names are not known to who begins": Fault("read_commits", "commits[0].others", "commits[0].kept"),
    "segments go before the commits that name them": Fault(
        "Incarnation.collect", "self._store.delete(map(commit_name, old))", "None"
    ),
    "commits go before one that does not name them is durable": Fault(
        "Incarnation.commit",
        "self._settle()",
        "(self._settle(), self._store.delete(map(commit_name, self._commits.keys() - {self.latest.number})))",
    ),
    "an incarnation begins without a commit": Fault("begin", "incarnation.commit(begun)", "None"),
}

FAULTS_OF_FOLDERS = {
    "a file is renamed instead of linked": Fault(
        "LocalFolder.link",
        "os.link(name, new, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=False)",
        "os.replace(name, new, src_dir_fd=self._folder, dst_dir_fd=self._folder)",
    ),
}

FAULTS_OF_INPUTS = {
    "a job that goes on forgets whose lines are left": Fault(
        "resumed_input",
        "Split(each.number, each.path, each.start, each.end, each.input, each.skip, maxima=each.maxima)",
        "Split(each.number, each.path, each.start, each.end, '', each.skip)",
    ),
    "a checkpoint forgets whose lines are left": Fault(
        "LineQueue.remainders", "each.rest(0 if index else untaken)",
        "__import__('dataclasses').replace(rest, input='left') "
        "if (rest := each.rest(0 if index else untaken)) else None",
    ),
}  # fmt: skip

ALL_FAULTS = (
    FAULTS
    | FAULTS_OF_GRAPHS
    | FAULTS_OF_CHANGES
    | FAULTS_OF_PARTITIONS
    | FAULTS_OF_HAND_OVERS
    | FAULTS_OF_PROCESSES
    | FAULTS_OF_INTRODUCTIONS
    | FAULTS_OF_LOOPS
    | FAULTS_OF_STORES
    | FAULTS_OF_FOLDERS
    | FAULTS_OF_INPUTS
    | FAULTS_OF_OBJECTS
)


def one_quick(faults: Iterable[str]) -> list[Any]:
    """The first of these, which is found soon; the others are slow."""
    quick, *slow = faults
    return [quick, *(pytest.param(name, marks=pytest.mark.slow) for name in slow)]


@pytest.mark.parametrize("name", one_quick(FAULTS))
def test_a_planted_fault_is_found_within_200_seeds(name: str) -> None:
    check_found(FAULTS[name], "moves")


@pytest.mark.parametrize("name", one_quick(FAULTS_OF_GRAPHS))
def test_a_planted_fault_is_found_within_200_graphs(name: str) -> None:
    check_found(FAULTS_OF_GRAPHS[name], "graphs")


@pytest.mark.parametrize("name", one_quick(FAULTS_OF_CHANGES))
def test_a_planted_fault_is_found_within_200_runs_with_changes(name: str) -> None:
    check_found(FAULTS_OF_CHANGES[name], "changes")


@pytest.mark.parametrize("name", one_quick(FAULTS_OF_HAND_OVERS))
def test_a_planted_fault_is_found_within_200_runs_with_hand_overs(name: str) -> None:
    check_found(FAULTS_OF_HAND_OVERS[name], "hand-overs")


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS_OF_PROCESSES)
def test_a_planted_fault_is_found_within_200_runs_with_several_workers_in_a_process(name: str) -> None:
    check_found(FAULTS_OF_PROCESSES[name], "processes")


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS_OF_INTRODUCTIONS)
def test_a_planted_fault_is_found_within_200_runs_without_a_bootstrap(name: str) -> None:
    check_found(FAULTS_OF_INTRODUCTIONS[name], "introductions")


@pytest.mark.parametrize("name", one_quick(FAULTS_OF_LOOPS))
def test_a_planted_fault_is_found_within_200_loops(name: str) -> None:
    check_found(FAULTS_OF_LOOPS[name], "loops")


@pytest.mark.parametrize("name", one_quick(FAULTS_OF_STORES))
def test_a_planted_fault_is_found_within_1000_stores(name: str) -> None:
    """Some need three accidents in a row; a seed takes a twentieth of a second."""
    check_found(FAULTS_OF_STORES[name], "stores", 5 * SEEDS)


@pytest.mark.parametrize("name", FAULTS_OF_FOLDERS)
def test_a_planted_fault_is_found_within_200_folders(name: str) -> None:
    check_found(FAULTS_OF_FOLDERS[name], "folders")


@pytest.mark.parametrize("name", one_quick(FAULTS_OF_PARTITIONS))
def test_a_planted_fault_is_found_within_200_runs_with_partitions(name: str) -> None:
    check_found(FAULTS_OF_PARTITIONS[name], "partitions")


@pytest.mark.parametrize("name", one_quick(FAULTS_OF_OBJECTS))
def test_a_planted_fault_is_found_within_200_values(name: str) -> None:
    check_found(FAULTS_OF_OBJECTS[name], "objects")


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS_OF_INPUTS)
def test_a_planted_fault_is_found_within_50_jobs_of_two_inputs(name: str) -> None:
    check_found(FAULTS_OF_INPUTS[name], "two inputs", 50)


def check_found(fault: Fault, kind: str, seeds: int = SEEDS) -> None:
    """Plant a fault and search."""
    done = search(kind, seeds, fault)
    assert done.returncode == 3, f"not found: {done.stdout}{done.stderr}"


@pytest.mark.parametrize("name", ALL_FAULTS)
def test_what_a_fault_makes_wrong_is_there_once(name: str) -> None:
    fault = ALL_FAULTS[name]
    for each in (fault, *fault.more):
        planted(each)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        "moves", "graphs", "changes", "partitions", "hand-overs", "processes", "loops", "stores", "objects",
        "introductions",
    ],
)
def test_the_search_finds_nothing_in_the_code_as_it_is(kind: str) -> None:
    """A few seeds; the tests of each kind run them all."""
    done = search(kind, 5)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("given", ["", "7"])
def test_a_search_is_the_same_whatever_strings_are_hashed_to(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", given)
    renamed = FAULTS_OF_FOLDERS["a file is renamed instead of linked"]
    done = search("folders", 1, Fault(renamed.where, renamed.right, "[][print(hash('a')) or 9]"))
    pinned = [sys.executable, "-c", "print(hash('a'))"]
    wanted = subprocess.run(pinned, env={"PYTHONHASHSEED": "0"}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and done.stdout.splitlines()[0] == wanted.stdout.strip(), done.stdout + done.stderr


def search(kind: str, seeds: int, fault: Fault | None = None) -> "subprocess.CompletedProcess[str]":
    """Run the seeds in a process of their own, with a fault in megaflow."""
    planting = [json.dumps(asdict(fault))] if fault else []
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation.search", kind, str(seeds), *planting],
        cwd=ROOT, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
