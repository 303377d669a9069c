"""The stored record of Spark's query lets it continue without reading anything twice or leaving anything out."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from megaflow.durable.commits import BATCH, Commit, query_of
from megaflow.durable.copying import Origin, copy_store, open_to_copy
from megaflow.durable.incarnation import begin
from megaflow.durable.local_folder import SPARK, open_for_a_job, open_to_look
from megaflow.durable.query_record import (
    files_as_of,
    keep_record,
    kept_files,
    restore_records,
    to_restore,
    write_record,
)
from megaflow.durable.store import Store
from tests.durable.kept_histories import KeptHistory, no_waiting_for_the_disk, words

__all__ = ["no_waiting_for_the_disk"]  # a fixture for all tests here
FILES_PER_BATCH = 2
COMPACTED = 4  # batches
APP = "wordcount.py:dataflow"
QUERY = UUID(int=1).hex


class Query:
    """The record of a Spark query over files. Each step writes one file of it.

    The files found by entry K are in `sources/0/K`, or in `K.compact` with all earlier ones. Batch B contains
    everything up to the entry in `offsets/B`.
    """

    def __init__(self, record: Path, input: list[str]) -> None:
        self.record, self.input = record, input
        self.batches: dict[int, list[str]] = {}  # delivered by this query
        for folder in ("offsets", "commits", "sources/0"):
            (record / folder).mkdir(parents=True, exist_ok=True)

    def latest(self, folder: str) -> int:
        names = (name.name.partition(".")[0] for name in (self.record / folder).iterdir())
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    def offset(self, batch: int) -> int:
        return int((self.record / "offsets" / str(batch)).read_text()) if batch >= 0 else -1

    def found(self, number: int) -> list[str]:
        """Return the files of this entry. Raises FileNotFoundError."""
        folder = self.record / "sources/0"
        whole = (number + 1) % COMPACTED == 0
        entries = json.loads((folder / (f"{number}.compact" if whole else str(number))).read_text())
        return [name for at, name in entries if at == number]

    def known(self) -> list[str]:
        last = self.latest("sources/0")
        first = last - (last + 1) % COMPACTED if last >= COMPACTED - 1 else 0
        compact = self.record / "sources/0" / f"{first}.compact"
        before = [name for _, name in json.loads(compact.read_text())] if compact.exists() else []
        return before + [name for k in range(first + bool(before), last + 1) for name in self.found(k)]

    def steps(self) -> Iterator[None]:
        """Repeat the unanswered batch, then continue until there are no new files."""
        batch = self.latest("commits") + 1
        while True:
            if batch > self.latest("offsets"):
                known = self.known()
                new = [name for name in self.input if name not in known][:FILES_PER_BATCH]
                at = self.latest("sources/0")
                if new:
                    at += 1
                    entries = [(at, name) for name in new]
                    if whole := (at + 1) % COMPACTED == 0:
                        entries = [(k, name) for k in range(at) for name in self.found(k)] + entries
                    (self.record / "sources/0" / (f"{at}.compact" if whole else str(at))).write_text(
                        json.dumps(entries)
                    )
                    yield
                if at == self.offset(batch - 1):
                    return
                (self.record / "offsets" / str(batch)).write_text(str(at))
                yield
            first, last = self.offset(batch - 1), self.offset(batch)
            self.batches[batch] = [name for k in range(first + 1, last + 1) for name in self.found(k)]
            yield
            (self.record / "commits" / str(batch)).write_text("done")
            (self.record / "commits" / f".{batch}.crc").write_text("sum")
            yield
            batch += 1


def original(folder: Path, random: Random) -> Iterator[Query]:
    """Yield a query that sometimes crashes while files arrive, after each of its steps."""
    record, input, batches = folder / "query", list[str](), dict[int, list[str]]()
    for attempt in range(6):
        query = Query(record, input)
        query.batches = batches
        left = random.randint(1, 12)
        for _ in query.steps():
            if random.random() < 0.5:
                input.append(f"file{len(input)}")
            yield query
            left -= 1
            if not left:
                break
        input.append(f"attempt{attempt}")


def test_a_query_that_goes_on_from_what_is_kept_reads_what_the_batches_do_not_have() -> None:
    ahead = seen = 0
    for seed in range(5):
        random = Random(f"record {seed}")
        with tempfile.TemporaryDirectory(prefix="megaflow-") as folder:
            for number, query in enumerate(original(Path(folder), random)):
                newest = query.latest("offsets") - random.randint(0, 2)
                if newest < 0 or random.random() < 0.8:
                    continue
                seen += 1
                ahead += query.offset(newest) > newest
                write_record(Path(folder, f"kept{number}", "query"), files_as_of(query.record, newest))
                again = Query(Path(folder, f"kept{number}", "query"), query.input)
                for _ in again.steps():
                    pass
                before = [name for number in range(query.offset(newest) + 1) for name in query.found(number)]
                after = [name for batch, names in again.batches.items() if batch > newest for name in names]
                assert sorted(before + after) == sorted(query.input), f"seed {seed}, step {number}, batch {newest}"
    assert seen > 20 and ahead, "the runs have become too tame"


NAMES = (
    "metadata", ".metadata.crc", "offsets/7", "offsets/8", "offsets/.8.crc", "offsets/9", "offsets/.9.crc", "commits/7",
    "commits/8", "commits/9", "commits/.7.0a-b.tmp", "commits/..7.0a-b.tmp.crc", "sources/0/8.compact",
    "sources/0/.8.compact.crc", "sources/0/9", "sources/0/.10.crc",
)  # fmt: skip
KEPT = {name for name in NAMES if "tmp" not in name and ("9" not in name or "sources" in name)} - {"sources/0/.10.crc"}


def write(record: Path, *names: str) -> None:
    for name in names:
        (record / name).parent.mkdir(parents=True, exist_ok=True)
        (record / name).write_text(name)


def content(record: Path) -> dict[str, str]:
    return {str(path.relative_to(record)): path.read_text() for path in record.rglob("*") if path.is_file()}


def test_later_batches_half_written_files_and_checksums_of_nothing_are_left_out(tmp_path: Path) -> None:
    write(tmp_path / "old", *NAMES, "state/0/1/9.delta", "state/0/1/10.delta", "state/0/_metadata/schema")
    write_record(tmp_path / "new" / "query", files_as_of(tmp_path / "old", 8))
    kept = KEPT | {"state/0/1/9.delta", "state/0/_metadata/schema"}
    assert content(tmp_path / "new" / "query") == {name: name for name in kept}


@pytest.fixture
def history(tmp_path: Path) -> Iterator[KeptHistory]:
    history = words(tmp_path / "state")
    yield history
    history.close()


def with_record(folder: Path, checkpoint: int, batch: int) -> Commit:
    """Return a commit that has the record of the query in that store."""
    source = open_to_look(folder)
    try:
        said = Commit(number=9, checkpoint=checkpoint, time=0, incarnation=1, spark=((QUERY, batch),))
        return keep_record(Store(source), str(folder), said)
    finally:
        source.close_folder()


def test_a_record_stays_as_it_was_with_the_checkpoint_and_goes_with_it(tmp_path: Path, history: KeptHistory) -> None:
    live = tmp_path / "state" / SPARK / QUERY
    write(live, *NAMES)
    said = with_record(tmp_path / "state", 4, 8)
    history.checkpoint({"rose": 4}, names=["nightly"], spark=said.spark, record=said.record)
    (live / "offsets" / "8").unlink()
    assert said.record is not None and (tmp_path / "state" / said.record.name).exists()
    for _ in range(5):
        history.checkpoint({"rose": 5}, spark=((QUERY, 9),))

    source = open_to_look(tmp_path / "state")
    copy_store(source, open_to_copy(source, "nightly"), str(tmp_path / "copy"))
    source.close_folder()
    folder = open_for_a_job(tmp_path / "copy")
    restore_records(Store(folder), folder.path, begin(Store(folder), APP).latest)
    folder.close_folder()
    found = content(tmp_path / "copy" / SPARK / QUERY)
    assert json.loads(found.pop("metadata")) == {"id": str(UUID(QUERY))}
    assert found == {name: name for name in KEPT - {"metadata", ".metadata.crc"}}

    history._incarnation.drop_name("nightly")
    history._incarnation.collect()
    assert not (tmp_path / "state" / said.record.name).exists()


def test_a_job_of_its_own_has_the_record_for_a_query_of_its_own(tmp_path: Path, history: KeptHistory) -> None:
    write(tmp_path / "state" / SPARK / QUERY, *NAMES)
    said = with_record(tmp_path / "state", 4, 8)
    history.checkpoint({"rose": 4}, names=["nightly"], spark=said.spark, record=said.record)
    origin = Origin(str(tmp_path / "state"), "nightly")
    folder = open_for_a_job(tmp_path / "new")
    store, own = Store(folder), UUID(int=7)
    origin.copy_into(store, (), lambda: own.hex)
    origin.close()
    begun = begin(store, APP).latest
    assert begun.spark == ((own.hex, 8),)
    write(tmp_path / "new" / SPARK / f"{own.hex}.part", "of an attempt that was broken off")
    for _ in range(2):
        restore_records(store, folder.path, begun)
        assert [path.name for path in (tmp_path / "new" / SPARK).iterdir()] == [own.hex]
        found = content(tmp_path / "new" / SPARK / own.hex)
        assert json.loads(found.pop("metadata")) == {"id": str(own)}
        assert found == {name: name for name in KEPT - {"metadata", ".metadata.crc"}}
    folder.close_folder()


def test_each_query_continues_from_its_own_record_in_a_job_of_its_own(
    tmp_path: Path, history: KeptHistory
) -> None:
    orders, payments = (query_of(name, UUID(int=id).hex) for id, name in enumerate(("orders", "payments")))
    batch, state = query_of("zero", BATCH), tmp_path / "state"
    spark = ((orders, 8), (payments, 7), (batch, 0))
    for query in (orders, payments):
        write(state / SPARK / query, *NAMES)
    source = open_to_look(state)
    said = keep_record(Store(source), str(state), Commit(9, 4, 0, 1, spark=spark))
    alone = keep_record(Store(source), str(state), Commit(9, 5, 0, 1, spark=((batch, 0),)))
    assert said.record is not None and alone.record is None
    source.close_folder()
    history.checkpoint({"rose": 4}, names=["nightly"], spark=spark, record=said.record)
    origin = Origin(str(state), "nightly")
    folder, ids = open_for_a_job(tmp_path / "new"), iter(UUID(int=id).hex for id in (7, 8))
    store = Store(folder)
    commit = origin.copy_into(store, (), lambda: next(ids))
    origin.close()
    own = {query_of("orders", UUID(int=7).hex): 8, query_of("payments", UUID(int=8).hex): 7}
    assert commit.spark == (*own.items(), (batch, 0)) and to_restore(folder.path, commit) == list(own)
    begun = begin(store, APP).latest
    for missing in (list(own), list(own)[1:]):
        for query in missing:
            shutil.rmtree(tmp_path / "new" / SPARK / query, ignore_errors=True)
        restore_records(store, folder.path, begun)
        for query, newest in own.items():
            found = content(tmp_path / "new" / SPARK / query)
            assert UUID(json.loads(found["metadata"])["id"]).hex == query.partition("-")[2]
            assert ("offsets/8" in found) == (newest == 8) and "sources/0/8.compact" in found
    assert sorted(path.name for path in (tmp_path / "new" / SPARK).iterdir()) == sorted(own)
    folder.close_folder()


def test_the_record_of_a_query_with_states_of_its_own_is_not_kept_with_a_name(
    tmp_path: Path, history: KeptHistory
) -> None:
    write(tmp_path / "state" / SPARK / QUERY, *NAMES, "state/0/0/1.delta")
    said = with_record(tmp_path / "state", 4, 8)
    assert said.record is None and not list(kept_files(Store(open_to_look(tmp_path / "state")), said))


def test_a_record_that_somebody_has_removed_is_not_kept(tmp_path: Path, history: KeptHistory) -> None:
    with pytest.raises(FileNotFoundError):
        with_record(tmp_path / "state", 4, 8)
