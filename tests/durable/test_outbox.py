"""Records that wait in a store for a sink can be dropped or rewritten. The rest of the store stays unchanged."""

from pathlib import Path
from typing import Any

import pytest

from megaflow.durable.commits import Commit
from megaflow.durable.incarnation import read_commits
from megaflow.durable.inspection import verify
from megaflow.durable.local_folder import open_for_a_job
from megaflow.durable.outbox import DROPPED, name_at, rewrite, waiting
from megaflow.durable.store import Store
from megaflow.errors import StoreError
from tests.durable.kept_histories import no_waiting_for_the_disk
from tests.durable.kept_outbox import LONG, RECORDS, keep_outbox

__all__ = ["no_waiting_for_the_disk"]

@pytest.fixture
def store(tmp_path: Path) -> Any:
    keep_outbox(tmp_path / "kept")
    folder = open_for_a_job(tmp_path / "kept")
    yield Store(folder)
    folder.close_folder()


def shown(store: Store) -> dict[str, Any]:
    return {each.name: each.record for each in waiting(store, read_commits(store)[0])}


def test_records_are_named_by_token_and_number(store: Store) -> None:
    found = shown(store)
    assert list(found)[:4] == ["aaaaaaaa:1", "aaaaaaaa:2", "aaaaaaaa:3", "bbbbbbbb:1"]
    assert list(found.values()) == [record for records in RECORDS.values() for record in records]


def test_a_record_is_dropped_and_others_rewritten(store: Store) -> None:
    before = read_commits(store)[0]
    rewrite(store, {"aaaaaaaa:2": DROPPED, "bbbbbbbb:600": ("new", 1), "cccccccc:1": DROPPED})
    long = list(LONG)
    long[599] = ("new", 1)  # type: ignore[call-overload]
    assert list(shown(store).values()) == [("x", 1), None, *long]
    after = read_commits(store)[0]
    assert [each.token for each in after.tokens] == [each.token for each in before.tokens]
    same = ("checkpoint", "time", "operators", "segments", "outputs", "splits", "named")
    assert {name: getattr(after, name) for name in same} == {name: getattr(before, name) for name in same}
    assert after.number > before.number and not verify(store).damage


def test_a_store_can_be_changed_twice(store: Store) -> None:
    rewrite(store, {"aaaaaaaa:1": DROPPED})
    rewrite(store, {"aaaaaaaa:2": DROPPED, "bbbbbbbb:1": 1})
    assert list(shown(store).values()) == [None, 1, *LONG[1:], 7] and not verify(store).damage


def test_a_record_keeps_its_name_when_others_are_dropped(store: Store) -> None:
    was = shown(store)
    for name in ("aaaaaaaa:1", "bbbbbbbb:2", "bbbbbbbb:600", "cccccccc:1"):
        rewrite(store, {name: DROPPED})
        del was[name]
        assert shown(store) == was
        with pytest.raises(StoreError, match=f"No record {name} waits"):
            rewrite(store, {name: DROPPED})
    token = read_commits(store)[0].tokens[2]
    assert [name_at(store, token, position) for position in (0, 1, 597)] == ["bbbbbbbb:1", "bbbbbbbb:3", "bbbbbbbb:599"]
    assert name_at(store, token, 598) == "bbbbbbbb:601"


@pytest.mark.parametrize("name", ["aaaaaaaa:4", "aaaaaaaa:0", "dddddddd:1", "1"])
def test_what_does_not_wait_is_refused_and_nothing_changes(store: Store, name: str) -> None:
    commits, files = read_commits(store), store.list()
    with pytest.raises(StoreError, match=f"No record {name} waits"):
        rewrite(store, {"aaaaaaaa:1": DROPPED, name: DROPPED})
    assert (read_commits(store), store.list()) == (commits, files)


def test_a_job_goes_on_from_a_changed_store(store: Store, tmp_path: Path) -> None:
    changed = rewrite(store, {"aaaaaaaa:1": DROPPED})
    assert isinstance(changed, Commit) and changed == read_commits(store)[0]
    assert not [name for name in store.list() if name.endswith(".tmp")]
