"""Faults of checkpoints, lookups and aggregates."""

from tests.simulation.planting import Fault

CUTS = {
    "F ships bins before they are cut": Fault("Router._install", "self.barrier_actions.before(time)", "None"),
    "bins are installed before the cut": Fault("Core.install", "self.barrier_actions.before(time)", "None"),
    "a bin that came is not written whole": Fault(
        "Journal._cut", "dict.fromkeys(bin for bin in cut.bins if bin in came)", "dict[int, None]()"
    ),
    "a bin that came before an abandoned cut is not written whole": Fault(
        "Journal._cut", "set[int]().union(*(each.came for each in changed))", "changed[-1].came"
    ),
    "a delta follows an abandoned cut": Fault(
        "Journal._cut",
        "[part for each in changed for part in (each.keys, each.young)]",
        "[changed[-1].keys, changed[-1].young]",
    ),
    "timers are those set since an abandoned cut": Fault(
        "Journal._cut",
        "[timer for each in changed for bin, timer in each.timers if ...]",
        "[timer for bin, timer in changed[-1].timers if bin in store.bins and bin not in whole]",
    ),
    "keys of a bin that left are written": Fault("Journal._cut", "any(each.left for each in changed)", "False"),
    "timers of a bin that left are written": Fault(
        "Journal._cut",
        "[timer for each in changed for bin, timer in each.timers if ...]",
        "[timer for each in changed for bin, timer in each.timers if bin not in whole]",
    ),
    "timers of whole bins are written twice": Fault(
        "Journal._cut",
        "[timer for each in changed for bin, timer in each.timers if ...]",
        "[timer for each in changed for bin, timer in each.timers if bin in store.bins]",
    ),
    "S applies records of the checkpoint's time before it cuts": Fault(
        "StateMachine._apply_after", "self._barrier_actions.before(time)", "self._barrier_actions.before(time - 1)"
    ),
    "S fires timers of the checkpoint's time before it cuts": Fault(
        "TimedFolds.run", "self._barrier_actions.before(time)", "self._barrier_actions.before(time - 1)"
    ),
    "F ships bins that move at the checkpoint's time before they are cut": Fault(
        "Router._install", "self.barrier_actions.before(time)", "self.barrier_actions.before(time - 1)"
    ),
    "an idle S does not look at its state frontier": Fault("Core.keep", "(*self.data, self.state)", "self.data"),
    "an idle S does not look at its data frontiers": Fault("Core.keep", "(*self.data, self.state)", "(self.state,)"),
    "an idle S does not look at what waits": Fault("Core.keep", "(waiting is None or waiting >= next)", "True"),
    "timers due at the checkpoint's time are not written": Fault(
        "Journal._cut", "entry[1][0] >= time", "entry[1][0] > time"
    ),
    "timers due at the checkpoint's time are not restored": Fault(
        "restore", "... >= time", "(timer[0] if type(timer[0]) is int else timer[0][0]) > time"
    ),
    "keys that are gone are not written": Fault(
        "SnapshotWriter._write_changed",
        "[*filterfalse(self._kept.__contains__, run)]",
        "[key for key in run if key not in self._kept and key in self._store.states]",
    ),
    "keys that are gone, and come while a bin waits, are not written": Fault(
        "SnapshotWriter.save", "self._kept.update(dict.fromkeys(self._of_changed(absent)))", "None"
    ),
    "what is kept is not written": Fault("SnapshotWriter.is_written", "self._kept", "False"),
    "states that change in place are kept": Fault("are_fixed", "kinds <= _FIXED", "True"),
    "a state changes before it is written": Fault(
        "Journal.touch", "self._writer is not None and self._writer.is_exposed", "False"
    ),
    "a key of a waiting bin changes before it is written": Fault("SnapshotWriter.save", "self._keep(here)", "None"),
    "a bin goes before its changed keys are written": Fault(
        "SnapshotWriter.save_bin", "self._of_changed(...)", "set()"
    ),
    "a bin goes before it is written whole": Fault("SnapshotWriter.save_bin", "bin in self._bins", "False"),
    "a key that came after the cut is in its bin": Fault(
        "SnapshotWriter._write_bin", "[*filterfalse(self._kept.__contains__, keys[-self._run :])]", "keys[-self._run :]"
    ),
    "a payload changes before it is written": Fault("Journal.fire", "self._writer is not None", "False"),
    "deltas older than a base count": Fault("restore", "number >= bases[bin]", "True"),
    "deltas of the base's own cut do not count": Fault("restore", "number >= bases[bin]", "number > bases[bin]"),
    "a newcomer does not hear of checkpoints": Fault(
        "ControlInput._register",
        "self.barrier_actions.register(time, command)",
        "self.barrier_actions.register(time, command) if self._newcomer is None else None",
    ),
    "a cut does not look into the young dict": Fault("Journal._cut", "self._freeze()", "None"),
    "a bin goes without what the young dict has of it": Fault("Journal.leaving", "self._merge()", "None"),
    "S does not look for old states": Fault("StateMachine._outputs_with_young", "find_old(key)", "None"),
    "the young dict keeps a key that is gone": Fault("Journal.come_or_go", "self.young.pop(key, None)", "None"),
    "a key that S forgets is not noted": Fault("Journal.come_or_go", "self._present.keys.add(key)", "None"),
    "what the young dict had at a cut is not noted": Fault(
        "Journal._freeze", "self._present.young, self.young = self.young.keys(), None", "self.young = None"
    ),
    "a trial ends and nothing is noted": Fault(
        "Journal._try", "self._noting, self._cuts, self._present.dense = noting, 0, True", "self._noting = noting"
    ),
    "what is merged is not noted": Fault("Journal._merge", "self._present.keys.update(self.young)", "None"),
    "a dense interval before an abandoned cut is forgotten": Fault(
        "Journal._cut", "any(each.dense for each in changed)", "changed[-1].dense"
    ),
    "in a dense job no state is saved before it changes": Fault(
        "Journal.wants_keys", "self._writer is not None and self._writer.is_exposed", "False"
    ),
    "what led to a checkpoint is dropped before it is committed": Fault(
        "Journal.committed", "each.number > self._committed", "False"
    ),
}

