"""A job with a store resumes where the last one stopped, or is refused. A refusal changes nothing."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from megaflow.control.messages import Split, SplitEnd
from megaflow.durable.blocks import BlockKind, CutHeader, pack
from megaflow.durable.commits import Commit, Fingerprint, OperatorCut, OutputLength
from megaflow.durable.copying import copy_store, open_to_copy
from megaflow.durable.incarnation import Standing, begin
from megaflow.durable.local_folder import LOCK, open_for_a_job, open_to_look
from megaflow.durable.query_record import keep_record
from megaflow.durable.segments import SegmentRef, SegmentWriter, segment_name
from megaflow.durable.store import Store
from megaflow.errors import OutputError, StoreDamaged, StoreError, StoreUnfit, UsageError
from megaflow.job.formats.raw_file import print_of
from megaflow.job.launcher.inputs.launcher_input import Resumption, find_input, find_rows
from megaflow.job.launcher.outputs.output_specs import open_writer
from megaflow.job.launcher.outputs.writer import ListWriter
from megaflow.job.launcher.run.launch import LaunchOptions, input_of
from megaflow.job.launcher.store.input_positions import InputPositions
from megaflow.job.launcher.store.resumption import open_store, resume, resumption_text
from megaflow.job.program_code import digest
from megaflow.job.spec import AppFile, JobSpec, PickledFunction, Rehearsal, Rehearsed
from megaflow.spark.kept_query import KeptFeed, KeptQuery
from tests.words import says

LINE = "0123456789\n"


class Bench:
    """A user who runs a command again and again."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        self.lines, self.out = folder / "lines", folder / "out.jsonl"
        self.lines.write_text(LINE * 10)
        self.reports: list[str] = []
        self.rehearsed: list[Rehearsal] = []
        self.newer: tuple[tuple[str, str], ...] = ()
        self.sources: tuple[str, ...] = ()  # of the program
        self.converts = False  # whether the program converts all states

    def run(
        self, output: str = "", app: str = "app.py", store: str = "store", lines: str = "", rows: Any = None,
        **more: Any,
    ) -> Resumption:  # fmt: skip
        """Begin a job that is lost at once."""
        spec = JobSpec(AppFile(str(self.folder / app), "dataflow"), state=str(self.folder / store), **more)
        given = None if rows else lines or str(self.lines)
        job_input = input_of(LaunchOptions(spec, given, rows=rows), self.reports.append)
        with ExitStack() as stack:
            keeper = open_store(spec, job_input)
            stack.callback(keeper.close)
            writer = open_writer(output or f"jsonl:{self.out}", mode="new" if keeper.is_new else "resume")
            stack.callback(writer.close)
            return resume(keeper, spec, writer, job_input, self.reports.append, self.rehearse)

    def rehearse(self, task: Rehearsal) -> Rehearsed:
        self.rehearsed.append(task)
        return Rehearsed(frozenset(self.sources), newer=self.newer, converts=self.converts)

    def segment(self, checkpoint: int) -> SegmentRef:
        """Put a segment into the store, unless it is there; return its entry for a commit."""
        writer = SegmentWriter(CutHeader(checkpoint, 41, None, 0))
        writer.add(pack(BlockKind.BIN, "count", 0, ["a", "b"], [1, 2]))
        ref, parts = writer.finish(segment_name(1, 0, checkpoint))
        store = self.folder / "store"
        store.mkdir(mode=0o700, exist_ok=True)
        if not (store / ref.name).exists():
            (store / ref.name).write_bytes(b"".join(parts))
        return ref

    def leave(self, checkpoint: int, read: int, written: int, **more: Any) -> None:
        """Leave a checkpoint in the store, with the given numbers of bytes read and written."""
        self.out.write_text(LINE * 100)
        folder = open_for_a_job(self.folder / "store", for_a_copy=True)
        incarnation = begin(Store(folder), "app.py:dataflow")
        whole = Split(0, str(self.lines), 0, 110)
        print = print_of(str(self.lines), read)
        left = [Split(0, str(self.lines), read, 110, print=print)] if read < 110 else []
        incarnation.commit(
            Commit(
                1, checkpoint, 41, 1, app="app.py:dataflow",
                splits=InputPositions([whole]).remainders(left, {0: SplitEnd(print)}),
                outputs=(OutputLength(f"jsonl:{self.out}", written),), **{"columns": (), **more},
            )
        )  # fmt: skip
        folder.close_folder()


