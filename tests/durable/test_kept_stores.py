"""Stores that earlier versions of megaflow have written are read with their original meaning."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from megaflow.durable.blocks import keys_of, states_of
from megaflow.durable.commits import COMMIT_FORMAT
from megaflow.durable.incarnation import begin, read_commits
from megaflow.durable.inspection import verify
from megaflow.durable.local_folder import open_for_a_job, open_to_look
from megaflow.durable.segments import SEGMENT_FORMAT, SegmentReader
from megaflow.durable.store import Store
from megaflow.errors import StoreError
from tests.durable.make_store import commit_of, cuts

STORES = Path(__file__).parent / "stores"
VERSIONS = sorted(path.name for path in STORES.iterdir())


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def kept(version: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(STORES / version, tmp_path / "state"))


def test_there_is_a_store_of_this_version() -> None:
    assert SEGMENT_FORMAT <= COMMIT_FORMAT
    assert f"v{COMMIT_FORMAT}" in VERSIONS


def test_a_kept_store_is_read_to_the_last_value(version: str, kept: Path) -> None:
    folder = open_to_look(kept)
    store: Store = Store(folder)
    newest, older, _ = read_commits(store)
    for commit, checkpoint in ((newest, 2), (older, 1)):
        bare = replace(commit, number=0, incarnation=0, kept=(), segments=())
        assert bare == commit_of(checkpoint, int(version[1:]))
        assert [segment.checkpoint for segment in commit.segments] == list(range(1, checkpoint + 1))
    for segment in newest.segments:
        reader = SegmentReader(segment.name, partial(store.read, segment.name), segment.length)
        assert reader.header.number == segment.checkpoint
        for block, meant in zip(reader.blocks(), cuts(int(version[1:]))[segment.checkpoint], strict=True):
            assert (block.kind, block.operator, block.bin) == (meant.kind, meant.operator, meant.bin)
            assert keys_of(block) == keys_of(meant) and states_of(block) == states_of(meant)
    assert not verify(store).damage
    folder.close_folder()


def test_a_job_goes_on_with_a_kept_store(kept: Path) -> None:
    folder = open_for_a_job(kept)
    incarnation = begin(Store(folder), "sessions.py")
    assert (incarnation.latest.checkpoint, incarnation.latest.incarnation) == (2, 2)
    incarnation.commit(replace(incarnation.latest, checkpoint=3))
    folder.close_folder()


def test_a_store_of_a_later_version_is_refused_and_left_as_it_is(kept: Path) -> None:
    newest = max(kept.glob("*.commit"))
    content = newest.read_bytes()
    newest.write_bytes(content[:8] + (COMMIT_FORMAT + 1).to_bytes(4, "little") + content[12:])
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    folder = open_for_a_job(kept)
    with pytest.raises(StoreError, match=f"has format {COMMIT_FORMAT + 1}, but this megaflow reads formats up"):
        begin(Store(folder), "sessions.py")
    folder.close_folder()
    assert {path.name: path.read_bytes() for path in kept.iterdir() if path.name != "lock"} == before
