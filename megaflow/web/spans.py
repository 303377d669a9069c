"""The timeline: what happens in a job, as spans with a begin and an end, and marks.

    PlanBegun, StepBegun, StepDone …       one span, with the account of its steps
    StepBegun, StepDone without a plan     one span
    JoinBegun … WorkersJoined, WorkerReady one span for the processes of a command
    LeaveBegun … WorkersLeft               one span
    CheckpointStarted … Committed, Failed  one span
    Recovering … CoordinatorStarted        one span: the job has lost a process and resumes
    Waiting … Waiting("")                  one span

1. An entry is a JSON object of absolute values, and is replaced, never changed. A span without `end` is under way.
2. The newest 400 entries are kept, and the newest 40 steps of a plan.
3. A new attempt ends what was under way: the coordinator that would report its end is gone.
4. A plan has no event at its end. It ends with the step that moves its last bin, or with `settle`, which is called if a
   status shows no plan.
"""

from typing import Any, Final

from megaflow.control import job_events as events
from megaflow.control.reports import StepReport
from megaflow.control.wording import quantity, ranges_text, workers_text
from megaflow.web.patches import TEXT_CHARACTERS

ENTRIES_KEPT: Final = 400
STEPS_KEPT: Final = 40
BINS_SHOWN: Final = 200  # of a step, by their ranges

Entry = dict[str, Any]
Facts = dict[str, Any]


