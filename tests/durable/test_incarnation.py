"""A launcher's incarnation of a store: what it recovers and keeps, whatever fails at any operation of the disk."""

import contextlib
import errno
import shutil
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from megaflow.durable.blocks import CutHeader
from megaflow.durable.commits import SinkToken, commit_name, commit_numbers
from megaflow.durable.incarnation import (
    DurablePart,
    Incarnation,
    Standing,
    begin,
    check_arrived,
    check_same_store,
    drop_name,
    read_commit,
    read_commits,
)
from megaflow.durable.inspection import inspect
from megaflow.durable.local_folder import open_for_a_job, open_in_a_job
from megaflow.durable.segments import SegmentRef, SegmentWriter
from megaflow.durable.store import Store
from megaflow.errors import CommitInDoubt, StoreDamaged, StoreError, StoreFenced, StoreUnfit
from megaflow.testing.simulated_disk import Crashed, SimulatedFolder
from tests.durable.launchers import APP, Launcher, Scene, check_kept
from tests.rights import without_rights

FAULTS = ("crash", "power", "EIO", "ENOSPC", "done-EIO", "another launcher", "another launcher, then power")
COMMIT_STEPS = 7  # create, write, sync, close, link, remove, sync the folder


class Play(Scene):
    """Run a script with one fault at one step."""

    def play(self) -> None:
        """Two incarnations with every kind of operation: whole and partial cuts, collection, a fenced launcher."""
        first = self.launcher()
        for whole in (True, False, True):
            first.checkpoint(whole)
        second = self.launcher()
        second.checkpoint()
        with pytest.raises(StoreFenced):
            for _ in range(4):  # the disk may fail once for each process
                first.checkpoint()

    def play_with(self, step: int, happening: str) -> None:
        if happening.startswith("another launcher"):
            self.disk.happenings[step] = partial(self.overtake, 1)
        else:
            self.disk.happenings[step] = "crash" if happening == "power" else happening
        with contextlib.suppress(Crashed, StoreFenced, CommitInDoubt, OSError):
            self.play()
        if "power" in happening:
            self.disk.lose_power()
        self.disk.happenings.clear()
        check_kept(self.open())


def steps() -> int:
    scene = Play()
    scene.play()
    return len(scene.disk.steps)


def check_steps(happening: str, first: int, stride: int, seed: int = 0) -> None:
    count = steps()
    assert count > 100
    for step in range(first, count + 1, stride):
        scene = Play(1000 * seed + step)
        try:
            scene.play_with(step, happening)
            scene.check_end()
        except BaseException as error:
            error.add_note(f"{happening} at step {step}: {scene.disk.steps[step - 1]}, seed {seed}")
            raise


