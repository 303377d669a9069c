"""Faults of event timers, windows, watermarks and late records."""

from tests.simulation.planting import Fault

EVENT_TIMERS = {
    "event timers fire before the records of the time": Fault(
        "TimedFolds.run", "self._apply(time)\nself._close(time)", "self._close(time)\nself._apply(time)"
    ),
    "records see the watermark of their own time": Fault(
        "TimedFolds.run", "self._apply(time)", "self._events.close(time)\nself._apply(time)"
    ),
    "S does not wait for the time of a marker": Fault(
        "TimedFolds.run", "self._stash[time]", "self._events.close(time)"
    ),
    "a bin does not tell the watermark": Fault("Shipper._take", "self._store.events.heard(time)", "()"),
    "a bin does not tell what is commanded at its time": Fault(
        "EventTimers.heard", "self._coming.get(time, (NEVER, NEVER))", "(NEVER, NEVER)"
    ),
    "a bin that tells it does not have its time closed": Fault("Installer.install", "return is_marked", "return False"),
    "a watermark counts from the time that it is read": Fault(
        "EventTimers.read", "INFINITE if micros >= INFINITE else NEVER", "setattr(self, 'watermark', micros) or NEVER"
    ),
    "event timers stay where they were set": Fault("BinStore.take", "self.events.take(bin)", "[]"),
    "event timers stay where they were set, and leave as well": Fault(
        "EventTimers.take", "self._by_event.take(bin)", "None"
    ),
    "event timers do not travel": Fault(
        "_runs", "(taken.pairs, taken.timers, taken.events)", "(taken.pairs, taken.timers, [])"
    ),
    "what is due meanwhile waits for the next time": Fault(
        "TimedFolds._close", "if events.is_due():\n    self._stash[time]", "pass"
    ),
    "a count begins when it is set": Fault(
        "EventTimers.set_after", "self.ticked == time or self.clock >= INFINITE", "self.clock > NEVER"
    ),
    "what is set under the infinite watermark is not dropped": Fault(
        "EventTimers.set_after", "self.is_firing and self.watermark >= INFINITE", "False"
    ),
    "event timers are those set since an abandoned cut": Fault(
        "Journal._cut",
        "chain(store.events.unbegun(), *(each.events for each in changed))",
        "chain(store.events.unbegun(), changed[-1].events)",
    ),
    "those whose count has not begun are not written": Fault(
        "Journal._cut",
        "chain(store.events.unbegun(), *(each.events for each in changed))",
        "chain(*(each.events for each in changed))",
    ),
    "those whose count has not begun count ever after": Fault(
        "restore", "number == newest or state[0][0] != UNBEGUN", "True"
    ),
    "a count that begins is not written": Fault("TimedFolds._close", "self._note(bin, timer)", "None"),
    "event timers of a bin that left are written": Fault(
        "Journal._cut",
        "[timer for bin, timer in logged if bin in store.bins and bin not in whole]",
        "[timer for bin, timer in logged if bin not in whole]",
    ),
    "event timers of whole bins are written twice": Fault(
        "Journal._cut",
        "[timer for bin, timer in logged if bin in store.bins and bin not in whole]",
        "[timer for bin, timer in logged if bin in store.bins]",
    ),
    "event timers that have fired are restored": Fault("_begin", "filter(store.events.waits, events)", "events"),
    "a payload of an event timer changes before it is written": Fault(
        "Journal.fire_events", "self._writer is not None", "False"
    ),
}

TIMER_ORDER = {
    "what is set meanwhile fires after all that was due": Fault(
        "EventTimers.set_event", "self.is_firing and micros <= self.watermark", "False"
    ),
    "timers of several timestamps fire in one call": Fault(
        "EventTimers.pop", "due and due[0][:2] == (line, micros)", "due"
    ),
    "what is set under the infinite watermark is not dropped": Fault(
        "EventTimers.set_event", "self._limits.get(key, INFINITE)", "INFINITE"
    ),
    "all that is set under the infinite watermark is dropped": Fault(
        "EventTimers.set_event", "self._limits.get(key, INFINITE)", "INFINITE if self.watermark < INFINITE else -1"
    ),
    "the first of a key's last timers is its limit": Fault(
        "EventTimers._gather",
        "max(least, self._limits.get(key, self.greatest))",
        "self._limits.get(key, max(least, self.greatest))",
    ),
    "timers of one timestamp fire in any order": Fault(
        "EventTimers.set_event", "self._by_event.next_order()", "-self._by_event.next_order()"
    ),
}

