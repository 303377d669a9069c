"""Sinks of whole jobs in one thread. The simulation tests what happens at crashes."""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from megaflow.cli.text import sink_texts
from megaflow.connect import OutboxSink, Sink, SinkPlace
from megaflow.control.reports import SinkStatus
from megaflow.errors import BuildError, OutputError, ProgramError, RecordRefused
from megaflow.job.files.splits import plan_splits
from megaflow.job.launcher.inputs.launcher_input import JobInput
from megaflow.job.worker.process.build_only import build_dry, build_only_worker
from megaflow.testing.simulated_job import SimulatedJob
from megaflow.testing.simulated_launch import SimulatedLaunch
from megaflow.testing.simulated_storage import JobStorage
from megaflow.timely import example
from tests.test_programs_of_the_docs import code_with

LINES = {"left": [f"l{number}" for number in range(12)], "right": [f"r{number}" for number in range(12)]}
ALL = sorted(line for lines in LINES.values() for line in lines)


def job(dataflow: Callable[[Any], Any], storage: JobStorage | None = None, **options: Any) -> SimulatedLaunch:
    """Run a job to its end."""
    return SimulatedJob(1, dataflow, files=LINES, storage=storage, **{"rate": 80.0, **options}).run()


def failed(launch: SimulatedLaunch) -> str:
    """Return the error of a job."""
    assert launch.error is not None
    return str(launch.error)


class Noting(Sink[Any]):
    """A sink that notes its calls. `seen` has the committed records."""

    def __init__(self, seen: list[Any], calls: list[Any] | None = None, faulty: str = "") -> None:
        self.seen, self.calls, self.faulty = seen, [] if calls is None else calls, faulty

    def open(self, place: SinkPlace) -> None:
        self.place, self.rows = place, list[Any]()
        self.note("open", 0)

    def write(self, epoch: int, records: list[Any]) -> None:
        self.note("write", epoch)
        self.rows += records

    def prepare(self, n: int) -> Any:
        self.note("prepare", n)
        rows, self.rows = self.rows, []
        return rows or None

    def commit(self, n: int, token: Any) -> None:
        self.note("commit", n)
        self.seen += token

    def close(self) -> None:
        self.note("close", 0)

    def note(self, what: str, number: int) -> None:
        self.calls.append((self.place.worker, what, number))
        if what == self.faulty:
            raise ValueError("it cannot")


class Delivering(OutboxSink[Any]):
    def __init__(self, seen: dict[str, list[Any]]) -> None:
        self.seen = seen

    def deliver(self, n: int, token: str, records: Iterable[Any]) -> None:
        self.seen[token] = list(records)


def of_readme(path: Path) -> Callable[[Any], Any]:
    code = code_with("class Folder(Sink)")
    assert len(code.splitlines()) < 40
    names: dict[str, Any] = {}
    exec(compile(code, "docs", "exec"), names)

    def dataflow(flow: Any) -> Any:
        flow.args = [str(path)]
        return names["dataflow"](flow)

    return dataflow


@pytest.mark.parametrize("is_durable", [False, True])
def test_the_sink_of_the_readme_writes_each_record_once(tmp_path: Path, is_durable: bool) -> None:
    storage = JobStorage(Random(1)) if is_durable else None
    assert job(of_readme(tmp_path), storage).error is None
    files = sorted(tmp_path.iterdir())
    written = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert sorted(written) == [line.upper() for line in ALL]
    assert not [path for path in files if path.name.startswith(".")], "all that was prepared is committed"


def test_without_a_store_what_was_written_is_committed_at_once_and_the_rest_at_the_end() -> None:
    seen: list[Any] = []
    calls: list[Any] = []
    assert job(lambda flow: flow.lines().write(Noting(seen, calls), "notes"), rate=10.0).error is None
    assert sorted(seen) == ALL
    for worker in (0, 1):
        own = [(what, n) for id, what, n in calls if id == worker]
        assert own[0] == ("open", 0) and own[-1] == ("close", 0)
        prepared, committed = ([n for what, n in own if what == which] for which in ("prepare", "commit"))
        assert prepared == committed == [*range(1, len(prepared) + 1)] and len(prepared) > 1, own


def test_with_a_store_nothing_is_committed_that_was_prepared_for_a_later_checkpoint() -> None:
    seen: list[Any] = []
    calls: list[Any] = []
    launch = job(lambda flow: flow.lines().write(Noting(seen, calls), "notes"), JobStorage(Random(1)))
    assert launch.error is None and sorted(seen) == ALL
    for worker in (0, 1):
        own = [(what, n) for id, what, n in calls if id == worker and what in ("prepare", "commit")]
        for number, (what, n) in enumerate(own):
            assert what == "prepare" or n == max(each for what, each in own[:number] if what == "prepare")


