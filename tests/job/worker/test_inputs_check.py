"""The look for the inputs that a job still reads: each difference is found, and a late file is waited for."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from megaflow.control.coordinator.base.epoch_clock import CommandStream
from megaflow.control.coordinator.base.roster import Roster
from megaflow.control.coordinator.reading.lines_to_read import LinesToRead
from megaflow.control.messages import Split
from megaflow.durable.commits import SourcePartition
from megaflow.durable.local_folder import open_for_a_job, open_in_a_job
from megaflow.durable.store import Store
from megaflow.errors import ConfigMismatch
from megaflow.job.files.followed_files import FollowedFiles
from megaflow.job.worker.process.inputs_check import LOOK_SECONDS, InputsCheck, InputsSeen, lacks, look
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.timely.communication.codec.decode import decode
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.local import LocalFabric
from megaflow.timely.membership import founding
from tests.job.by_hand import Clock, settle
from tests.words import says


def files(folder: Path) -> list[Path]:
    """Return three files: a short one, a long one and an empty one."""
    texts = {"short": "ab\n", "long": "line\n" * 1000, "empty": ""}
    for name, text in texts.items():
        (folder / name).write_text(text)
    return [folder / name for name in texts]


def replace(path: Path) -> None:
    """Put another file with the same text in the place of a file."""
    path.with_name("new").write_text(path.read_text())
    path.with_name("new").replace(path)


@pytest.mark.parametrize("change, split, followed", [
    (lambda path: path.unlink(), "is not there", "is not there"),
    (lambda path: path.write_text("x"), "has 1 bytes here", "has 1 bytes here"),
    (lambda path: path.write_text("other\n" * 2000), "it has other bytes", "it has other bytes"),
    (lambda path: path.write_text("line\n" * 400 + "rest\n" * 600), "it has other bytes", "it has other bytes"),
    (lambda path: path.write_text("line\n" * 999 + "last\n" * 9), "it has other bytes", "it has other bytes"),
    (replace, None, "its inode is"),
    (lambda path: path.rename(path.with_name("renamed")), "is not there", None),
    (lambda path: path.open("a").write("more\n"), None, None),
    (lambda path: (path.unlink(), path.mkdir()), "cannot be read", "cannot be read"),
])  # fmt: skip
def test_a_process_lacks_files_that_differ(
    tmp_path: Path, change: Callable[[Path], object], split: str | None, followed: str | None
) -> None:
    paths = files(tmp_path)
    source = FollowedFiles(str(tmp_path / "*"))
    partitions = [SourcePartition(-1 - place, "f", encode(os.stat(path).st_ino)) for place, path in enumerate(paths)]
    splits = [Split(number, str(path), 0, 1) for number, path in enumerate([*paths, *paths])]
    for seen in (look(splits, [], {}), look([], partitions, {"f": source})):
        assert len(seen.files) == 3 and decode(encode(seen)) == seen
        assert [*lacks(seen, {"f": source})] == []
    seen_splits, seen_followed = look(splits, [], {}), look([], partitions, {"f": source})
    change(tmp_path / "long")
    for seen, why in ((seen_splits, split), (seen_followed, followed)):
        found = [*lacks(seen, {"f": source})]
        assert (not found) if why is None else (len(found) == 1 and says(found[0], str(tmp_path), why)), found


def test_only_files_that_the_coordinator_sees_are_looked_for(tmp_path: Path) -> None:
    assert look([Split(0, str(tmp_path / "gone"), 0, 1)], [], {}) == InputsSeen((), ())
    source = FollowedFiles(str(tmp_path / "*"))
    assert look([], [SourcePartition(-1, "f", encode(1))], {"f": source}) == InputsSeen((), ())


def at_once(task: Callable[[], Any]) -> Future[Any]:
    result: Future[Any] = Future()
    result.set_result(task())
    return result


@dataclass
class Box:
    """The sinks of a worker: one, with a place that several workers may share."""

    place: set[bytes]
    store: Store | None = None
    are_open: bool = True

    def open(self) -> None:
        self.are_open = True

    def probes(self) -> tuple[tuple[str, bytes], ...]:
        self.place.add(b"probe")
        return (("box", b"probe"),)

    def seen(self, probes: Iterable[tuple[str, bytes]]) -> tuple[tuple[str, bytes], ...]:
        assert self.are_open
        return tuple((name, token) for name, token in probes if token in self.place)

    def forget(self, probes: Iterable[tuple[str, bytes]]) -> None:
        self.place.difference_update(token for _, token in probes)

    def about(self, name: str) -> str:
        return f"{name!r}, Box()"


class Pair:
    """Two founders. The first coordinates a job that reads a file; the second sees another folder under its path."""

    def __init__(
        self, path: Path, kept: Store | None = None, seen: Store | None = None, boxes: tuple[Box, Box] | None = None
    ) -> None:
        """`kept`, `seen`: the job's store, and what the second one sees in its place. `boxes`: their sinks."""
        path.write_text("here")
        self.path = path
        self.there = path.with_name("there")  # the file as the second one sees it, if it does
        fabric, ids = LocalFabric(range(2)), founding(range(2))
        self.clock = Clock()
        lines = LinesToRead(Roster(ids), CommandStream(), [Split(0, str(path), 0, 4)], False)
        self.workers = [Worker(fabric.allocator(id), ids, Scope, (self.clock, self.clock)) for id in ids.ids]
        self.elsewhere = self._elsewhere  # runs a function as if it were on the second one's machine
        shared: set[bytes] = set()
        box, other = boxes or (Box(shared, kept), Box(shared, seen))
        self.check = InputsCheck(self.workers[1], {}, lambda task: self.elsewhere(task), lambda: None, other)
        self._other = InputsCheck(self.workers[0], {}, at_once, lambda: lines, box)
        self.check.begin()

    def _elsewhere(self, task: Callable[[], Any]) -> Future[Any]:
        here = self.path.with_name("here")
        self.path.rename(here)
        if self.there.exists():
            self.there.rename(self.path)
        done = at_once(task)
        if self.path.exists():
            self.path.rename(self.there)
        here.rename(self.path)
        return done

    def exchange_mail(self) -> None:
        """Let the second worker hear the first one's answer."""
        for _ in range(3):
            settle(self.workers[1])
            settle(self.workers[0])
            self._other.turn()

    def exchange(self) -> float | None:
        """Let the second worker hear the first one's answer; return the seconds after which it asks anew."""
        self.exchange_mail()
        return self.check.turn()