EVENT_MOVES = {
    "event timers fire at the start of an epoch": Fault(
        "TimedFolds.run", "self._apply(time)\nself._close(time)", "self._close(time)\nself._apply(time)"
    ),
    "a newcomer is not told the watermark": Fault(
        "EventTimers.heard", "(*known, ...) if max(known) > NEVER else ()", "()"
    ),
    "event timers stay where they were set, and are lost": Fault(
        "BinStore.take", "self.events.take(bin)", "self.events.take(bin)[:0]"
    ),
    "event timers stay where they were set, and leave as well": Fault(
        "EventTimers.take", "self._by_event.take(bin)", "pass"
    ),
    "a timer is set after those with a later timestamp": Fault(
        "TimerLine.add",
        "heappush(heap, (micros, self.next_order(), key, payload))",
        "heappush(heap, (micros, -self.next_order(), key, payload))",
    ),
    "a late record counts in a window": Fault(
        "Panes._first_open",
        "limit >= self._closes_at(first)",
        "False",
    ),
    "a session that a record begins earlier begins where it did": Fault(
        "Sessions._insert", "min(start, met[0][0])", "met[0][0]"
    ),
    "a session that a record ends later ends where it did": Fault(
        "Sessions._insert", "max(end, met[-1][1])", "met[-1][1]"
    ),
    "what a stop closes is final": Fault("WindowFold._called", "EarlyWindow if events.by_stop else Window", "Window"),
    "a session that grows leaves its early result behind": Fault(
        "Sessions.replaced", "micros < intervals[number][0] or micros + gap > intervals[number][1]", "False"
    ),
    "a late record puts an open session out again": Fault(
        "Sessions._times", "micros + self._lateness >= limit_of(bound, watermark)", "True"
    ),
    "two sessions that touch are one": Fault(
        "Sessions._met", "bisect_right(intervals, start, key=_END)", "bisect_left(intervals, start, key=_END)"
    ),
    "of two sessions that a record joins one is lost": Fault(
        "Sessions._insert", "[interval[2] for interval in met]", "[met[0][2]]"
    ),
    "an epoch is closed before all outputs of the fold before have come": Fault(
        "TimedFolds.run", "[each.frontier for each in (*self._data, self._state)]", "[self._state.frontier]"
    ),
    "the lateness of windows before a state machine does not count behind it": Fault(
        "Stream.stateful_state_machine",
        "EventStream(made.stamped(stamp, pairs.pairs, self.unit, ttl), self.unit, self.behind)",
        "EventStream(made.stamped(stamp, pairs.pairs, self.unit, ttl), self.unit)",
    ),
    "the lateness of windows before a fold with timers does not count behind it": Fault(
        "Stream._outputs", "max(each.behind for each in (self, *others))", "0"
    ),
    "outputs of event timers are judged by the watermark that fires them": Fault(
        "WindowFold._called",
        "watermark = self._core.store.events.watermark",
        "events = self._core.store.events\n"
        "watermark = max(events.watermark, *(coming for coming, _ in events._coming.values()), -1)",
    ),
    "a timestamp of a function is raised to those before it": Fault(
        "OutputStamper.begin", "self._stamping(), NEVER, as_it_is", "self._stamping(), NEVER, max"
    ),
    "an output with a timestamp of a function is late by those before it": Fault(
        "OutputStamper.begin",
        "self._stamping(), NEVER, as_it_is",
        "self._stamping(), NEVER, "
        "lambda micros, greatest: (greatest + 62_135_596_800_000_000 << 64) + micros + 62_135_596_800_000_000",
    ),
}