LOOKUPS = {
    "S answers when it has applied records of the question's time": Fault(
        "StateMachine._apply_after", "self._barrier_actions.before(time)", "self._barrier_actions.before(time - 1)"
    ),
    "an idle S answers before all that is earlier has come": Fault(
        "Core.keep", "(*self.data, self.state)", "(self.state,)"
    ),
    "an S that keeps nothing installs bins before it has answered": Fault(
        "Core.install", "self.barrier_actions.before(time)", "None"
    ),
    "F ships bins before they are asked": Fault("Router._install", "self.barrier_actions.before(time)", "None"),
}

AGGREGATES = {
    "partial results are sent after their time is closed": Fault(
        "combine.logic",
        "combined[time] = output.mint(time), begin()",
        "held = output.mint(time)\nheld.release()\ncombined[time] = held, begin()",
    ),
    "partial results are sent before all records of their time are in, and the rest apart": Fault(
        "combine.logic", "frontier.less_equal(time)", "frontier.less_than(time)"
    ),
    "partial results are merged a second time where their bin is until it moves": Fault(
        "Forwarder._send",
        "self._splitter.split(batch, history.at(time))",
        "[*self._splitter.split(batch, history.at(time)), *(self._splitter.split(batch, history.active)"
        " if history.active != history.at(time) else ())]",
    ),
    "partial results go by the table that is active when they are sent": Fault(
        "Forwarder._send", "history.at(time)", "history.active"
    ),
    "a key has an output for each worker that has it": Fault("Aggregates._outputs", "list(dict(out).items())", "out"),
    "of a key's partial results the last counts": Fault("Aggregates._outputs", "merge(before, value)", "value"),
    "a state that comes to a key is not noted for the checkpoint": Fault(
        "Aggregates._outputs", "self._core.journal.touch(...)", "None"
    ),
}

AGGREGATES_IN_JOBS = {
    "what is to be sent at the end is not noted for the checkpoint": Fault(
        "Aggregates._held_back", "journal.set_timer(bin, ...)", "None"
    ),
    "at the end all keys are sent": Fault(
        "Aggregates._held_back",
        "[(key, store.states[key]) for key in keys if key in store.states]",
        "[*store.states.items()]",
    ),
}
