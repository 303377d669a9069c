"""The state of the page, as a JSON document: what a new viewer gets, and what has changed since.

The hub gives each event and status to `take`, and sends `snapshot()` and `changes()` to the viewers. The document is

    about        job, program, version, the options that name the job in a command, whether the page may steer
    now          seconds since 1970 of the last news; all times are by this clock
    status       state, epoch, frontier, watermark, checkpoint, plan, texts about what waits; absent: not known
    still        only if output stands still: since when, and the answer of `explain`
    workers      id → state, lines, rate, latency, bins, keys, memory, share of time that it works, what it does
    operators    place → name, number of bins, hottest keys, heaviest bins, and rows of bins, see `grids`
    timeline     number → span or mark, see `spans`
    fine, coarse second → point of the charts, see `curves`

`changes()` is a merge patch, see `patches`. `static/model.js` applies it.

1. No key of an object comes from data: operators are numbered. A program may name an operator `__proto__`.
2. Everything is bounded: bins by the job, entries and points by number, texts by length, and one call of `changes` by
   CHANGE_BYTES of rows. Later calls return the rest. So 65,536 bins and 64 workers stay below 100 kB/s at four
   calls a second.
3. Numbers are rounded to three digits, and are null or absent if they are not known. None is NaN or infinite.
"""

import math
from collections.abc import Mapping
from itertools import chain, repeat
from typing import Final

from megaflow.control import job_events as events
from megaflow.control.client.rate_sample import busy_share, work_text
from megaflow.control.reports import BusyWorker, Explanation, JobStatus, OperatorStatus, WorkerStatus
from megaflow.control.watermark_messages import WatermarkStatus
from megaflow.control.wording import busy_where, missing_texts
from megaflow.timely.order import Product
from megaflow.web.curves import Curves
from megaflow.web.grids import FIELDS, BinGrid, heaviest, hot_keys
from megaflow.web.patches import TEXT_CHARACTERS, Document, difference, known
from megaflow.web.spans import Timeline

CHANGE_BYTES: Final = 20_000  # of rows of bins, in one call of `changes`
STILL_SECONDS: Final = 5.0  # without progress, while lines are open: output stands still
EXPLAIN_SECONDS: Final = 5.0  # between two questions why
HELD_SHOWN: Final = 8
PACE: Final = "pace"  # the usual limit of a source that keeps up: no sign of a slow operator
NO_ROWS: Final[Document] = {field: {} for field in FIELDS}
NOT_SHOWN: Final[Document] = {"heaviest": [], "hot": []}  # an operator that was not there before
WAITING_STATES: Final = ("busy", "silent", "recovering")  # of a status without workers