LATE_RECORDS = {
    "what is handed back has no maxima": Fault("ExactMaxima.hand_back", "with_maxima(running, rest)", "rest"),
    "who is given a partition begins anew": Fault("TimestampAssigner.begin_with", "maximum is not None", "False"),
    "maxima are told before all that was read is seen": Fault("ExactMaxima.after", "self._operators", "False"),
    "bounds are those of a worker": Fault(
        "TimestampAssigner.begin", "self.running.get(tag, NEVER)", "max(self.running.values(), default=NEVER)"
    ),
    "bounds are by batches": Fault("TimestampAssigner.begin", "self.running.get(tag, NEVER)", "NEVER"),
    "no record carries its bound": Fault("TimestampAssigner.begin", "self._out_of_order", "1 << 64"),
    "what was counted of lateness goes with the coordinator": Fault("Watermarks.resume", "state.late", "()"),
    "lateness is by batches": Fault(
        "TimestampAssigner._counting", "seen.counting(slack)", "LatenessHistogram().counting(slack)"
    ),
    "a record is late when its bound is near the end of a window": Fault(
        "Panes._first_open", "limit >= self._closes_at(first)", "limit >= self._closes_at(first) - 1_000_000"
    ),
    "no record is late for its day": Fault("CalendarPanes._by_span", "self._first_open(span, bound) is None", "False"),
    "days have 24 hours": Fault("CalendarWindows.window_of", "self._start(index + 1)", "start + DAY"),
    "a record that is late for some of its windows counts in all": Fault(
        "Panes._by_pane", "start if first == self._windows.first_end_after(start) else (start, first)", "start"
    ),
    "a late record joins a session that is open": Fault(
        "Sessions._judged", "micros + self._lateness < bound", "micros + self._windows.gap + self._lateness <= bound"
    ),
    "the outputs of a fold do not carry the bounds of their records": Fault(
        "stamp_by_record",
        "stamp, value = given",
        "stamp, value = given\nstamp = stamp if stamp < 1 << 63 else stamp % (1 << 64) - 62_135_596_800_000_000",
    ),
}  # fmt: skip