class Timeline:
    """Spans and marks by number, oldest first. One thread uses it."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self._next = 1
        self._open: dict[tuple[str, int], str] = {}  # kind and its number -> entry
        self._expected: dict[str, int] = {}  # join under way -> processes that are missing
        self._now = 0.0
        self._attempt = 0

    def take(self, event: events.JobEvent, now: float) -> None:
        """Add an event. An event's time is never after `now`: clocks of two machines may differ."""
        self._now = min(event.time, now)
        if event.number and event.attempt > self._attempt:
            self._attempt = event.attempt
            self._end_all()
        self._add(event.body)

    def settle(self, now: float) -> None:
        """End the plan under way: a status shows that there is none."""
        self._now = now
        self._end("plan", 0)

    def resumed(self, now: float) -> None:
        """End a restart: the job runs again."""
        self._now = now
        self._end("restart", 0)

    def end(self, now: float) -> None:
        """End everything: the job has ended."""
        self._now = now
        self._end_all()
        self._mark("end", "The job has ended")

    # Entries ------------------------------------------------------------------------

    def _begin(self, kind: str, number: int, title: str, **facts: Any) -> str:
        self._end(kind, number)
        entry = self._mark(kind, title, **facts)
        self._open[kind, number] = entry
        del self.entries[entry]["end"]
        return entry

    def _mark(self, kind: str, title: str, failed: bool = False, **facts: Any) -> str:
        entry, self._next = str(self._next), self._next + 1
        shown = {name: fact for name, fact in facts.items() if fact is not None}
        now = round(self._now, 3)
        text = title[:TEXT_CHARACTERS]
        self.entries[entry] = {"kind": kind, "begin": now, "end": now, "title": text, "facts": shown, "failed": failed}
        if len(self.entries) > ENTRIES_KEPT:
            oldest = next(iter(self.entries))
            del self.entries[oldest]
            self._open = {key: value for key, value in self._open.items() if value != oldest}
            self._expected.pop(oldest, None)
        return entry

    def _change(self, entry: str, facts: Facts, **values: Any) -> None:
        old = self.entries[entry]
        self.entries[entry] = {**old, **values, "facts": {**old["facts"], **facts}}

    def _end(self, kind: str, number: int, title: str = "", failed: bool = False, **facts: Any) -> bool:
        """End a span, if it is under way; return whether it was. Without `title` it keeps its own."""
        entry = self._open.pop((kind, number), None)
        if entry is None:
            return False
        self._expected.pop(entry, None)
        title = (title or self.entries[entry]["title"])[:TEXT_CHARACTERS]
        self._change(entry, facts, end=round(self._now, 3), title=title, failed=failed)
        return True

    def _end_all(self) -> None:
        for kind, number in list(self._open):
            self._end(kind, number)

    # Events -------------------------------------------------------------------------

    def _add(self, body: events.Body) -> None:
        """Add one event by its type; types without an entry are left out."""
        match body:
            case events.CoordinatorStarted(worker, workers, taken_over):
                self._end("restart", 0)
                if taken_over:
                    self._mark("coordinator", f"Worker {worker} coordinates the job now")
                else:
                    title = f"Attempt {self._attempt} started" if self._attempt > 1 else "The job started"
                    self._mark("start", title, workers=quantity(len(workers), "worker"), coordinator=worker)
            case events.PlanBegun():
                removed = "" if body.removes is None else f" to remove worker {body.removes}"
                title = f"{'Resumed: move' if body.resumed else 'Move'} {quantity(body.bins, 'bin')}{removed}"
                self._begin("plan", 0, title, strategy=body.strategy, planned=body.bins, bins=0, keys=0, bytes=0,
                            pause=0.0, steps=[], runner=body.runner[:TEXT_CHARACTERS])  # fmt: skip
            case events.StepBegun():
                self._add_step(body)
            case events.BinsArrived():
                if entry := self._step_entry(body.epoch):
                    pause = max(self.entries[entry]["facts"]["pause"], round(body.seconds, 4))
                    self._change(entry, {"pause": pause})
            case events.StepDone():
                self._end_step(body.report)
            case events.JoinBegun(processes):
                entry = self._begin("join", 0, f"Add {quantity(processes, 'process')}", processes=processes)
                self._expected[entry] = processes
            case events.WorkersJoined():
                self._add_joined(body)
            case events.WorkerReady(worker, seconds):
                self._mark("ready", f"Worker {worker} knows the routing table", pause=round(seconds, 4))
            case events.LeaveBegun(worker):
                self._begin("leave", worker, f"Worker {worker} leaves")
            case events.WorkersLeft(workers):
                title = f"Left: {workers_text(workers)}"
                ended = [self._end("leave", worker, title) for worker in workers]
                if not any(ended):
                    self._mark("leave", title)
            case events.ChangeFailed():
                self._add_failure(body)
            case events.CheckpointStarted(number, epoch, named):
                names = ", ".join(named)[:TEXT_CHARACTERS] or None
                self._begin("checkpoint", number, f"Checkpoint {number}", epoch=epoch, names=names)
            case events.CheckpointCommitted(number, size, seconds):
                facts: Facts = {"bytes": size, "seconds": round(seconds, 4)}
                if not self._end("checkpoint", number, **facts):
                    self._mark("checkpoint", f"Checkpoint {number}", **facts)
            case events.CheckpointFailed(number, reason):
                title, reason = f"Checkpoint {number} failed", reason[:TEXT_CHARACTERS]
                if not self._end("checkpoint", number, title, failed=True, reason=reason):
                    self._mark("checkpoint", title, failed=True, reason=reason)
            case events.RequestRefused(command, reason):
                self._mark("refused", f"Refused: {command}", failed=True, reason=reason[:TEXT_CHARACTERS])
            case events.StopRequested():
                self._mark("stop", "Stop requested")
            case events.InputEnded():
                self._mark("stop", "The input has ended")
            case events.Recovering(text) if ("restart", 0) not in self._open:
                self._end_all()
                self._begin("restart", 0, "The job has lost a process and resumes", failed=True, restart=text)
            case events.Waiting(text):
                self._add_waiting(text)

    def _step_entry(self, epoch: int) -> str | None:
        return self._open.get(("step", epoch)) or self._open.get(("plan", 0))

    def _add_step(self, body: events.StepBegun) -> None:
        sources = sorted({source for _, source, _ in body.moves})
        targets = sorted({target for _, _, target in body.moves})
        places = f"{workers_text(sources)} → {workers_text(targets)}"
        plan = self._open.get(("plan", 0))
        bins = sorted(bin for bin, _, _ in body.moves)
        shown = ranges_text(bins[:BINS_SHOWN]) + ("…" if len(bins) > BINS_SHOWN else "")
        step = {"epoch": body.epoch, "bins": len(bins), "moved": shown, "places": places}
        if plan is None:
            title = f"Move {quantity(len(bins), 'bin')}: {places}"
            self._begin("step", body.epoch, title, planned=len(bins), bins=0, keys=0, bytes=0, pause=0.0, steps=[step])
        else:
            self._change(plan, {"steps": [*self.entries[plan]["facts"]["steps"], step][-STEPS_KEPT:]})

    def _end_step(self, report: StepReport) -> None:
        entry = self._step_entry(report.epoch)
        if entry is None:
            return
        old = self.entries[entry]["facts"]
        account = {"keys": report.keys, "bytes": report.bytes, "seconds": round(report.seconds, 4)}
        steps = [{**step, **account} if step["epoch"] == report.epoch else step for step in old["steps"]]
        sums = {name: old[name] + getattr(report, name) for name in ("bins", "keys", "bytes")}
        self._change(entry, {"steps": steps, **sums})
        if ("step", report.epoch) in self._open:
            self._end("step", report.epoch)
        elif sums["bins"] >= old["planned"]:
            self._end("plan", 0)

    def _add_joined(self, body: events.WorkersJoined) -> None:
        who = workers_text(body.workers)
        entry = self._open.get(("join", 0))
        if entry is None:
            self._mark("join", f"Joined: {who}", address=body.address)
            return
        old = self.entries[entry]["facts"]
        joined = f"{old['joined']}; {who}" if "joined" in old else who
        self._change(entry, {"joined": joined, "address": body.address}, title=f"Joined: {joined}")
        self._one_less(entry)

    def _one_less(self, entry: str) -> None:
        self._expected[entry] -= 1
        if not self._expected[entry]:
            self._end("join", 0, failed=self.entries[entry]["failed"])

    def _add_failure(self, body: events.ChangeFailed) -> None:
        reason = body.reason[:TEXT_CHARACTERS]
        titles = {worker: f"Worker {worker} did not leave" for worker in body.workers}
        ended = [self._end("leave", worker, title, failed=True, reason=reason) for worker, title in titles.items()]
        if any(ended):
            return
        if entry := self._open.get(("join", 0)):
            self._change(entry, {"reason": reason}, title="A process did not join", failed=True)
            self._one_less(entry)
        else:
            self._mark("join", "A process did not join or leave", failed=True, reason=reason)

    def _add_waiting(self, text: str) -> None:
        if not text:
            self._end("waiting", 0)
        elif entry := self._open.get(("waiting", 0)):
            self._change(entry, {}, title=text[:TEXT_CHARACTERS])
        else:
            self._begin("waiting", 0, text)
