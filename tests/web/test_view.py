"""The page's document: changes lead from each snapshot to the last one; it is bounded; the feed is small."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from megaflow.control import job_events as events
from megaflow.control.job_events import JobEvent
from megaflow.control.reports import BusyWorker, Explanation, HeldBy, JobStatus, StepReport, UsefulTime
from megaflow.web.curves import SERIES
from megaflow.web.hub import encoded
from megaflow.web.patches import difference, merge
from megaflow.web.spans import ENTRIES_KEPT
from megaflow.web.view import View
from tests.examples import many
from tests.web.pretended import BEGIN, PretendedJob

CALLS_PER_SECOND = 4
JSON = st.recursive(
    st.integers() | st.text(max_size=3) | st.lists(st.none() | st.integers(), max_size=2),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.sampled_from("abcd"), JSON, max_size=4)


def drained(view: View) -> list[dict[str, Any]]:
    """Return all changes that the view still has."""
    found = []
    while (changed := view.changes()) is not None:
        found.append(json.loads(encoded(changed)))
    return found


def taken(view: View, job: PretendedJob, news: Iterable[JobEvent | JobStatus]) -> None:
    for each in news:
        view.take(each, job.now)


def test_a_job_that_is_busy_at_first_has_stood_still_since_then() -> None:
    view, busy = View("orders"), JobStatus("orders", "busy", None, None, (), (), silent=(0,))
    view.take(busy, 1000.0)
    assert "still" not in view.snapshot()
    view.take(busy, 1006.0)
    assert view.snapshot()["still"]["since"] == 1000.0


def test_page_forgets_what_a_silent_worker_did_before() -> None:
    view, words = View("orders"), ("busy", "fold", "app.py:12", "count", "'river'")
    for number, busy in enumerate(((0, 1), (0,))):
        found = tuple(BusyWorker((id,), 70 + id, 3.0, *words) for id in busy)
        view.take(JobStatus("orders", "busy", None, None, (), (), silent=(0,), busy=found), 1000.0 + number)
    workers = view.snapshot()["workers"]
    assert "busy" in workers["0"] and workers["1"] == {"state": "silent"}


@given(DOCUMENTS, DOCUMENTS)
def test_difference_leads_from_one_document_to_the_other(old: dict[str, Any], new: dict[str, Any]) -> None:
    patch = difference(old, new)
    assert merge(old, patch) == new
    assert merge(merge(old, patch), patch) == new


BINS = st.integers(0, 149)
WORKERS = st.integers(0, 3)
TEXTS = st.text(max_size=10)
BODIES = st.one_of(
    st.builds(events.CoordinatorStarted, WORKERS, st.just((0, 1, 2, 3)), st.booleans()),
    st.builds(events.PlanBegun, st.just(1), TEXTS, st.integers(0, 9), TEXTS, st.none() | WORKERS, st.booleans()),
    st.builds(events.StepBegun, WORKERS, st.lists(st.tuples(BINS, WORKERS, WORKERS), max_size=4).map(tuple)),
    st.builds(
        events.BinsArrived, st.sampled_from(("count", "join")), WORKERS, WORKERS,
        st.lists(BINS, max_size=4).map(tuple), st.just(3), st.just(4), st.just(0.5),
    ),
    st.builds(events.StepDone, st.builds(StepReport, WORKERS, st.integers(0, 9), BINS, BINS, st.just(0.5))),
    st.builds(events.JoinBegun, st.integers(1, 3)),
    st.builds(events.WorkersJoined, st.just((4, 5)), TEXTS),
    st.builds(events.WorkerReady, WORKERS, st.just(0.5)),
    st.builds(events.LeaveBegun, WORKERS),
    st.builds(events.WorkersLeft, st.lists(WORKERS, max_size=2, unique=True).map(tuple)),
    st.builds(events.ChangeFailed, st.lists(WORKERS, max_size=2, unique=True).map(tuple), TEXTS),
    st.builds(events.CheckpointStarted, WORKERS, BINS, st.lists(TEXTS, max_size=2).map(tuple)),
    st.builds(events.CheckpointCommitted, WORKERS, BINS, st.just(0.5)),
    st.builds(events.CheckpointFailed, WORKERS, TEXTS),
    st.builds(events.RequestRefused, TEXTS, TEXTS),
    st.builds(events.StopRequested),
    st.builds(events.InputEnded),
    st.builds(events.Recovering, TEXTS),
    st.builds(events.Waiting, TEXTS),
)  # fmt: skip
NAMES = ("status", "second", "changes", "busy", "explain", "operators", "bins", "stuck", "end", "hour")
ACTIONS = st.sampled_from((None, *NAMES[:3] * 2, *NAMES[3:])).flatmap(lambda name: st.just(name) if name else BODIES)


@settings(max_examples=many(150))
@example(["status", "operators", "status", "operators", "bins", "status"], 1)
@given(st.lists(ACTIONS, max_size=25), st.integers(0, 25))
def test_snapshot_and_later_changes_give_the_last_snapshot(actions: list[Any], when: int) -> None:
    job = PretendedJob(bins=150, workers=4, operators=("count", "join"))
    view = View(version="1.0", target="--job orders")
    seen: dict[str, Any] | None = None
    for place, action in enumerate([*actions, "changes"]):
        if place == when:
            view.changes()
            seen = json.loads(encoded(view.snapshot()))
        act(action, job, view)
        if action == "changes" and (changed := view.changes()) is not None and seen is not None:
            seen = merge(seen, json.loads(encoded(changed)))
    if seen is None:
        view.changes()
        seen = json.loads(encoded(view.snapshot()))
    for changed in drained(view):
        seen = merge(seen, changed)
    assert seen == json.loads(encoded(view.snapshot()))
    assert view.changes() is None


def act(action: Any, job: PretendedJob, view: View) -> None:
    if not isinstance(action, str):
        job.now += 0.1
        view.take(job.event(action), job.now)
    elif action == "second":
        taken(view, job, job.second(moved=3))
    elif action == "status":
        view.take(job.status(), job.now)
    elif action == "busy":
        busy = BusyWorker((1,), 77, 12.0, "busy", "fold", "app.py:12", "count", "'a'")
        view.take(JobStatus("orders", "busy", None, None, (), (), silent=(1,), busy=(busy,)), job.now)
    elif action == "explain":
        held = HeldBy("count", "app.py:12", "input 0", 1, 5, 3, "record")
        view.take(Explanation("orders", 9, 5, False, (held,)), job.now)
    elif action == "operators":
        job.operators = ("count",) if len(job.operators) > 1 else ("count", "join", "late")
    elif action == "bins":
        half = len(job.table) // 2
        job.table, job.weights = job.table[:half] or [0], job.weights[:half] or [1.0]
    elif action == "stuck":
        job.stuck = not job.stuck
        job.now += 6.0
        view.take(job.status(), job.now)
    elif action == "hour":
        job.now += 3600.0
    elif action == "end":
        view.end(job.now)


def test_a_busy_worker_shows_its_share_and_what_takes_its_time() -> None:
    job, view = PretendedJob(bins=16, workers=2), View()
    first = job.status()
    view.take(first, job.now)
    assert all("share" not in worker for worker in view.snapshot()["workers"].values())
    slow = replace(
        first.workers[1], now=first.workers[1].now + 1.0, busy_seconds=first.workers[1].busy_seconds + 0.9,
        useful={"total": UsefulTime(6, 0.9)},
    )  # fmt: skip
    view.take(replace(first, workers=(first.workers[0], slow)), job.now + 1)
    shown = view.snapshot()["workers"]
    assert (shown["1"]["share"], shown["1"]["doing"]) == (0.9, "'total' takes 150 ms a record")
    assert "doing" not in shown["0"]


def test_sums_have_a_gap_while_a_worker_is_silent() -> None:
    job, view = PretendedJob(bins=16, workers=3), View()
    whole = job.status()
    view.take(whole, job.now)
    view.take(replace(whole, workers=whole.workers[1:], silent=(0,)), job.now + 1)
    first, second = (dict(zip(SERIES, point["values"])) for point in view.snapshot()["fine"].values())
    assert first["queue"] and first["memory"]
    assert second["queue"] is None and second["memory"] is None


@pytest.mark.slow
def test_memory_of_the_view_is_bounded() -> None:
    job = PretendedJob(bins=16, workers=2)
    view = View()
    sizes = []
    for second in range(3 * 3600):
        for each in job.second(moved=second % 7 == 0):
            view.take(each, job.now)
        if second % 1800 == 1799:
            sizes.append(len(encoded(view.snapshot())))
    assert len(view.snapshot()["timeline"]) == ENTRIES_KEPT
    assert len(view.snapshot()["fine"]) <= 901
    hour_of_coarse_points = 3600 // 20 * 120
    assert sizes[-1] - sizes[-3] < hour_of_coarse_points, sizes


def test_big_job_stays_below_100_kilobytes_a_second() -> None:
    job = PretendedJob(bins=65_536, workers=64)
    view = View()
    taken(view, job, job.second())
    drained(view)
    total, seconds = 0, 5
    for _ in range(seconds):
        taken(view, job, job.second(moved=1024))
        for _ in range(CALLS_PER_SECOND):
            total += len(encoded(view.changes() or {}))
    assert total / seconds < 100_000


def test_bin_in_flight_shows_both_owners_until_it_arrives() -> None:
    job = PretendedJob(bins=64, workers=2)
    view = View()
    taken(view, job, job.second())
    before = view.snapshot()["operators"]["0"]["owners"]["0"]
    [begun, arrived, done] = job.move([(3, 0, 1)])
    view.take(begun, job.now)
    view.take(job.status(), job.now)  # without pending moves: the step is not known to it yet
    view.take(begun, job.now)
    operator = view.snapshot()["operators"]["0"]
    assert operator["owners"]["0"] == before
    assert operator["targets"]["0"] == "###%" + "#" * 60
    view.take(arrived, job.now)
    view.take(done, job.now)
    operator = view.snapshot()["operators"]["0"]
    assert operator["owners"]["0"] == before[:3] + "%" + before[4:]
    assert "0" not in operator["targets"]


def test_output_that_stands_still_asks_for_its_reason() -> None:
    job = PretendedJob(bins=64, workers=2)
    view = View()
    job.stuck = True
    view.take(job.status(), BEGIN)
    view.take(job.status(), BEGIN + 4)
    assert not view.wants_explanation(BEGIN + 4)
    view.take(job.status(), BEGIN + 5)
    assert view.wants_explanation(BEGIN + 5)
    held = HeldBy("count", "app.py:12", "output 0", 1, 5, 3, "capability")
    view.take(Explanation("orders", 9, 5, False, (held,)), BEGIN + 6)
    assert view.snapshot()["still"]["why"]["held"][0]["where"] == "app.py:12"
    assert not view.wants_explanation(BEGIN + 7)
    assert view.wants_explanation(BEGIN + 11)
    job.stuck = False
    view.take(job.status(), BEGIN + 12)
    assert "still" not in view.snapshot()
    assert not view.wants_explanation(BEGIN + 12)


def test_timeline_accounts_for_a_plan_a_join_and_a_restart() -> None:
    job = PretendedJob(bins=64, workers=2)
    view = View()

    def say(body: events.Body) -> None:
        job.now += 1
        view.take(job.event(body), job.now)

    say(events.CoordinatorStarted(0, (0, 1)))
    say(events.PlanBegun(1, "batched", 2, "pid 7"))
    for bin in 3, 4:
        for event in job.move([(bin, 0, 1)]):
            view.take(event, job.now)
        job.epoch += 1
    say(events.JoinBegun(2))
    say(events.WorkersJoined((2,), "127.0.0.1:1"))
    say(events.ChangeFailed((), "no answer"))
    view.take(JobEvent(0, 0, job.now + 1, events.Recovering("restart 1 of 3")), job.now + 2)
    job.attempt, job.now = 2, job.now + 5
    say(events.CoordinatorStarted(0, (0, 1)))
    found = list(view.snapshot()["timeline"].values())
    assert [each["kind"] for each in found] == ["start", "plan", "join", "restart", "start"]
    plan, join, restart = found[1:4]
    assert [step["moved"] for step in plan["facts"]["steps"]] == ["3", "4"]
    assert (plan["facts"]["bins"], plan["facts"]["bytes"], plan["facts"]["pause"]) == (2, 1800, 0.012)
    assert join["failed"] and join["facts"]["reason"] == "no answer"
    assert restart["end"] > restart["begin"]
    assert all("end" in each for each in found)