class View:
    """The state of the page. One thread uses it."""

    def __init__(
        self, job: str = "", program: str = "", version: str = "", target: str = "", control: bool = False
    ) -> None:
        """`target` follows each command that the page shows, such as `--job orders`, quoted for a shell."""
        self._about = {"job": job, "program": program, "version": version, "target": target, "control": control}
        self._now = 0.0
        self._status: Document = {"state": "starting"}
        self._workers: Document = {}
        self._before: dict[int, WorkerStatus] = {}  # of the last status
        self._operators: list[Document] = []  # without rows
        self._grids: list[BinGrid] = []
        self._timeline = Timeline()
        self._curves = Curves()
        self._frontier: tuple[int | None, int] | None = None  # frontier and lines done, as last seen to change
        self._moved_at = 0.0  # when that was
        self._opened = False  # lines are open, as the last status says
        self._explanation: Document | None = None
        self._explained_at = -math.inf
        self._sent: Document = {}

    def take(self, news: events.JobEvent | JobStatus | Explanation, now: float) -> None:
        """Take news at `now`, in seconds since 1970."""
        self._now = max(self._now, now)
        self._moved_at = self._moved_at or self._now  # nothing is known from before the first news
        if isinstance(news, JobStatus):
            self._take_status(news)
        elif isinstance(news, Explanation):
            self._explained_at = self._now
            self._explanation = explanation_document(news)
        else:
            self._timeline.take(news, self._now)
            self._take_bins(news.body)

    def end(self, now: float) -> None:
        """The job has ended."""
        self._now = max(self._now, now)
        self._timeline.end(self._now)
        self._status = {**self._status, "state": "ended"}
        self._opened = False

    def wants_explanation(self, now: float) -> bool:
        """Return whether output stands still, and the last answer of `explain` is old."""
        return self._stands_still(now) and now - self._explained_at >= EXPLAIN_SECONDS

    def snapshot(self) -> Document:
        """Return the whole document. Call `changes` just before: later changes name what left the document since."""
        document = self._document()
        shown = {
            place: {**operator, **grid.rows()}
            for (place, operator), grid in zip(document["operators"].items(), self._grids)
        }
        return {**document, "operators": shown}

    def changes(self) -> Document | None:
        """Return what has changed since the last call, or None."""
        document = self._document()
        patch = difference(self._sent, document)
        self._sent = document
        operators = dict(patch.pop("operators", {}))  # a copy: the patch shares objects with the document
        budget = CHANGE_BYTES
        for grid in self._grids[len(self._operators) :]:
            grid.forget()  # the patch removes these operators with all their rows
        for place, grid in enumerate(self._grids[: len(self._operators)]):
            rows, budget = grid.drain(budget)
            if rows:
                operators[str(place)] = {**operators.get(str(place), {}), **rows}
        if operators:
            patch["operators"] = operators
        return patch or None

    def _document(self) -> Document:
        """Return the document without the rows of bins. Parts that have not changed are the same objects."""
        document = {
            "about": self._about,
            "now": round(self._now, 1),
            "status": self._status,
            "workers": self._workers,
            "operators": {str(place): operator for place, operator in enumerate(self._operators)},
            "timeline": dict(self._timeline.entries),
            "fine": self._curves.fine,
            "coarse": self._curves.coarse,
        }
        if self._stands_still(self._now):
            document["still"] = {"since": round(self._moved_at, 1), "why": self._explanation or {}}
        return document

    def _stands_still(self, now: float) -> bool:
        return self._opened and now - self._moved_at >= STILL_SECONDS

    # Events and bins ------------------------------------------------------------------

    def _take_bins(self, body: events.Body) -> None:
        match body:
            case events.StepBegun():
                for grid in self._grids:
                    grid.take_moves(body.moves)
            case events.BinsArrived():
                for operator, grid in zip(self._operators, self._grids):
                    if operator["name"] == body.operator[:TEXT_CHARACTERS]:
                        grid.arrive(body.bins, body.worker)
            case events.Recovering():
                self._land()

    def _land(self) -> None:
        for grid in self._grids:
            grid.land()

    # Statuses -------------------------------------------------------------------------

    def _take_status(self, status: JobStatus) -> None:
        if status.job and status.job != self._about["job"]:
            self._about = {**self._about, "job": status.job[:TEXT_CHARACTERS]}
        if status.state in WAITING_STATES:
            self._opened = self._opened or status.state != "recovering"
            self._status = {**self._status, **status_document(status)}
            self._workers = {key: silent(worker) for key, worker in self._workers.items()}
            self._note_busy(status.busy)
            return
        self._timeline.resumed(self._now)
        if status.plan is None and not status.pending:
            self._timeline.settle(self._now)
        if not status.pending:
            self._land()
        self._status = status_document(status)
        before = self._workers
        self._workers = {str(each.id): worker_document(each, self._before.get(each.id)) for each in status.workers}
        for id in status.silent:
            self._workers[str(id)] = silent(before.get(str(id), {}))
        self._note_busy(status.busy)
        self._take_operators(status.operators)
        self._note_progress(status)
        self._take_point(status)
        self._before = {each.id: each for each in status.workers}

    def _note_busy(self, busy: tuple[BusyWorker, ...]) -> None:
        for each in busy:
            text = busy_where(each)[:TEXT_CHARACTERS]
            for worker in each.workers:
                state = each.state
                self._workers[str(worker)] = {**self._workers.get(str(worker), {}), "state": state, "busy": text}

    def _take_operators(self, operators: tuple[OperatorStatus, ...]) -> None:
        before, self._operators = self._operators, []
        self._grids += [BinGrid() for _ in operators[len(self._grids) :]]
        for grid in self._grids[len(operators) :]:
            grid.resize(0)  # it stays, in case another operator takes its place before viewers know
        for operator, grid, old in zip(operators, self._grids, chain(before, repeat(NOT_SHOWN))):
            load = operator.load
            heavy = old["heaviest"] if load is None else heaviest(load)
            hot = old["hot"] if load is None else hot_keys(load)
            name = operator.name[:TEXT_CHARACTERS]
            self._operators.append({"name": name, "bins": operator.bins, "heaviest": heavy, "hot": hot, **NO_ROWS})
            grid.resize(operator.bins)
            if operator.table is not None:
                grid.take_table(operator.table)
            if load is not None:
                grid.take_load(load)

    def _note_progress(self, status: JobStatus) -> None:
        done = sum(worker.done for worker in status.workers)
        self._opened = bool(status.silent) or bool(status.output) or any(
            worker.lines > worker.done or worker.waiting != 0 for worker in status.workers
        )  # fmt: skip
        reached = status.frontier, done
        if reached != self._frontier or not self._opened:
            self._frontier, self._moved_at, self._explanation = reached, self._now, None

    def _take_point(self, status: JobStatus) -> None:
        workers = status.workers
        late = [worker.latency_ms for worker in workers if worker.latency_ms.max > 0]
        lag = None if status.watermark is None else status.watermark.lag_seconds
        waiting = [worker.waiting for worker in workers if worker.waiting is not None]
        complete = not status.silent  # a sum over the others would look like a fall
        values = [
            sum(worker.records_per_second for worker in workers),
            max((each.p50 for each in late), default=None),
            max((each.p99 for each in late), default=None),
            max((each.max for each in late), default=None),
            lag,
            sum(waiting) + sum(worker.lines - worker.done for worker in workers) if complete else None,
            held_back(workers, self._before),
            memory(workers) if complete else None,
        ]
        finite = [None if value is None or not math.isfinite(value) else value for value in values]
        self._curves.take(finite, {worker.id: worker.records_per_second for worker in workers}, self._now)