def test_a_commit_in_doubt_that_a_successor_has_removed_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit counts, as the successor has repeated it. A full disk would otherwise make its launcher give it up."""
    scene = Scene(kept=1)
    first = scene.launcher()
    real, commit = Store.commit, first.incarnation.commit

    def is_doubtful(store: Store, name: str, content: bytes) -> bool:
        real(store, name, content)
        raise CommitInDoubt("the folder's sync has failed")

    def is_full(store: Store, name: str, content: bytes) -> bool:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(Store, "commit", is_doubtful)
    assert not first.checkpoint()
    assert first.in_doubt is not None
    monkeypatch.setattr(Store, "commit", real)
    second = scene.launcher()
    assert second.incarnation.latest.checkpoint == 1
    assert commit_numbers(scene.open().list()) == [second.incarnation.latest.number]
    monkeypatch.setattr(Store, "commit", is_full)
    with pytest.raises(StoreFenced):
        commit(first.in_doubt)


@pytest.mark.parametrize("happening", FAULTS)
def test_whatever_happens_at_an_operation_no_acknowledged_checkpoint_is_lost(happening: str) -> None:
    """Covers every fifth operation: each of the seven faults begins at one of the first five."""
    check_steps(happening, first=1 + FAULTS.index(happening) % 5, stride=5)


@pytest.mark.slow
@pytest.mark.parametrize("happening", FAULTS)
def test_whatever_happens_at_any_operation_no_acknowledged_checkpoint_is_lost(happening: str) -> None:
    for seed in range(4 if "power" in happening else 1):
        check_steps(happening, first=1, stride=1, seed=seed)


def began(scene: Scene, **more: Any) -> Incarnation:
    return begin(scene.open(), APP, **more)


def test_the_first_launcher_begins_an_empty_store() -> None:
    scene = Scene()
    assert read_commits(scene.open()) == []
    latest = began(scene).latest
    assert (latest.number, latest.checkpoint, latest.incarnation, latest.app) == (1, 0, 1, APP)
    assert read_commits(scene.open()) == [latest]


def test_an_incarnation_begins_with_a_commit_that_repeats_the_newest() -> None:
    scene = Scene()
    assert scene.launcher().checkpoint()
    [before] = read_commits(scene.open())
    assert began(scene).latest == replace(before, number=before.number + 1, incarnation=2)


def test_another_apps_store_is_refused_and_left_as_it_is() -> None:
    scene = Scene()
    began(scene)
    before = dict(scene.disk.names)
    with pytest.raises(StoreError, match=r"the store belongs to 'count.py', not to 'other.py': name"):
        begin(scene.open(), "other.py")
    assert scene.disk.names == before


@pytest.mark.parametrize("kept", [1, 3])
def test_as_many_checkpoints_are_kept_as_asked_for_however_often_a_launcher_began(kept: int) -> None:
    scene = Scene()
    for _ in range(4):
        launcher = Launcher(scene.history, scene.open, kept)
        assert launcher.checkpoint(whole=True)
        for _ in range(3):
            launcher = Launcher(scene.history, scene.open, kept)
    assert [each.checkpoint for each in check_kept(scene.open())] == [4, 3, 2, 1][:kept]


def test_a_cleaner_that_always_fails_hinders_no_checkpoint_and_catches_up() -> None:
    scene = Scene()
    launcher = scene.launcher()
    folder_remove = SimulatedFolder.remove

    def fail(self: SimulatedFolder, name: str) -> None:
        if not name.endswith(".tmp"):
            raise OSError(errno.EIO, "no", name)
        folder_remove(self, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedFolder, "remove", fail)
        assert all(launcher.checkpoint(whole=True) for _ in range(5))
        assert len(commit_numbers(scene.disk.names)) == 6
    assert launcher.checkpoint(whole=True)
    assert len(commit_numbers(scene.disk.names)) == 1 and len(scene.disk.names) == 3


def test_a_full_disk_loses_nothing_and_when_there_is_room_the_job_is_durable_again() -> None:
    scene = Scene()
    launcher = scene.launcher()
    assert launcher.checkpoint(whole=True)
    scene.disk.capacity = sum(len(file.content) for file in scene.disk.names.values()) + 100
    assert not any(launcher.checkpoint() for _ in range(5))
    assert [each.time for each in check_kept(scene.open())] == [scene.history.acknowledged]
    scene.disk.capacity = None
    assert launcher.checkpoint()
    scene.disk.lose_power()
    scene.launcher()


def test_what_a_checkpoint_has_left_that_was_given_up_goes_with_the_next() -> None:
    scene = Scene()
    incarnation = began(scene)
    scene.open().put("i1-w0-000001.seg", [b"given up"])
    scene.open().put("i1-w0-000002.seg", [b"in flight"])
    incarnation.give_up(["i1-w0-000001.seg"])
    incarnation.commit(replace(incarnation.latest, checkpoint=1))
    incarnation.collect()
    assert set(scene.disk.names) == {"000000000002.commit", "000000000001.commit", "i1-w0-000002.seg"}


def test_what_a_worker_wrote_for_abandoned_checkpoints_goes_when_a_later_segment_of_its_own_is_committed() -> None:
    scene = Scene()
    incarnation = began(scene)
    store = scene.open()
    for name in ("i1-w0-000001", "i1-w0-000003", "i1-w1-000001"):  # worker 1 has no part in the commit
        store.put(f"{name}.seg", [b"abandoned or in flight"])
    ref, parts = SegmentWriter(CutHeader(2, 5, None, 0)).finish("i1-w0-000002.seg")
    store.put(ref.name, parts)
    incarnation.commit(replace(incarnation.latest, checkpoint=2, segments=(ref,)))
    incarnation.collect()
    left = {name for name in scene.disk.names if name.endswith(".seg")}
    assert left == {"i1-w0-000002.seg", "i1-w0-000003.seg", "i1-w1-000001.seg"}


def test_a_damaged_commit_is_said_and_no_older_one_is_taken() -> None:
    scene = Scene()
    scene.launcher().checkpoint()
    newest = max(name for name in scene.disk.names if name.endswith(".commit"))
    scene.disk.names[newest].content = scene.disk.names[newest].content[:-1] + b"?"
    before = dict(scene.disk.names)
    with pytest.raises(StoreDamaged, match=f"{newest} is damaged at byte 20: .*; restore the store from a backup"):
        began(scene)
    assert scene.disk.names == before


def test_a_missing_or_shortened_segment_is_said() -> None:
    scene = Scene()
    scene.launcher().checkpoint()
    name = min(name for name in scene.disk.names if name.endswith(".seg"))
    file = scene.disk.names[name]
    file.content = file.content[:-1]
    length = len(file.content)
    with pytest.raises(StoreDamaged, match=rf"names {name} with {length + 1} bytes, but it has {length}; restore"):
        began(scene)
    del scene.disk.names[name]
    with pytest.raises(StoreDamaged, match=f"000000000002.commit names {name}, which is missing; restore"):
        began(scene)


def test_who_begins_anew_and_finds_an_empty_store_says_so() -> None:
    scene = Scene()
    launcher = scene.launcher()
    launcher.checkpoint(True)
    scene.open().delete(scene.open().list())
    with pytest.raises(StoreDamaged, match="the store has lost all its commits: restore it from a backup"):
        launcher.incarnation.begin_anew()


def test_a_commit_in_doubt_is_given_again_and_only_that() -> None:
    scene = Scene()
    incarnation = began(scene)
    following = replace(incarnation.latest, checkpoint=1, time=5)
    scene.disk.happenings[len(scene.disk.steps) + COMMIT_STEPS] = "EIO"
    with pytest.raises(CommitInDoubt, match=r"unknown whether 000000000002.commit was written: .*Input/output"):
        incarnation.commit(following)
    assert incarnation.in_doubt and incarnation.latest.checkpoint == 0
    with pytest.raises(AssertionError):
        incarnation.commit(replace(following, checkpoint=2))
    assert incarnation.commit(following).number == 3
    assert not incarnation.in_doubt and incarnation.latest.checkpoint == 1
    scene.disk.lose_power()
    assert began(scene).latest.checkpoint == 1


def test_a_launcher_that_slept_while_its_number_was_used_and_freed_again_is_fenced() -> None:
    scene = Scene()
    sleeper = began(scene)
    for _ in range(3):
        scene.launcher().checkpoint(whole=True)
    assert commit_name(sleeper.latest.number + 1) not in scene.disk.names
    before = set(scene.disk.names)
    with pytest.raises(StoreFenced, match=r"another launcher has taken over the store.* run the same command again"):
        sleeper.commit(replace(sleeper.latest, checkpoint=1))
    assert set(scene.disk.names) == before


def named_store(scene: Scene) -> Launcher:
    """Write seven checkpoints. The third has a name that is kept; the sixth has a name while it is the newest."""
    launcher = Launcher(scene.history, scene.open, kept=2)
    for whole in (True, False, True, True, True, True, True):
        launcher.checkpoint(whole)
    return launcher


def test_a_checkpoint_with_a_name_is_kept_with_its_segments_until_the_name_is_dropped() -> None:
    scene = Scene(naming=True)
    launcher = named_store(scene)
    commits = check_kept(scene.open())
    assert [each.checkpoint for each in commits] == [7, 6, 3]
    assert [name for name, _ in commits[0].named] == ["n000003", "n000006"]
    launcher.incarnation.drop_name("n000003")
    assert [each.checkpoint for each in check_kept(scene.open())] == [7, 6]
    launcher.incarnation.collect()
    assert not inspect(scene.open()).unnamed
    with pytest.raises(StoreError, match="no checkpoint is named 'n000003'; available: n000006"):
        launcher.incarnation.drop_name("n000003")


def test_names_go_from_one_incarnation_to_the_next_and_with_what_repeats_their_checkpoint() -> None:
    scene = Scene(naming=True)
    launcher = Launcher(scene.history, scene.open, kept=2)
    for _ in range(3):
        launcher.checkpoint(True)
    for _ in range(3):
        begun = Launcher(scene.history, scene.open, kept=2).incarnation.latest
        assert begun.named == (("n000003", begun.number),)


def test_what_processes_read_that_start_is_there_though_a_name_is_dropped_meanwhile() -> None:
    scene = Scene(naming=True)
    named_store(scene)
    launcher = Launcher(scene.history, scene.open, kept=2)
    incarnation, begun = launcher.incarnation, launcher.incarnation.latest
    incarnation.drop_name("n000003")
    incarnation.collect()
    assert read_commit(scene.open(), begun.number) == begun
    launcher.checkpoint(True)
    assert begun.number not in commit_numbers(scene.open().list()) and not inspect(scene.open()).unnamed


def test_a_name_is_dropped_in_a_store_that_no_job_uses() -> None:
    scene = Scene(naming=True)
    named_store(scene)
    before = dict(scene.disk.names)
    with pytest.raises(StoreError, match="no checkpoint is named 'other'; available: n000003, n000006"):
        drop_name(scene.open(), "other")
    assert scene.disk.names == before
    drop_name(scene.open(), "n000003")
    commits = check_kept(scene.open())
    assert [each.checkpoint for each in commits] == [7, 6] and [name for name, _ in commits[0].named] == ["n000006"]
    assert not inspect(scene.open()).unnamed


def test_a_process_that_joins_must_see_the_store_as_it_is_now(tmp_path: Path) -> None:
    kept, copy = tmp_path / "kept", tmp_path / "copy"
    with closing(Store(open_for_a_job(kept))) as store:
        first = begin(store, APP, 2).latest
        shutil.copytree(kept, copy)
        second = begin(store, APP, 2).latest
        part = DurablePart(str(kept), second.incarnation, None, standing=Standing(second.lineage))
        check_same_store(store, part)
        assert not [name for name in store.list() if ".seg" in name], "the probe is removed"
        check_arrived(store, part.folder, second, first)
        segment = SegmentRef("i2-w5-000001.seg", second.checkpoint, 0, 10, 0, 2)
        lacking = replace(second, segments=(segment,))
        token = SinkToken("box", second.checkpoint, b"", 5, (segment,))
        later = replace(second, checkpoint=second.checkpoint + 1, tokens=(token,))
        for each in (lacking, later):
            with pytest.raises(StoreError, match=r"which worker 5 has written, is not in .* remove-workers --id 5"):
                check_arrived(store, part.folder, each, second)
        check_arrived(store, part.folder, later, lacking)
        kept.chmod(0o500)
        with without_rights(), pytest.raises(StoreError, match=r"which this process cannot use: .*: Permission denied"):
            check_same_store(store, part)
    assert first.lineage == second.lineage
    with closing(Store(open_in_a_job(copy))) as store, pytest.raises(StoreUnfit, match="sees an older copy there"):
        check_same_store(store, part)
