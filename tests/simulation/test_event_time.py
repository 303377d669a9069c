"""Whole jobs with event time, whatever happens to them: see `event_time`. And faults planted in what they go by.

By hand: python -m tests.simulation.search "event time" 5000.
"""

import pytest

from tests.simulation.event_time import run
from tests.simulation.lives import check_all
from tests.simulation.planting import Fault, planted
from tests.simulation.test_planted_faults import check_found

SEEDS = 200
_SEEDS_PER_TEST = 50
EVENTS = {
    "by the clock", "closed early", "closed for good", "ended", "grew", "joined", "killed", "late", "restarted",
    "stayed open", "waited", "went on",
}  # fmt: skip

FAULTS = {
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
        "Watermarks._least",
        "[(name, some) for name, some in self._operators.items() if each.input in some.inputs]",
        "[(name, some) for name, some in self._operators.items() if each.input in some.inputs][:1]",
    ),
    "the first record of a file is not out of order": Fault(
        "Watermarks._bound", "max(before) - operator.out_of_order", "max(before)"
    ),
    "the first record of any file tells where one that has not begun may be": Fault(
        "Watermarks._bound", "file < path", "True"
    ),
    "the greatest record of a file tells where the next ones may be": Fault(
        "EventReports.tell_maxima", "tuple(firsts.items())", "tuple((each, maxima[each]) for each in firsts)"
    ),
    "the watermark runs away when all partitions are idle": Fault(
        "IdleTime.reached", "min(*reached, GREATEST)", "max(reached) + 60_000_000"
    ),
    "the clock begins anew in a job that goes on": Fault(
        "Watermarks.__init__", "0 if durable is None else durable.clock", "0"
    ),
    "a checkpoint has a clock that nobody was told": Fault(
        "Checkpoints._next", "self._watermarks.told", "self._watermarks.told + 100_000"
    ),
    "a job that goes on begins without a watermark": Fault(
        "KeptState.event_time", "NEVER if commit.watermark is None else commit.watermark", "NEVER"
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
        "LastingMachine._about_to_change", "journal is None or not keys", "True"
    ),
    "the last watermark is the least bound": Fault(
        "EventTimeEnd.see", "max(bound, self.bound)", "min(bound, self.bound)"
    ),
    "the last watermark is of what was reported in time": Fault(
        "Controller._end_or_wait", "self.watermarks.has_all(out, now)", "True"
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
        "Memory.restore", "again.events | read.events", "read.events"
    ),
    "bounds are those of a worker": Fault(
        "EventClock.begin", "self.running.get(origin, NEVER)", "max(self.running.values(), default=NEVER)"
    ),
    "bounds are by batches": Fault("EventClock.begin", "self.running.get(origin, NEVER)", "NEVER"),
    "no record carries its bound": Fault("EventClock.begin", "self._out_of_order", "_NO_BOUND"),
    "who is given a partition begins anew": Fault("EventClock.begin_with", "maximum is not None", "False"),
    "a checkpoint has maxima of what is read after it": Fault(
        "EventClock.at_cut", "dict(self.running) if kept is None else kept", "dict(self.running)"
    ),
    "maxima are told before all that was read is seen": Fault("ExactMaxima.after", "self._operators", "False"),
    "a checkpoint has no maxima": Fault(
        "ExactMaxima.tell", "tell(with_maxima(running, splits), with_maxima(running, portions))",
        "tell(splits, portions)",
    ),
    "a store has no maxima of files": Fault("resumed_input", "each.maxima", "()"),
    "a late record joins a session that is open": Fault(
        "Sessions._judged", "micros + self._lateness < bound", "micros + self._gap + self._lateness <= bound"
    ),
    "a record that is late for some of its windows counts in all": Fault(
        "Panes._by_pane", "start if first == self._windows.first_end_after(start) else (start, first)", "start"
    ),
    "the watermark decides no more what is late": Fault("limit_of", "max(bound, watermark)", "bound"),
    "only the watermark decides which states are over": Fault("LastingMachine._outputs", "limit - was >= ttl", "False"),
    "a record's bound does not decide which states are over": Fault(
        "LastingMachine._outputs", "since, limit = apart(since)", "since = limit = apart(since)[0]"
    ),
}  # fmt: skip


@pytest.mark.parametrize("seed", range(2))
def test_what_is_put_out_and_when_is_what_the_model_puts_out_for_the_same_watermarks(seed: int) -> None:
    run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, _SEEDS_PER_TEST))
def test_so_it_is_in_many_more(first: int) -> None:
    check_all(run, range(first, first + _SEEDS_PER_TEST), EVENTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_of_event_time_is_found_within_200_jobs(name: str) -> None:
    check_found(FAULTS[name], "event time")


@pytest.mark.parametrize("name", FAULTS)
def test_what_a_fault_of_event_time_makes_wrong_is_there_once(name: str) -> None:
    planted(FAULTS[name])