# Documents ----------------------------------------------------------------------------


def silent(worker: Document) -> Document:
    """Return the row of a worker that has not answered: what it did when it last answered is over."""
    return {name: value for name, value in worker.items() if name not in ("busy", "doing")} | {"state": "silent"}


def held_back(workers: tuple[WorkerStatus, ...], before: Mapping[int, WorkerStatus]) -> float | None:
    """Return the greatest share of the time since the last statuses for which a worker's sources were held back."""
    shares = []
    for now in workers:
        old = before.get(now.id)
        if old is not None and now.now > old.now and (seconds := blocked(now) - blocked(old)) >= 0:
            shares.append(min(1.0, seconds / (now.now - old.now)))
    return max(shares, default=None)


def blocked(worker: WorkerStatus) -> float:
    """Return the seconds for which a worker's sources were held back by a slow operator."""
    return sum(time for limit, time in worker.blocked_seconds.items() if limit != PACE)


def memory(workers: tuple[WorkerStatus, ...]) -> float | None:
    """Return the memory of all processes; None if it is not known of any."""
    processes = {(each.address, each.pid): each.memory_bytes for each in workers if each.memory_bytes is not None}
    return float(sum(processes.values())) if processes else None


def status_document(status: JobStatus) -> Document:
    """Return what the page's head shows."""
    facts: Document = {
        "state": status.state, "epoch": status.epoch, "frontier": status.frontier, "output": status.output,
        "restart": status.restart, "launcher": status.launcher,
    }  # fmt: skip
    if (last := status.checkpoint) is not None:
        facts["checkpoint"] = known({
            "number": last.number, "age": last.age_seconds, "bytes": last.bytes, "seconds": last.seconds,
            "failing": last.failing_seconds, "reason": last.reason,
        })  # fmt: skip
    if (plan := status.plan) is not None:
        facts["plan"] = known({
            "strategy": plan.strategy, "bins": plan.bins, "left": plan.left, "running": plan.running,
            "removes": plan.removes,
        })  # fmt: skip
    if status.joining:
        facts["joining"] = [each.waits[:TEXT_CHARACTERS] for each in status.joining[:HELD_SHOWN]]
    if queued := [each.waits[:TEXT_CHARACTERS] for each in status.joining[:HELD_SHOWN] if not each.address]:
        facts["queued"] = queued
    if status.missing:
        facts["missing"] = [text[:TEXT_CHARACTERS] for text in missing_texts(status.missing[:HELD_SHOWN])]
    if status.watermark is not None:
        facts["watermark"] = watermark_document(status.watermark)
    return known(facts)


def watermark_document(watermark: WatermarkStatus) -> Document:
    """Return the watermark and the partition that holds it back."""
    held = watermark.held_by
    return known({
        "micros": watermark.micros, "lag": watermark.lag_seconds, "age": watermark.age_seconds,
        "held": None if held is None else held.partition, "operator": None if held is None else held.operator,
    })  # fmt: skip


def worker_document(worker: WorkerStatus, before: WorkerStatus | None) -> Document:
    """Return one row of the table of workers; `before` is the worker's last status."""
    late = worker.latency_ms if worker.latency_ms.max > 0 else None  # it has read no line in the last seconds
    return known({
        "state": worker.state, "pid": worker.pid, "address": worker.address, "lines": worker.lines,
        "records": worker.records, "rate": worker.records_per_second,
        "p50": late and late.p50, "p99": late and late.p99, "max": late and late.max,
        "bins": worker.bins, "keys": worker.keys, "memory": worker.memory_bytes,
        "open": worker.lines - worker.done, "waiting": worker.waiting, "share": busy_share(before, worker),
        "doing": work_text(before, worker)[:TEXT_CHARACTERS] or None,
    })  # fmt: skip


def explanation_document(report: Explanation) -> Document:
    """Return what holds the output back: rows of holders, and texts."""
    held = [
        {
            "operator": each.operator[:TEXT_CHARACTERS], "where": each.where[:TEXT_CHARACTERS],
            "port": each.port, "worker": "between" if each.worker is None else each.worker,
            "epoch": f"({each.epoch.outer}, {each.epoch.inner})" if isinstance(each.epoch, Product) else each.epoch,
            "count": each.count, "kind": each.kind,
        }
        for each in report.held_by[:HELD_SHOWN]
    ]  # fmt: skip
    busy = [
        {"workers": list(each.workers), "text": busy_where(each)[:TEXT_CHARACTERS]} for each in report.busy[:HELD_SHOWN]
    ]
    return known({"epoch": report.epoch, "frontier": report.frontier, "settled": report.settled, "held": held,
                  "busy": busy, "silent": list(report.silent), "output": report.output})  # fmt: skip