@pytest.mark.parametrize("is_durable", [False, True])
def test_an_outbox_is_delivered_in_the_order_of_its_records(is_durable: bool) -> None:
    seen: dict[str, list[Any]] = {}
    storage = JobStorage(Random(1)) if is_durable else None
    assert job(lambda flow: flow.lines().write(Delivering(seen), "box"), storage).error is None
    assert sorted(line for rows in seen.values() for line in rows) == ALL
    assert all(len(token) == 32 for token in seen)
    for side in "lr":
        numbers = [int(line[1:]) for rows in seen.values() for line in rows if line[0] == side]
        assert numbers == sorted(numbers), numbers


def test_one_that_is_not_parallel_is_written_to_by_one_worker() -> None:
    calls: list[Any] = []

    class One(Noting):
        parallel = False

    seen: list[Any] = []
    assert job(lambda flow: flow.lines().write(One(seen, calls), "one"), processes=3).error is None
    assert sorted(seen) == ALL and {id for id, what, _ in calls if what == "write"} == {0}


@pytest.mark.parametrize("what", ["open", "write", "prepare", "commit", "close"])
@pytest.mark.parametrize("is_durable", [False, True])
def test_a_sink_that_raises_is_named_with_what_it_was_asked_for(what: str, is_durable: bool) -> None:
    storage = JobStorage(Random(1)) if is_durable else None
    said = failed(job(lambda flow: flow.lines().write(Noting([], [], what), "notes"), storage, processes=1))
    argument = r"\(\d+" if what in ("write", "prepare", "commit") else ""
    where = r"in operator 'write notes' \(.*:\d+\), worker 0"
    assert re.search(rf"ValueError: it cannot\n{where}, in {what}{argument}", said)


def test_a_record_that_cannot_be_kept_in_the_outbox_is_shown() -> None:
    flowing = lambda flow: flow.lines().map(lambda line: (line, object())).write(Delivering({}), "box")  # noqa: E731
    said = failed(job(flowing, JobStorage(Random(1))))
    assert "sink 'box' keeps its records in the store until they are delivered, but one of them" in said


class Refusing(OutboxSink[Any]):
    """A sink that refuses a record when it comes, or when it is delivered."""

    def __init__(self, is_known: bool, error: Callable[[int], Exception], refused: str = "l5") -> None:
        self.is_known, self.error, self.refused = is_known, error, refused

    def check(self, records: list[Any]) -> None:
        if self.is_known and self.refused in records:
            raise self.error(records.index(self.refused))

    def deliver(self, n: int, token: str, records: Iterable[Any]) -> None:
        found = list(records)
        if self.refused in found:
            raise self.error(found.index(self.refused))


@pytest.mark.parametrize("is_durable", [False, True])
def test_a_record_that_cannot_be_delivered_is_refused_before_it_is_kept(is_durable: bool) -> None:
    storage = JobStorage(Random(1)) if is_durable else None
    sink = Refusing(True, lambda position: ProgramError("l5 cannot be"))
    launch = job(lambda flow: flow.lines().write(sink, "box"), storage)
    assert "l5 cannot be" in failed(launch) and "in write(" in failed(launch)


def test_the_error_of_a_refused_record_says_how_to_drop_it() -> None:
    sink = Refusing(False, lambda position: RecordRefused("l5 is refused", position))
    said = failed(job(lambda flow: flow.lines().write(sink, "box"), JobStorage(Random(1))))
    assert re.search(r"l5 is refused. It is record \w{8}:\d+ of sink 'box' in the store .* megaflow state outbox", said)


def test_the_error_of_a_refused_delivery_says_where_its_records_are() -> None:
    sink = Refusing(False, lambda position: OutputError("refused as a whole"))
    said = failed(job(lambda flow: flow.lines().write(sink, "box"), JobStorage(Random(1))))
    assert "refused as a whole" in said and "megaflow state outbox" in said


def test_a_token_is_small() -> None:
    class Whole(Noting):
        def prepare(self, n: int) -> Any:
            return "x" * 70_000

    said = failed(job(lambda flow: flow.lines().write(Whole([]), "whole"), JobStorage(Random(1))))
    assert "The sink's token has 700" in said and "'write whole'" in said


