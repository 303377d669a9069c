"""The front doors load a name at its first use, and offer programs the same names as type checkers."""

import ast
import importlib
import json
import pydoc
import re
from pathlib import Path
from typing import Any

import pytest

import megaflow
from megaflow import connect, event_time, spark, timely
from megaflow.connect import writing as sinks
from megaflow.job import formats
from megaflow.job.launcher import processes, store
from megaflow.job.worker import snapshots, writing
from megaflow.job.worker.process.flow import Flow
from megaflow.megaphone import snapshot
from megaflow.spark import launching
from tests.test_floor_plan import ROOT, run_python

DOORS = [megaflow, timely, spark, connect]
# to features that may be off
INNER_DOORS = [event_time, formats, launching, processes, sinks, snapshot, snapshots, store, writing]
ALONE = ["import megaflow", "import megaflow.timely", "import megaflow; megaflow.spark; megaflow.connect"]


def loaded_after(code: str) -> set[str]:
    """Return the modules of megaflow that are loaded after this code has run in a new interpreter."""
    found = run_python(f"{code}\nimport json, sys\nsys.stdout.write(json.dumps(list(sys.modules)))")
    assert found.returncode == 0, found.stderr
    return {name for name in json.loads(found.stdout) if name.split(".")[0] == "megaflow"}


@pytest.mark.parametrize("code", ALONE)
def test_a_front_door_alone_loads_nothing_but_itself(code: str) -> None:
    loaded = loaded_after(code) - {"megaflow.connect", "megaflow.spark"}
    assert loaded == {"megaflow", "megaflow.front_door", "megaflow.timely"}


@pytest.mark.parametrize("code", ["from megaflow.timely import *", "from megaflow import Move, Stream, Timers"])
def test_the_engine_and_the_operators_load_no_launcher_no_control_and_no_spark(code: str) -> None:
    loaded = loaded_after(code)
    rooms = {name.split(".")[1] for name in loaded if "." in name}
    more = {"operator_builder", "own_files", "program", "scope", "synchronization"} if "*" in code else set()
    modules = {"errors", "front_door", "keyed_state", "quick_dataclass", "stream", "stream_end", "stream_pass"}
    assert rooms == modules | {"connect", "durable", "event_time", "megaphone", "timely"} | more
    durable = {name.split(".")[2] for name in loaded if name.startswith("megaflow.durable.")}
    assert durable == {"blocks", "key_kinds", "restored"}, "of durable state its words, and nothing that knows files"


@pytest.mark.parametrize("door", [*DOORS, *INNER_DOORS], ids=lambda door: door.__name__)
def test_each_name_of_a_front_door_is_what_its_stub_says(door: Any) -> None:
    stub = ast.parse(Path(door.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    typed = {"__version__"} & set(door.__all__)
    for statement in stub.body:
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                assert alias.asname == alias.name, "a stub offers only what it renames to itself"
                typed.add(alias.name)
                if f"{statement.module}.{alias.name}" != "megaflow.timely":
                    home = importlib.import_module(statement.module or "")
                    assert getattr(door, alias.name) is getattr(home, alias.name)
    assert typed == set(door.__all__) == set(dir(door))


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_help_tells_of_every_name(door: Any) -> None:
    shown = pydoc.plain(pydoc.render_doc(door))
    for name in door.__all__:
        assert re.search(rf"^    (class )?{name}\b", shown, re.MULTILINE) or name == "__version__", name


def test_help_tells_what_a_program_is_given() -> None:
    shown = pydoc.plain(pydoc.render_doc(megaflow))
    attributes = vars(Flow(None, None, None, [], None))  # type: ignore[arg-type]
    for attribute in (name for name in attributes if not name.startswith("_")):
        assert re.search(rf"^ +\|  {attribute}  +\w", shown, re.MULTILINE), attribute
    assert "timers that are left are due" in " ".join(shown.split())
    assert "docs/keys-and-states.md" in shown and (ROOT / "docs" / "keys-and-states.md").exists()


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
def test_a_name_that_a_front_door_does_not_have_is_an_attribute_error(door: Any) -> None:
    with pytest.raises(AttributeError, match=rf"module '{door.__name__}' has no attribute 'nothing'"):
        door.nothing  # noqa: B018
