"""A program that cannot continue with its states is refused before it begins, and nothing changes."""

import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from megaflow.control.messages import InputNames
from megaflow.durable.commits import SourcePartition
from megaflow.durable.incarnation import DurablePart
from megaflow.durable.local_folder import open_to_look
from megaflow.durable.reading import open_checkpoint
from megaflow.errors import ClusterError, PeerFailed, StoreError
from megaflow.job.launcher.program.function_pickler import pickle_app
from megaflow.job.launcher.store import resumption
from megaflow.job.nested_start import DEPTH
from megaflow.job.spec import JobSpec, Rehearsal, Rehearsed
from megaflow.job.worker.process.rehearsal import rehearse
from megaflow.python_executable import STARTED
from megaflow.timely.communication.codec.encode import encode
from tests.durable.kept_histories import KeptHistory, no_waiting_for_the_disk

__all__ = ["no_waiting_for_the_disk"]  # a fixture for all tests here


def keep(key: Any, value: Any, state: Any) -> Any:
    return value, []


def flow_of(**more: Any) -> Any:
    def dataflow(flow: Any) -> Any:
        pairs = flow.lines().map(lambda line: (line, 1))
        return pairs.stateful_state_machine(keep, **{"name": "count", "bins": 4, **more})

    return dataflow


def task(folder: Path, dataflow: Any, has_lines: bool = True, commit: Any = None, **more: Any) -> Rehearsal:
    history = KeptHistory(folder)
    number = history.checkpoint(dict.fromkeys("abcdefgh", 1), **(commit or {})).number
    history.close()
    return Rehearsal(JobSpec(pickle_app(dataflow)), DurablePart(str(folder), 0, number, **more), has_lines)


class Shelf:
    """A source that only has a name."""

    def discover(self) -> Any:
        raise AssertionError("a rehearsal reads nothing")

    open = discover


def reading(*names: str) -> Any:
    def dataflow(flow: Any) -> Any:
        counts = flow_of()(flow)
        return counts.concat(*(flow.read(Shelf(), name) for name in names))

    return dataflow


