"""Faults of progress, routing, moves, loops and the membership."""

from tests.simulation.planting import Fault

MOVES = {
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
        "all(delta > 0 or behind(location, time) for (location, time), delta in self.held)",
        "any(delta > 0 or behind(location, time) for (location, time), delta in self.held)",
    ),
    "a batch is held behind its own pointstamps": Fault(
        "IntegerTracker.is_behind_another", "return False", "return True"
    ),
    "a dataflow sleeps though its counts have changed": Fault("GraphProgress._move", "self._run_queue.stir()", "pass"),
    "a dataflow sleeps though it has changes to send": Fault("OwnChanges.update", "self._stir()", "pass"),
    "a dataflow sleeps though an operator is to run": Fault("RunQueue.add", "self.stir()", "pass"),
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
    "parts of two times leave as one message": Fault("BatchCoalescer.add", "kept[0] != time", "False"),
    "what a worker keeps for others never leaves by itself": Fault("BatchCoalescer.settle", "self.depart()", "pass"),
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
        "TimedFolds._hold_least", "held.downgrade(least)", "held.downgrade(least + 1)"
    ),
    "S never lets go of what it held for a bin that left": Fault(
        "TimedFolds._hold_least", "held.release()\nself._held = None", "pass"
    ),
    "S keeps the time of a timer that is later than an earlier record": Fault(
        "TimedFolds._hold_least", "self._held = self._output.mint(least)\nheld.release()", "pass"
    ),
    "payloads come after the records": Fault(
        "TimedFolds._call",
        "[group.get(key) or [] for group in groups]",
        "[(group.get(key) or [])[::-1] for group in groups]",
    ),
    "the two halves of a key go by tables of different times": Fault(
        "Router.run",
        "forwarder.forward(passed, control.history)",
        "forwarder.forward(passed, control.history if forwarder is self.forwarders[0]"
        " else RoutingHistory(control.history.active))",
    ),
}

GRAPHS = {
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

CHANGES = {
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

PARTITIONS = {
    "a dataflow sleeps though its step has left work": Fault("Dataflows._step", "self._queue.add(number)", "pass"),
    "what is handed back is read on": Fault(
        "LineQueue.give_back", "self._splits.close(given)", "pass"
    ),
    "of what is handed back the batch that comes next is read": Fault(
        "LineQueue.give_back", "self._next, self._split = [], None", "pass"
    ),
    "a leaver keeps the batch that comes next, and drops it": Fault(
        "OpenSplits.rest", "lines if each is untaken else 0", "0"
    ),
    "lines of a split go to the input that was read before": Fault(
        "LineQueue._next_of_splits",
        'self.input, self.partition = input, ("split", self._split.split.number)',
        'self.partition = ("split", self._split.split.number)',
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

HAND_OVERS = {
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

PROCESSES = {
    "what the second worker of a process sends before the commit is taken at once": Fault(
        "Member._prepare", "self._change.expect(message.ids)", "self._change.expect(message.ids[:1])"
    ),
}

OBJECTS = {
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

INTRODUCTIONS = {
    "a worker sees who has joined only when the change is done": Fault("Member._commit", "view.follow()", "pass"),
    "a newcomer claims nothing before it knows the table": Fault("RoutingBacklog.read", "return owns", "return False"),
}

LOOPS = {
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
        "TimedFolds._hold_each", "self._stash.keys() | self._timers.times()", "{least} - {None}"
    ),
}