def test_a_file_that_appears_late_is_waited_for(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "a")
    wait = pair.exchange()
    assert wait is not None and pair.check.under_way
    pair.clock.now += wait
    assert pair.check.turn() is None  # it asks
    pair.there.write_text("here")
    assert pair.exchange() == 0 and not pair.check.under_way


def test_a_file_that_was_removed_is_not_looked_for_again(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "a")
    wait = pair.exchange()
    assert wait is not None
    pair.clock.now += wait
    assert pair.check.turn() is None
    pair.path.unlink()
    pair.elsewhere = at_once
    assert pair.exchange() == 0 and not pair.check.under_way


@pytest.mark.parametrize("folder", ["kept", "copy"])
def test_a_process_with_a_copy_of_the_store_is_refused(tmp_path: Path, folder: str) -> None:
    (tmp_path / "copy").mkdir()
    with (
        closing(Store(open_for_a_job(tmp_path / "kept"))) as kept,
        closing(Store(open_in_a_job(tmp_path / folder))) as seen,
    ):
        pair = Pair(tmp_path / "a", kept, seen)
        pair.elsewhere = at_once
        if folder == "kept":
            assert pair.exchange() == 0 and not pair.check.under_way
        else:
            with pytest.raises(ConfigMismatch, match="is not seen by the job, so it sees another folder there"):
                while pair.clock.now <= 2000.0:
                    pair.clock.now += pair.exchange() or 0.0
                    pair.check.turn()
        assert [*kept.list()] == [*seen.list()] == [], "the probe is removed"


def test_a_process_whose_sink_writes_elsewhere_is_refused(tmp_path: Path) -> None:
    boxes = Box(set()), Box(set())
    pair = Pair(tmp_path / "a", boxes=boxes)
    pair.elsewhere = at_once
    with pytest.raises(ConfigMismatch) as caught:
        while pair.clock.now <= 2000.0:
            pair.clock.now += pair.exchange() or 0.0
            pair.check.turn()
    assert says(str(caught.value), "the job does not see", "'box', Box()", "localhost", "the same place")
    assert boxes[1].place == set(), "the probe is removed"


@pytest.mark.parametrize("is_same", [False, True])
@pytest.mark.parametrize("is_answered", [False, True])
def test_rows_in_another_place_do_not_pass_at_the_end(tmp_path: Path, is_same: bool, is_answered: bool) -> None:
    place: set[bytes] = set()
    pair = Pair(tmp_path / "a", boxes=(Box(place), Box(place if is_same else set())))
    if is_answered:
        pair.exchange()  # it lacks the file, and asks again later
    end = pair.check.end()
    if not is_same:
        with pytest.raises(ConfigMismatch, match="the job does not see"):
            for _ in end:
                pair.exchange_mail()
    for _ in end:
        pair.exchange_mail()
    assert not pair.check.under_way and place == set()
    assert pair.clock.now == 1000.0, "it does not look again"


def test_an_answer_that_is_lost_does_not_keep_the_job_from_its_end(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "a")
    for wait in pair.check.end():
        pair.clock.now += wait
    assert not pair.check.under_way and pair.clock.now == 1000.0 + LOOK_SECONDS


def test_the_coordinator_answers_once_its_sinks_are_open(tmp_path: Path) -> None:
    place: set[bytes] = set()
    box = Box(place, are_open=False)
    pair = Pair(tmp_path / "a", boxes=(box, Box(place)))
    pair.elsewhere = at_once
    assert pair.exchange() is None and pair.check.under_way
    box.are_open = True
    assert pair.exchange() == 0 and not pair.check.under_way
    assert place == set()


def test_a_founder_that_lacks_a_file_ends_the_job(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "a")
    asked = 0
    with pytest.raises(ConfigMismatch) as caught:
        while pair.clock.now <= 2000.0:
            asked += 1
            pair.clock.now += pair.exchange() or 0.0
            pair.check.turn()
    assert says(str(caught.value), "Worker 1", str(tmp_path / "a"), "is not there", "mount") and asked > 5
    assert pair.clock.now == pytest.approx(1000.0 + LOOK_SECONDS)