def test_what_was_read_is_not_followed_from_its_beginning(tmp_path: Path) -> None:
    with ExitStack() as stack:
        bench = Bench(tmp_path, stack)
        bench.leave(3, read=110, written=20)
        with pytest.raises(StoreError, match=r"belongs to files that are not followed; leave --follow out, or start"):
            bench.run(follow=True)
        assert len(bench.out.read_text()) == 100 * len(LINE), "nothing has changed"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(tmp_path, stack)


def test_a_new_store_begins_with_the_first_line_and_again_if_nothing_was_committed(bench: Bench) -> None:
    first = bench.run()
    assert (first.part.incarnation, first.part.commit, first.is_over) == (1, None, False)
    assert first.job_input.splits == (Split(0, str(bench.lines), 0, 110),) and bench.reports == []
    bench.out.write_text("a line of a job that was killed\n")
    again = bench.run()
    assert (again.part.incarnation, again.part.commit) == (2, None) and again.job_input == first.job_input
    assert bench.out.read_text() == ""
    [report] = bench.reports
    assert says(report, "no checkpoint yet", "first line", "32 bytes of the output are written again")


def test_a_job_goes_on_where_the_last_one_was(bench: Bench) -> None:
    bench.run()
    bench.leave(3, read=44, written=220)
    resumed = bench.run()
    assert resumed.part.folder == str(bench.folder / "store") and resumed.part.commit == 4
    assert resumed.job_input.splits == (Split(0, str(bench.lines), 44, 110),) and not resumed.is_over
    assert bench.out.read_text() == LINE * 20
    assert bench.reports[-1].startswith("resumes from checkpoint 3,")
    assert bench.reports[-1].endswith("; 880 bytes of the output are written again")


def test_a_launcher_that_does_not_answer_is_named_by_who_takes_its_place(bench: Bench) -> None:
    bench.leave(3, read=44, written=55)
    older = open_for_a_job(bench.folder / "store")
    output = open_writer(f"jsonl:{bench.out}", mode="resume")
    output.hold()
    with pytest.raises(StoreError, match="--take-over"):
        bench.run()
    begun = bench.run(take_over=True)
    assert begun.part is not None and begun.part.incarnation == 2
    last = bench.reports[-1]
    assert last.startswith(f"takes the place of process {os.getpid()} on ") and last.endswith("when it wakes up")
    output.write(9, ["of the sleeper"])
    output.close()
    assert bench.out.read_text() == LINE * 5
    older.close_folder()
    bench.run(take_over=True)
    assert bench.reports[-1].startswith("resumes from checkpoint 3"), "nobody was there"