EVENT_TIME = {
    "a file that a worker cannot open does not count": Fault(
        "LinesToRead.unread", "yield split, worker", "if split.number not in self.state.missing: yield split, worker"
    ),
    "a partition that was never read does not count": Fault(
        "Watermarks._least",
        "not following",
        "not following or all((name, each.partition) not in self._maxima for name, _ in following)",
    ),
    "the watermark is the greatest timestamp, whatever may be out of order": Fault(
        "Watermarks._value", "maximum - operator.out_of_order", "maximum"
    ),
    "maxima are those of a worker": Fault(
        "EventReports.tell_maxima", "tuple(maxima.items())", "tuple((each, max(maxima.values())) for each in maxima)"
    ),
    "an idle partition holds the watermark back for ever": Fault(
        "Watermarks._is_idle", "each.partition in self._idle", "False"
    ),
    "only the first of those that take timestamps of an input counts": Fault(
        "Watermarks._following",
        "{name: some for name, some in self._operators.items() if each.input in some.inputs}",
        "dict([(name, some) for name, some in self._operators.items() if each.input in some.inputs][:1])",
    ),
    "the first record of a file is not out of order": Fault(
        "Watermarks._bound", "max(before) - operator.out_of_order", "max(before)"
    ),
    "the first record of any file tells where one that has not begun may be": Fault(
        "Watermarks._bound", "name_key(file, each.what.natural) < place", "True"
    ),
    "the greatest record of a file tells where the next ones may be": Fault(
        "EventReports.tell_maxima", "tuple(firsts.items())", "tuple((each, maxima[each]) for each in firsts)"
    ),
    "the watermark runs away when all partitions are idle": Fault(
        "IdleTime.reached", "min(reached[least], GREATEST)", "max(reached.values()) + 60_000_000"
    ),
    "the clock begins anew in a job that goes on": Fault(
        "Watermarks.__init__", "0 if durable is None else durable.clock", "0"
    ),
    "a checkpoint has a clock that nobody was told": Fault(
        "Checkpoints._next", "self._watermarks.told", "self._watermarks.told + 100_000"
    ),
    "a job that goes on begins without a watermark": Fault(
        "StateBackend.event_time", "NEVER if commit.watermark is None else commit.watermark", "NEVER"
    ),
    "an event timer that was set since the last checkpoint is in none": Fault(
        "Journal.set_event", "self._present.events.append((bin, timer))", "pass"
    ),
    "timers whose time has not begun to count are in no checkpoint": Fault(
        "Journal._cut", "chain(store.events.unbegun(), *(each.events for each in changed))",
        "chain(*(each.events for each in changed))",
    ),
    "event timers that have fired fire again in a job that goes on": Fault(
        "EventTimers.waits", "bool(line == AFTER or micros > (self.watermark, self.clock)[line])", "True"
    ),
    "that a state has gone, or has begun to last, is in no checkpoint": Fault(
        "TtlMachine._about_to_change", "journal is None or not keys", "True"
    ),
    "the last watermark is the least bound": Fault(
        "EventTimeEnd.see", "max(bound, self.bound)", "min(bound, self.bound)"
    ),
    "the last watermark is of what was reported in time": Fault(
        "Controller._end_or_wait", "self.watermarks.has_all()", "True"
    ),
    "a checkpoint does not know the greatest bound": Fault(
        "CommitDraft.commit", "ready.bound", "None"
    ),
    "everything closes at the end of a job with a store": Fault(
        "Watermarks.__init__", "given.closes or durable is None", "True"
    ),
    "what was closed at the end opens again": Fault(
        "CommitDraft._watermark", "(self.begun.watermark, self.deadline)", "(self.begun.watermark,)"
    ),
    "event timers are in no checkpoint of the end": Fault(
        "Journal._cut", "store.events.waits(entry[1])", "store.events.waits(entry[1]) and not checkpoint.at_end"
    ),
    "timers by the clock fire again that the end has fired": Fault(
        "Journal.register", "store.events.all_fire(time, bin)", "False"
    ),
    "a stop without a store leaves windows open": Fault(
        "EventTimeEnd.commands", "self.drains if stops else self.closes", "not stops and self.closes"
    ),
    "event timers are not read again by who stays after a loss": Fault(
        "LocalRecovery.restore", "again.events | read.events", "read.events"
    ),
    "bounds are those of a worker": Fault(
        "TimestampAssigner.begin", "self.running.get(tag, NEVER)", "max(self.running.values(), default=NEVER)"
    ),
    "bounds are by batches": Fault("TimestampAssigner.begin", "self.running.get(tag, NEVER)", "NEVER"),
    "no record carries its bound": Fault("TimestampAssigner.begin", "self._out_of_order", "1 << 64"),
    "who is given a partition begins anew": Fault("TimestampAssigner.begin_with", "maximum is not None", "False"),
    "a checkpoint has maxima of what is read after it": Fault(
        "TimestampAssigner.at_cut", "dict(self.running) if kept is None else kept", "dict(self.running)"
    ),
    "maxima are told before all that was read is seen": Fault("ExactMaxima.after", "self._operators", "False"),
    "a checkpoint has no maxima": Fault(
        "ExactMaxima.tell", "tell(with_maxima(running, splits), with_maxima(running, partitions))",
        "tell(splits, partitions)",
    ),
    "a store has no maxima of files": Fault("resumed_input", "each.maxima", "()"),
    "a late record joins a session that is open": Fault(
        "Sessions._judged", "micros + self._lateness < bound", "micros + self._windows.gap + self._lateness <= bound"
    ),
    "a record that is late for some of its windows counts in all": Fault(
        "Panes._by_pane", "start if first == self._windows.first_end_after(start) else (start, first)", "start"
    ),
    "the watermark decides no more what is late": Fault("limit_of", "max(bound, watermark)", "bound"),
    "only the watermark decides which states are over": Fault("TtlMachine._outputs", "limit - was >= ttl", "False"),
    "a record's bound does not decide which states are over": Fault(
        "TtlMachine._outputs", "since, limit = apart(since)", "since = limit = apart(since)[0]"
    ),
    "the outputs of a fold do not carry the bounds of their records": Fault(
        "stamp_by_record",
        "stamp, value = given",
        "stamp, value = given\nstamp = stamp if stamp < 1 << 63 else stamp % (1 << 64) - 62_135_596_800_000_000",
    ),
    "states that expire do not know the timestamps if outputs have stamps": Fault("keep_stamps", "given[0]", "0"),
}  # fmt: skip

BRANCHES = {
    "a branch without records holds event time back": Fault(
        "IdleBranches.is_idle", "(operator, partition) in self._since", "False"
    ),
    "a branch without records counts by the least out_of_order": Fault(
        "IdleBranches.reached",
        "max(each.out_of_order for each in operators.values())",
        "min(each.out_of_order for each in operators.values())",
    ),
    "a file that ends has idle branches": Fault(
        "EventReports._watching", "len(self._operators) > 1 and may_have_idle_branches(...)", "len(self._operators) > 1"
    ),
}

REPRODUCIBLE = {
    "only the watermark decides what is late": Fault("TimestampAssigner.begin", "self._out_of_order", "1 << 64"),
    "of equal values the last one is the best": Fault("Ranking._wins_tie", "encode(...) < encode(...)", "True"),
}
