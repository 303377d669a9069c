"""A worker process before its run: it reads its orders from a pipe, and nothing beyond them."""

import gc
import json
import logging
import os
import pickle
from collections.abc import Iterator

import pytest

from megaflow.errors import ProtocolError
from megaflow.job.script_logging import print_own_lines
from megaflow.job.spec import AppFile, ChildSpec, Founder, JobSpec
from megaflow.job.worker.process.child import collect_rarely, settle_memory
from megaflow.job.worker.process.lifeline import read_spec
from tests.test_floor_plan import run_python

HERE = ("127.0.0.1", 1)
SPEC = ChildSpec(JobSpec(AppFile("/app.py", "dataflow")), "job", Founder(0, (HERE,)), HERE, 3, b"secret")


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)


def test_the_orders_are_read_to_the_byte_and_what_follows_is_left(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    data = pickle.dumps(SPEC)
    os.write(writing, len(data).to_bytes(8, "big") + data + b"rest")
    assert read_spec(reading) == SPEC
    assert os.read(reading, 10) == b"rest"
    os.close(writing)


def test_orders_cut_short_are_an_error(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.write(writing, (100).to_bytes(8, "big") + b"only this")
    os.close(writing)
    with pytest.raises(ProtocolError, match="launcher"):
        read_spec(reading)


def test_what_exists_at_the_start_is_out_of_the_collectors_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGAFLOW_GC_THRESHOLD", "12345")
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    made = [list[int]() for _ in range(1000)]  # objects created since the tests were collected
    try:
        collect_rarely()
        settle_memory()
        assert gc.get_freeze_count() >= frozen + len(made)
        assert gc.get_threshold()[0] == 12345
    finally:
        gc.unfreeze()
        gc.collect()
        gc.freeze()  # as after the collection of the tests
        gc.set_threshold(*before)


def test_a_worker_process_loads_no_launcher_no_command_line_and_no_spark() -> None:
    code = "import megaflow.job.worker.process.child"
    found = run_python(f"{code}\nimport json, sys\nsys.stdout.write(json.dumps(list(sys.modules)))")
    assert found.returncode == 0, found.stderr
    loaded = set(json.loads(found.stdout))
    assert code.split()[1] in loaded
    rooms = {".".join(name.split(".")[:3]) for name in loaded}
    assert rooms.isdisjoint({"click", "cloudpickle", "pyspark", "megaflow.control.client", "megaflow.job.launcher"})
    assert loaded.isdisjoint({"megaflow.cli", "megaflow.spark", "megaflow.testing"})


def test_a_warning_about_a_connection_says_whose_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wire, root = logging.getLogger("megaflow.timely.communication"), logging.getLogger()
    monkeypatch.setattr(wire, "handlers", [])
    monkeypatch.setattr(root, "handlers", [])
    print_own_lines("megaflow.timely.communication", logging.WARNING)
    print_own_lines("megaflow.timely.communication", logging.WARNING)
    wire.warning("closed a connection from %s", "h:1")
    assert capsys.readouterr().err == "megaflow: closed a connection from h:1\n"
    root.addHandler(logging.NullHandler())
    wire.warning("closed another")
    assert capsys.readouterr().err == "", "the program has set up its own logging"