def contents(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files in a folder, except locks, which name the launchers that have tried."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != LOCK}


def refuse(task: Rehearsal) -> Rehearsed:
    raise StoreError("the program is refused")


@pytest.mark.parametrize(
    ("why", "more"),
    [
        ("belongs to 'app.py:dataflow', not to 'other.py:dataflow'", {"app": "other.py"}),
        ("belongs to --output jsonl:", {"output": "none"}),
        ("belongs to files that are not followed", {"follow": True}),
        ("has changed in its first 44 bytes", {"text": "x" + LINE * 10}),
        ("is gone or empty, but had 220 bytes", {"out": ""}),
        ("the program is refused", {"rehearse": refuse}),
        ("is damaged", {"segment": b"other bytes"}),
    ],
)
def test_a_refused_take_over_leaves_a_healthy_job_alone(bench: Bench, why: str, more: dict[str, Any]) -> None:
    segment = bench.segment(3)
    bench.leave(3, read=44, written=220, segments=(segment,))
    healthy = open_for_a_job(bench.folder / "store")
    for path, name in ((bench.lines, "text"), (bench.out, "out")):
        path.write_text(more.pop(name, path.read_text()))
    path = bench.folder / "store" / segment.name
    path.write_bytes(more.pop("segment", path.read_bytes()).ljust(segment.length))
    bench.rehearse = more.pop("rehearse", bench.rehearse)  # type: ignore[method-assign]
    before = contents(bench.folder)
    with pytest.raises(StoreError, match=why):
        bench.run(take_over=True, **more)
    assert contents(bench.folder) == before
    with pytest.raises(StoreError, match="is in use by process"):
        bench.run()
    healthy.close_folder()


def test_a_take_over_that_was_killed_on_its_way_in_names_the_remedy(bench: Bench) -> None:
    """A launcher has the store's lock while the older launcher still has that of the output."""
    bench.leave(3, read=44, written=220)
    output = open_writer(f"jsonl:{bench.out}", mode="resume")
    output.hold()
    with pytest.raises(OutputError, match=r"Another job writes to this file\. .* replace it by --take-over"):
        bench.run()
    assert bench.run(take_over=True).part is not None
    output.close()


def test_a_damaged_segment_is_refused_and_nothing_changes(bench: Bench) -> None:
    bench.leave(3, read=44, written=220, segments=(bench.segment(3),))
    path = bench.folder / "store" / bench.segment(3).name
    whole = path.read_bytes()
    for place in (0, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        before = contents(bench.folder)
        with pytest.raises(StoreDamaged, match=rf"{path.name} .* restore the store from a backup"):
            bench.run()
        assert contents(bench.folder) == before
    path.write_bytes(whole)
    assert bench.run().part is not None


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_job_goes_on_from_a_copy_of_a_whole_checkpoint(bench: Bench, is_missing: bool) -> None:
    bench.leave(3, read=44, written=220, segments=(bench.segment(3),))
    bench.leave(4, read=55, written=230, segments=(bench.segment(3), bench.segment(4)))
    path, store = bench.folder / "store" / bench.segment(4).name, str(bench.folder / "store")
    content = path.read_bytes()
    path.write_bytes(content[:20] + bytes([content[20] ^ 1]) + content[21:])
    if is_missing:
        path.unlink()
    with pytest.raises(StoreDamaged, match=f"state copy {store} NEW --checkpoint 3, and give --state NEW"):
        bench.run()
    folder = open_to_look(store)
    copy_store(folder, open_to_copy(folder, 3), str(bench.folder / "new"))
    folder.close_folder()
    begun = bench.run(store="new").part
    assert begun is not None and begun.standing.checkpoint == 3 and bench.out.stat().st_size == 220


def test_the_age_of_a_checkpoint_is_never_negative_though_the_clock_was_set_back() -> None:
    begun = Commit(7, 3, 41, 2, written_at=1000.0)
    assert "checkpoint 3, 0 s old" in resumption_text(begun, 1000.0, 0, 400.0)


def test_keys_of_several_checkpoints_are_counted_as_a_bound() -> None:
    base, delta = (SegmentRef(f"i1-w0-00000{number}.seg", number, 0, 100, 7, 3) for number in (1, 2))
    for segments, keys in (((base,), "41, at most 3 keys in"), ((base, delta), "41, at most 6 keys in")):
        assert keys in resumption_text(Commit(7, 3, 41, 2, segments=segments), 1000.0, 0, 1004.0)


def test_a_job_of_its_own_begins_with_a_checkpoint_of_another_and_leaves_that_alone(bench: Bench) -> None:
    bench.run()
    bench.leave(3, read=44, written=220)
    kept = {path.name: path.read_bytes() for path in (bench.folder / "store").iterdir()}
    own, origin = f"jsonl:{bench.folder / 'own.jsonl'}", (str(bench.folder / "store"), "3")
    (bench.folder / "new").mkdir()
    (bench.folder / "new" / "i1-w0-000001.seg").write_text("of an attempt that was broken off")
    forked = bench.run(own, store="new", origin=origin)
    assert forked.part.folder == str(bench.folder / "new") and forked.part.commit is not None
    assert forked.job_input.splits == (Split(0, str(bench.lines), 44, 110),) and not forked.is_over
    assert bench.reports[-1].startswith(f"begins with checkpoint 3 of {bench.folder}/store: resumes from checkpoint 3,")
    assert bench.out.read_text() == LINE * 100, "the output of the other job"

    (bench.folder / "own.jsonl").write_text("what a lost job has written\n")
    again = bench.run(own, store="new", origin=origin)
    assert (again.part.incarnation, again.job_input) == (forked.part.incarnation + 1, forked.job_input)
    assert (bench.folder / "own.jsonl").read_text() == ""
    assert "already has a store, so the job resumes from that and ignores --from-checkpoint" in bench.reports[-2]
    assert {path.name: path.read_bytes() for path in (bench.folder / "store").iterdir()} == kept


def query_of(begun: Resumption) -> KeptQuery:
    """Return the query of the lines of a job that begins."""
    assert isinstance(begun.job_input.spark, KeptFeed)
    return begun.job_input.spark.queries[""]


def test_a_job_of_its_own_goes_on_with_spark_by_a_query_of_its_own(bench: Bench) -> None:
    lines, store = f"spark:text:{bench.folder}", bench.folder / "store"
    first = query_of(bench.run(lines=lines))
    folder = open_for_a_job(store)
    incarnation = begin(Store(folder), "app.py:dataflow")
    for batch in (0, 1):
        (first.record / "offsets").mkdir(exist_ok=True)
        (first.record / "offsets" / str(batch)).touch()
        said = Commit(
            1, batch + 3, 41, 1, app="app.py:dataflow", spark=((first.name, batch),),
            outputs=(OutputLength(f"jsonl:{bench.out}", 0),),
        )  # fmt: skip
        kept = said if batch else keep_record(Store(folder), str(store), said)
        incarnation.commit(kept, [] if batch else ["nightly"])
    folder.close_folder()
    with pytest.raises(StoreError, match=r"checkpoint nightly of .*/store belongs to Spark's lines; name them by"):
        bench.run("none", store="new", origin=(str(store), "nightly"))
    with pytest.raises(StoreError, match=r"checkpoint 4 of .*/store has read lines from Spark: only a check"):
        bench.run("none", store="new", origin=(str(store), "4"), lines=lines)
    forked = query_of(bench.run("none", store="new", origin=(str(store), "nightly"), lines=lines))
    assert forked.name != first.name
    assert forked.record.parent == bench.folder / "new" / "spark"
    assert os.listdir(forked.record / "offsets") == ["0"]
    again = query_of(bench.run("none", store="new", origin=(str(store), "nightly"), lines=lines))
    assert again.record == forked.record


def rows_of(kind: str) -> dict[str, Any]:
    """Return a stream of rows with one column."""
    field = SimpleNamespace(name="k", dataType=SimpleNamespace(jsonValue=lambda: kind))
    schema = SimpleNamespace(fields=[field], json=lambda: f'{{"fields": [{{"name": "k", "type": "{kind}"}}]}}')
    return {"orders": SimpleNamespace(isStreaming=True, schema=schema)}


def test_rows_of_other_columns_are_refused_and_nothing_changes(bench: Bench) -> None:
    def columns(kind: str, **more: Any) -> object:
        feed = bench.run("none", rows=rows_of(kind), **more).job_input.spark
        assert isinstance(feed, KeptFeed)
        return feed.columns()

    store = bench.folder / "store"
    assert columns("long") == {}
    [record] = (store / "spark").glob("orders-*")
    folder = open_for_a_job(store)
    (record / "offsets").mkdir()
    (record / "offsets" / "0").touch()
    commit = Commit(
        1, 3, 41, 1, app="app.py:dataflow", spark=((record.name, 0),), operators=(OperatorCut("count", "", (None,)),),
        columns=(("orders", (("k", "long"),)),),
    )  # fmt: skip
    begin(Store(folder), "app.py:dataflow").commit(keep_record(Store(folder), str(store), commit), ["nightly"])
    folder.close_folder()
    before, fork = contents(store), {"store": "new", "origin": (str(store), "nightly")}
    for more in {}, fork:
        with pytest.raises(StoreUnfit, match=r"rows 'orders', whose column 1 was 'k' of type long, but now .* string"):
            columns("string", **more)
    assert contents(store) == before and not contents(bench.folder / "new")
    for more in {}, fork:
        assert columns("long", **more) == {"orders": (("k", "long"),)}
    bench.converts = True
    assert columns("string") == {}, "they are not compared"


def test_a_job_of_its_own_appends_to_what_its_output_has(bench: Bench) -> None:
    bench.run()
    bench.leave(3, read=44, written=220)
    own = bench.folder / "own.jsonl"
    own.write_text("mine\n")
    spec = JobSpec(
        AppFile("/anywhere/app.py", "dataflow"), state=str(bench.folder / "new"),
        origin=(str(bench.folder / "store"), "3"),
    )  # fmt: skip
    for mode, more in (("append", "lost\n"), ("resume", "")):
        job_input = find_input(str(bench.lines), 1, "replace")
        keeper = open_store(spec, job_input)
        writer = open_writer(f"jsonl:{own}", mode=mode)
        assert keeper.is_new == (mode == "append")
        resume(keeper, spec, writer, job_input, bench.reports.append, bench.rehearse)
        writer.close()
        keeper.close()
        assert own.read_text() == "mine\n"
        own.write_text("mine\n" + more)


def test_a_job_of_its_own_is_refused_the_store_and_the_output_of_the_other(bench: Bench) -> None:
    bench.run()
    bench.leave(3, read=44, written=220)
    store = str(bench.folder / "store")
    with pytest.raises(UsageError, match=r"--from-checkpoint and --state name the same folder, .*/store\. To start"):
        bench.run("none", origin=(store, "3"))
    bench.out.write_text("")
    with pytest.raises(StoreError, match=r"out\.jsonl is already the output of checkpoint 3 of"):
        bench.run(store="new", origin=(store, "3"))
    with pytest.raises(StoreError, match="has no checkpoint 9; it has 0, 3"):
        bench.run("none", store="new2", origin=(store, "9"))
    assert not (bench.folder / "new2").exists()
    with pytest.raises(StoreError, match=r"/store belongs to 'app\.py:dataflow', not to 'other\.py:dataflow'"):
        bench.run("none", app="other.py", store="new", origin=(store, "3"))
    bench.lines.write_text("x" + LINE * 10)
    with pytest.raises(StoreError, match="has changed in its first 44 bytes"):
        bench.run("none", store="new", origin=(store, "3"))
    assert not [path for path in (bench.folder / "new").iterdir() if path.name != "lock"]


def test_at_the_end_there_is_nothing_to_do_until_there_are_new_lines(bench: Bench) -> None:
    bench.run()
    app = bench.folder / "app.py"
    app.write_text("dataflow = 1")
    code = Fingerprint("app.py:dataflow", (), {"app.py": digest(app.read_bytes())})
    bench.leave(3, read=110, written=1100, ended=True, code=code)
    assert bench.run().is_over and not bench.rehearsed
    bench.leave(3, read=110, written=1100, ended=True, code=code, columns=None)  # of an older megaflow
    assert bench.run().is_over and len(bench.rehearsed) == 1, "its CSV may have been read as text"
    bench.run(renamed=(("coutn", "count"),))
    assert bench.rehearsed, "whether there are such operators is asked though nothing is to be done"
    with bench.lines.open("a") as file:
        file.write("more\n")
    more = bench.run()
    assert not more.is_over and more.job_input.splits == (Split(1, str(bench.lines), 110, 115),)


def test_a_finished_file_may_be_gone_and_an_unfinished_one_may_not(bench: Bench) -> None:
    bench.run()
    other = bench.folder / "other"
    other.write_text(LINE)
    fork = {"store": "new", "origin": (str(bench.folder / "store"), "3")}
    bench.leave(3, read=44, written=220)
    bench.lines.rename(bench.folder / "archived")
    for more in ({}, fork, {"take_over": True}):
        with pytest.raises(StoreError, match=r"/lines' was read up to byte 44 of 110 .* is gone\. Put the file back"):
            bench.run("none" if "store" in more else "", lines=str(other), **more)
    assert bench.out.read_text() == LINE * 100, "nothing has changed"

    (bench.folder / "archived").rename(bench.lines)
    bench.leave(4, read=110, written=220)
    bench.lines.unlink()
    fork["origin"] = (str(bench.folder / "store"), "4")
    for more in ({}, fork, {"take_over": True}):
        resumed = bench.run("none" if "store" in more else "", lines=str(other), **more)
        assert resumed.job_input.splits == (Split(1, str(other), 0, 11),)


def test_a_job_that_had_ended_goes_on_if_its_program_reads_a_source(bench: Bench) -> None:
    bench.run()
    app = bench.folder / "app.py"
    app.write_text("dataflow = 1")
    code = Fingerprint("app.py:dataflow", (), {"app.py": digest(app.read_bytes())})
    bench.leave(3, read=110, written=1100, ended=True, code=code)
    app.write_text("dataflow = 2")
    assert bench.run().is_over and len(bench.rehearsed) == 1
    bench.sources = ("orders",)
    assert not bench.run().is_over, "which no checkpoint has"


def test_a_job_that_had_ended_asks_a_source_again_that_had_found_nothing(bench: Bench) -> None:
    bench.run()
    app = bench.folder / "app.py"
    app.write_text("dataflow = 1")
    code = Fingerprint("app.py:dataflow", (), {"app.py": digest(app.read_bytes())})
    bench.leave(3, read=110, written=1100, ended=True, code=code, sources=("orders",))
    assert not bench.run().is_over and not bench.rehearsed


def test_other_code_is_said_and_rehearsed(bench: Bench) -> None:
    bench.run()
    app = bench.folder / "app.py"
    app.write_text("dataflow = 1")
    bench.leave(3, read=44, written=220, code=Fingerprint("app.py:dataflow", (), {"app.py": digest(app.read_bytes())}))
    assert bench.run().code is not None and "with other code" not in bench.reports[-1]
    assert not bench.rehearsed  # a rehearsal takes as long as the start of a process
    bench.run(dropped=("lines",))
    assert len(bench.rehearsed) == 1
    app.write_text("dataflow = 2")
    assert bench.run(args=("x",)).code == Fingerprint("app.py:dataflow", ("x",), {"app.py": digest(app.read_bytes())})
    assert len(bench.rehearsed) == 2
    assert bench.reports[-1].endswith("; with other code: app.py differs; the arguments are ['x'], the job's are []")


def test_a_store_with_sinks_is_rehearsed_and_may_get_another_lineage(bench: Bench) -> None:
    bench.run()
    app = bench.folder / "app.py"
    app.write_text("dataflow = 1")
    code = Fingerprint("app.py:dataflow", (), {"app.py": digest(app.read_bytes())})
    bench.leave(3, read=44, written=220, code=code, lineage="a", delivered=(("box", 2),))
    assert bench.run().part.standing == Standing("a", (), (), 3, (("box", 2),))
    assert [each.part.standing for each in bench.rehearsed] == [Standing("a", (), (), 3, (("box", 2),))]
    fork = bench.run("none", store="fork", origin=(str(bench.folder / "store"), "3"))
    there = bench.rehearsed[-1].part.standing
    assert there.parents == fork.part.standing.parents == ("a",) and there.delivered == (("box", 0),)
    assert len({"a", there.lineage, fork.part.standing.lineage}) == 3
    bench.newer = (("box", "box has more"),)
    renewed = bench.run().part.standing
    assert renewed.lineage not in ("", "a") and renewed.delivered == (("box", 0),) and "box has more" in bench.reports
    assert renewed.before == (), "the user was told of box"
    bench.newer = ()
    assert bench.run().part.standing == renewed
    accepted = bench.run(accept_rows=("box",)).part.standing
    assert accepted.lineage != renewed.lineage and accepted.accepted == ("box",)


def test_a_store_without_a_checkpoint_is_compared_with_sinks(bench: Bench) -> None:
    bench.run()
    assert bench.rehearsed == [], "it is new"
    lineage = bench.run().part.standing.lineage
    assert [(each.part.standing.lineage, each.part.standing.checkpoint) for each in bench.rehearsed] == [(lineage, 0)]


def test_a_fork_is_rehearsed_before_it_gets_a_store_also_from_the_beginning(bench: Bench) -> None:
    bench.run()
    assert bench.rehearsed == []
    bench.run("none", store="fork", origin=(str(bench.folder / "store"), "0"))
    assert [each.part.standing.checkpoint for each in bench.rehearsed] == [0]


def test_what_is_refused_has_changed_nothing(bench: Bench) -> None:
    bench.run()
    bench.leave(3, read=44, written=220)
    kept = sorted(os.listdir(bench.folder / "store"))
    with pytest.raises(StoreError, match=r"belongs to 'app.py:dataflow', not to 'other.py:dataflow'"):
        bench.run(app="other.py")
    with pytest.raises(StoreError, match="belongs to --output jsonl:"):
        bench.run(output="none")
    bench.lines.write_text(LINE * 9)
    with pytest.raises(StoreError, match="has shrunk"):
        bench.run()
    bench.lines.write_text("x" + LINE * 10)
    with pytest.raises(StoreError, match="has changed in its first 44 bytes"):
        bench.run()
    bench.lines.write_text(LINE * 10)
    assert bench.out.read_text() == LINE * 100
    bench.out.write_text("")
    with pytest.raises(StoreError, match=r"out.jsonl is gone or empty, but had 220 bytes"):
        bench.run()
    assert sorted(os.listdir(bench.folder / "store")) == kept


def test_sources_that_cannot_be_read_again_are_refused_before_the_store_is_made(tmp_path: Path) -> None:
    spec = JobSpec(PickledFunction(b"", (), "count"), state=str(tmp_path / "store"))
    for job_input, why in (
        (find_input(["a line"], 1, "replace"), "Standard input and iterables cannot be read again"),
        (find_input("spark:socket:?host=h&port=1", 1, "replace"), "of spark:socket: cannot be read again"),
        (find_rows({"a": "spark:socket:?host=h&port=1"}), "of spark:socket: cannot be read again"),
        (find_rows({"a": "spark:rate:", "b": "spark:socket:"}), "The rows 'b' of spark:socket: cannot be read again"),
    ):
        with pytest.raises(UsageError, match=why):
            open_store(spec, job_input)
    assert not (tmp_path / "store").exists()


def test_records_in_memory_are_those_of_this_run(tmp_path: Path) -> None:
    (tmp_path / "lines").write_text(LINE)
    spec = JobSpec(PickledFunction(b"", (), "count"), state=str(tmp_path / "store"))
    for incarnation in (1, 2):
        job_input = find_input(str(tmp_path / "lines"), 1, "replace")
        keeper = open_store(spec, job_input)
        resumed = resume(keeper, spec, ListWriter(), job_input, lambda text: None, lambda task: Rehearsed())
        assert resumed.part.incarnation == incarnation
        keeper.close()


def test_what_is_said_of_operators_goes_to_the_workers_and_is_refused_where_it_can_be_of_none(bench: Bench) -> None:
    more = {"renamed": (("count", "words"),), "dropped": ("lines",)}
    with pytest.raises(StoreError, match=r"--rename-state and --drop-state: The store .* has no states yet"):
        bench.run(**more)
    assert not list(bench.folder.glob("store/*.commit"))
    with pytest.raises(UsageError, match="--rename-state and --drop-state name operator 'words' twice"):
        bench.run(renamed=(("count", "words"), ("lines", "words")))
    bench.run()
    bench.leave(3, read=44, written=220)
    begun = bench.run(**more)
    assert begun.part is not None and (begun.part.renamed, begun.part.dropped) == tuple(more.values())
    [rehearsal] = bench.rehearsed
    assert rehearsal.part.commit == 3 and rehearsal.part.dropped == ("lines",) and rehearsal.has_lines
