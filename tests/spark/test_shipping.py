"""Files for executors, when several jobs of one session start at once."""

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from megaflow.errors import MegaflowError
from megaflow.spark.shipping import serve, ship
from tests.rights import without_rights


def test_jobs_that_start_at_once_serve_a_file_once(tmp_path: Path) -> None:
    archive, kept, added = tmp_path / "megaflow-1.zip", tmp_path / "kept", list[str]()
    archive.write_bytes(b"zip")
    kept.mkdir()
    begun, go_on, second_is_served = threading.Event(), threading.Event(), threading.Event()

    def add_archive(name: str) -> None:
        begun.set()
        assert go_on.wait(60)
        added.append(name)

    context = SimpleNamespace(_temp_dir=str(kept), addArchive=add_archive)

    def serve_again() -> None:
        serve(context, "megaflow-1", str(archive))
        second_is_served.set()

    first = threading.Thread(target=serve, args=(context, "megaflow-1", str(archive)))
    second = threading.Thread(target=serve_again)
    first.start()
    assert begun.wait(60)
    second.start()
    assert not second_is_served.wait(0.2), "Spark has not unpacked the file yet"
    go_on.set()
    first.join()
    second.join()
    assert added == [f"{kept / archive.name}#megaflow-1"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    for name in ("app.py", "other.py"):
        (tmp_path / name).touch()
    (tmp_path / "other.py").chmod(0)
    with without_rights(), pytest.raises(MegaflowError, match=r"executors: other\.py: Permission denied"):
        ship(tmp_path, str(tmp_path / "app.py"), [])