@pytest.mark.parametrize(
    "more, error, said",
    [
        ({"name": "cuont"}, StoreError, "did you mean 'cuont'? Then add --rename-state count=cuont"),
        ({"hash": len}, StoreError, "give the old hash= again"),
        ({"version": 2}, StoreError, "give upgrade=f"),
        ({"bins": 3}, PeerFailed, "the number of bins must be a power of two"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(more: Any, error: type, said: str, tmp_path: Path) -> None:
    before = task(tmp_path, flow_of(**more))
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    found = rehearse(before)
    assert type(found) is error and said in str(found)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files


def test_what_fits_is_not_refused(tmp_path: Path) -> None:
    assert rehearse(task(tmp_path / "0", flow_of())) == Rehearsed()
    newer = flow_of(bins=8, version=2, upgrade=max, hash=len, rehash=True)
    assert rehearse(task(tmp_path / "1", newer)) == Rehearsed(converts=True)
    assert rehearse(task(tmp_path / "2", flow_of(name="sum"), renamed=(("count", "sum"),))) == Rehearsed()


@pytest.mark.parametrize("field", ["partitions", "finished"])
def test_a_program_that_does_not_read_a_source_of_the_store_is_refused_by_the_names_of_both(
    field: str, tmp_path: Path
) -> None:
    has = {field: (SourcePartition(-1, "orders", encode("page")),)}
    for number, names in enumerate([["bills"], ["bills", "prices"], []]):
        found = rehearse(task(tmp_path / f"{number}", reading(*names), commit=has))
        assert isinstance(found, StoreError) and (
            "The store has positions in the source 'orders', but the program reads no source of this name (it reads "
            f"{', '.join(map(repr, names)) or 'none'}). Read it by flow.read(…, 'orders'), give --follow if"
        ) in str(found), found
    before = task(tmp_path / "new", reading("bills", "orders"), commit=has)
    assert rehearse(before) == Rehearsed(frozenset({"bills", "orders"})), "one that is new is read from its beginning"
    assert resumption.rehearse_in_a_process(before) == Rehearsed(frozenset({"bills", "orders"}))


class Order(NamedTuple):
    id: int
    note: str


def ordering(version: int = 1, **options: Any) -> Any:
    def dataflow(flow: Any) -> Any:
        pairs = flow.csv(**options).map(lambda row: (row[0], 1))
        terms = {"version": version, "upgrade": lambda key, state, version: state} if version > 1 else {}
        return pairs.stateful_state_machine(keep, name="count", bins=4, **terms)

    return dataflow


TEXT = (("", (("id", "str"), ("note", "str"))),)
TYPED = (("", (("id", "int"), ("note", "str"))),)


@pytest.mark.parametrize(
    ("stored", "program", "said"),
    [
        (None, ordering(as_=Order), r"column 'id' of flow\.csv\(\) as str, .* reads it as int\. .* types=str, or"),
        (TEXT, ordering(as_=Order), r"column 'id' .* as str, .* as int\. .*Give flow\.csv types=str, or start over"),
        (TYPED, ordering(as_=Order, types=str), r"'id' .* as int, .* as str\. .* types=\{'id': int\}, or start over"),
        (TYPED, ordering(), r"'id' .* as int, but the program reads it as str"),
        (None, ordering(types=float), r"from columns of .* as str, .* reads them as float\. .* types=str"),
        (None, ordering(as_=Order, types=str), None),
        (None, ordering(), None),
        (TYPED, ordering(as_=Order), None),
        (TYPED, ordering(types={"id": int | None}), None),
        ((("other", TYPED[0][1]),), ordering(), None),
    ],
)  # fmt: skip
def test_a_store_of_values_of_other_types_is_refused(stored: Any, program: Any, said: str, tmp_path: Path) -> None:
    found = rehearse(task(tmp_path, program, commit={"columns": stored}))
    if said is None:
        assert found == Rehearsed()
    else:
        assert isinstance(found, StoreError) and re.search(said, str(found)), found


def test_states_that_an_upgrade_converts_may_be_of_values_of_other_types(tmp_path: Path) -> None:
    found = rehearse(task(tmp_path, ordering(as_=Order, version=2), commit={"columns": None}))
    assert found == Rehearsed(converts=True)


def test_files_that_are_followed_are_a_source(tmp_path: Path) -> None:
    has = {"partitions": (SourcePartition(-1, "lines", encode(7)),)}
    before = task(tmp_path, flow_of(), commit=has)
    assert isinstance(rehearse(before), StoreError)
    assert rehearse(replace(before, inputs=InputNames(followed=(("", "", ""),)))) == Rehearsed()


def test_a_checkpoint_that_another_job_has_removed_is_read(tmp_path: Path) -> None:
    before = task(tmp_path, flow_of())
    folder = open_to_look(tmp_path)
    open_checkpoint(folder)
    for path in tmp_path.iterdir():
        path.unlink()
    opened = replace(before, opened=folder.opened)
    assert resumption.rehearse_in_a_process(opened) == Rehearsed()
    wrong = replace(opened, part=replace(before.part, dropped=("nothing",)))
    with pytest.raises(StoreError, match="the store has no operator 'nothing'"):
        resumption.rehearse_in_a_process(wrong)
    folder.close_folder()


def test_a_program_that_cannot_be_built_is_refused_with_its_traceback(tmp_path: Path) -> None:
    def wrong(flow: Any) -> Any:
        return flow.lines().no_such_method()

    found = rehearse(task(tmp_path / "0", wrong))
    assert isinstance(found, PeerFailed) and "no_such_method" in str(found) and "test_rehearsal.py" in str(found)
    found = rehearse(task(tmp_path / "1", lambda flow: flow.control.stateful_state_machine(keep, name="count", bins=4)))
    assert "never calls flow.lines()" in str(found)
    assert "but the program has no such operator" in str(rehearse(task(tmp_path / "2", lambda flow: flow.lines())))


def test_a_process_answers_or_its_end_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match="did you mean 'cuont'"):
        resumption.rehearse_in_a_process(task(tmp_path / "0", flow_of(name="cuont")))
    monkeypatch.setattr(resumption, "command", lambda module: ("false",))
    with pytest.raises(ClusterError, match="exited with code 1 without a message"):
        resumption.rehearse_in_a_process(task(tmp_path / "1", flow_of()))


def test_a_process_counts_as_part_of_the_job(tmp_path: Path) -> None:
    def noting(flow: Any) -> Any:
        (tmp_path / "seen").write_text(f"{os.environ.get(DEPTH)} {os.environ.get(STARTED)}")
        return flow_of()(flow)

    resumption.rehearse_in_a_process(task(tmp_path / "0", noting))
    assert (tmp_path / "seen").read_text() == "1 None"  # so a program that starts jobs as it is built comes to an end


def test_a_process_has_answered_though_a_fork_of_the_program_lives_on(tmp_path: Path) -> None:
    told, ended = tmp_path / "fork", tmp_path / "ended"

    def forking(flow: Any) -> Any:
        if (fork := os.fork()) == 0:
            time.sleep(120.0)
            ended.touch()
            os._exit(0)
        told.write_text(str(fork))
        return flow_of()(flow)

    resumption.rehearse_in_a_process(task(tmp_path / "0", forking))
    os.kill(int(told.read_text()), signal.SIGKILL)
    assert not ended.exists()


def test_max_skew_without_timestamps_of_two_inputs_is_refused(tmp_path: Path) -> None:
    def timed(*names: str) -> Any:
        def dataflow(flow: Any) -> Any:
            streams = [flow.lines(name).map(lambda line: (line, 1)) for name in "ab"]
            streams = [each.event_time(len).plain() if name in names else each for name, each in zip("ab", streams)]
            return streams[0].concat(streams[1]).stateful_state_machine(keep, name="count", bins=4)

        return dataflow

    for names, followed, is_refused in (("", (), True), ("a", (), True), ("ab", ("b",), True), ("ab", (), False)):
        before = task(tmp_path / f"{names}{followed}", timed(*names))
        inputs = InputNames(lines=("a", "b"), followed=tuple((each, "", "") for each in followed))
        skewed = replace(before, inputs=inputs, job=replace(before.job, max_skew=60.0))
        assert ("--max-skew" in str(rehearse(skewed))) is is_refused, names
        assert "--max-skew" not in str(rehearse(replace(skewed, job=before.job)))