def test_what_is_no_sink_and_where_none_can_be_is_refused_when_it_is_built() -> None:
    def twice(flow: Any) -> Any:
        return flow.lines().write(Noting([]), "notes").write(Noting([]), "notes")

    for dataflow, why in (
        (twice, "Another sink has the name 'notes'"),
        (lambda flow: flow.lines().write([], "notes"), "give it a Sink"),
        (lambda flow: flow.lines().write(Noting([]), ""), "cannot be the name of a sink"),
    ):
        with pytest.raises(BuildError, match=why):
            build_dry(build_only_worker(()), dataflow, ())
    with pytest.raises(BuildError, match="only a job of `megaflow run` or"):
        example(lambda scope: scope.to_stream([1]).write(Noting([]), "notes").capture())


def test_a_sink_without_a_method_is_refused_when_it_is_built_and_the_method_named() -> None:
    class Folder(Sink[Any]):
        def write(self, epoch: int, records: list[Any]) -> None:
            """Drop the records."""

    class Named(Folder):
        def commit(self, n: int, token: Any) -> None:
            """Prepare nothing."""

    class Box(OutboxSink[Any]):
        """Deliver nothing."""

    for sink, missing in (
        (Folder(), "Folder is a sink without prepare(n) and commit(n, token); define"),
        (Named(), "Named is a sink without prepare(n); define"),
        (Box(), "Box is a sink without deliver(n, token, records); define"),
    ):
        with pytest.raises(BuildError, match=re.escape(missing)) as raised:
            build_dry(build_only_worker(()), lambda flow: flow.lines().write(sink, "rows"), ())  # noqa: B023
        assert "write to 'rows' (" in str(raised.value) and "test_sink.py" in str(raised.value)


def test_async_methods_of_sinks_and_sources_are_refused() -> None:
    class Writing(Noting):
        async def prepare(self, n: int) -> Any:
            """A method that cannot be awaited."""

    class Reading:
        def discover(self) -> Any:
            """Return no tokens."""

        async def open(self, partition: Any, position: Any) -> Any:
            """A method that cannot be awaited."""

    for dataflow, why in (
        (lambda flow: flow.lines().write(Writing([]), "rows"), r"to 'rows' .*the sink's method prepare is 'async"),
        (lambda flow: flow.read(Reading(), "rows"), r"flow\.read\(…, 'rows'\) .*the source's method open is 'async"),
    ):
        with pytest.raises(BuildError, match=why):
            build_dry(build_only_worker(()), dataflow, ())


def test_a_sink_that_is_missing_with_something_to_commit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a\nb\n")
    given = JobInput(splits=tuple(plan_splits([str(tmp_path / "lines")])))
    storage = JobStorage(Random(1))
    storage.every_seconds = 1000.0  # so the only checkpoint is the last one, which has all rows
    more: dict[str, Any] = {"storage": storage, "job_input": given}
    seen: dict[str, list[Any]] = {}
    sink = Refusing(False, lambda position: OutputError("refused as a whole"), "a")
    assert "refused" in failed(SimulatedJob(1, lambda flow: flow.lines().write(sink, "box"), **more).run())
    other = SimulatedJob(2, lambda flow: flow.lines().write(Delivering(seen), "other"), **more)
    assert other.run().error is not None
    report = other.processes[0].report
    said = "" if report is None else report.text
    assert "wait for the sink 'box'" in said and "(it writes to 'other')" in said
    assert "--drop-state box" in said


def test_a_job_that_has_delivered_all_delivers_nothing_again(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a\nb\n")
    storage = JobStorage(Random(1))
    given = JobInput(splits=tuple(plan_splits([str(tmp_path / "lines")])))
    for name, outcome, lines in (("box", "ended", ["a", "b"]), ("box", "over", []), ("other", "over", [])):
        seen: dict[str, list[Any]] = {}
        flowing = lambda flow: flow.lines().write(Delivering(seen), name)  # noqa: B023, E731
        launch = SimulatedJob(1, flowing, storage=storage, job_input=given).run()
        assert (launch.outcome, [line for rows in seen.values() for line in rows]) == (outcome, lines), launch.error
        assert storage.live is not None and not storage.live.latest.tokens


def test_a_status_says_how_far_each_is() -> None:
    worker = SimpleNamespace(id=1, sinks=(SinkStatus("box", None, 0), SinkStatus("notes", 7, 12)))
    status: Any = SimpleNamespace(workers=(worker,))
    [text] = sink_texts(status)
    assert [line.split() for line in text.splitlines()[1:]] == [["box", "1", "nothing", "0"], ["notes", "1", "7", "12"]]
