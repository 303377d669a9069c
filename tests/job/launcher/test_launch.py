"""The launcher starts fast: it imports only the modules that it runs itself, none of its workers'."""

import json
from pathlib import Path

import pytest

from tests.results import comparing
from tests.test_floor_plan import ROOT, run_python


def test_the_launcher_loads_no_engine_and_no_worker() -> None:
    code = "import megaflow.cli.main, megaflow.job.app, megaflow.job.launcher.run.launch"
    found = run_python(f"{code}\nimport json, sys\nsys.stdout.write(json.dumps(list(sys.modules)))")
    assert found.returncode == 0, found.stderr
    loaded = set(json.loads(found.stdout))
    assert "megaflow.job.launcher.run.loop" in loaded
    rooms = {".".join(name.split(".")[1:3]) for name in loaded if name.startswith("megaflow.")}
    assert rooms.isdisjoint(
        {
            "control.coordinator", "job.worker", "megaphone", "program", "scope",
            "stream", "timely.dataflow", "timely.progress", "timely.rescale", "timely.runtime", "timely.worker",
        }
    )  # fmt: skip
    client = {name for name in loaded if name.startswith("megaflow.control.client.")}
    assert client == {"megaflow.control.client.conversation"}  # to ask the job to stop
    assert loaded.isdisjoint({"asyncio", "cloudpickle", "pyspark", "megaflow.job.profile.worker_profile"})


@pytest.mark.cluster
def test_a_launcher_that_has_run_a_job_of_files_has_not_loaded_asyncio(tmp_path: Path) -> None:
    text, loaded = tmp_path / "text", tmp_path / "loaded"
    text.write_text("a b a\n")
    code = (
        "import json, sys\nfrom megaflow.cli.main import main\nloaded = sys.argv.pop()\ntry:\n    main()\n"
        "finally:\n    with open(loaded, 'w') as file:\n        json.dump(list(sys.modules), file)"
    )
    found = run_python(code, "run", str(ROOT / "apps" / "wordcount.py"), "--lines", str(text), str(loaded))
    assert found.returncode == 0, found.stderr
    with comparing():
        assert "('a', 2)" in found.stdout, found.stderr
    modules = set(json.loads(loaded.read_text()))
    assert "megaflow.job.launcher.inputs.pulled_source" in modules and "asyncio" not in modules
