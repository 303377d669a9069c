"""A plain word count loads no code of the features that it does not use, in the launcher and in its worker."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_floor_plan import ROOT

# Writes what a process has loaded when it ends, whatever way it ends by itself, and the names of its threads.
AT_EXIT = """
import atexit, os, sys, threading
started = []
start = threading.Thread.start
def start_noted(thread):
    started.append(f"thread:{thread.name}")
    start(thread)
threading.Thread.start = start_noted
def note():
    loaded = [name for name in sys.modules if name.startswith(("megaflow.", "aiohttp", "prometheus_client"))] + started
    with open(f"{os.environ['NOTES']}/{os.getpid()}", "w") as file:
        file.write("\\n".join(loaded))
atexit.register(note)
end = os._exit
os._exit = lambda code: (note(), end(code))
"""

FEATURES = {
    # prefix of the modules of a feature -> modules among them that every job loads, and why
    "megaflow.event_time.": {},
    "megaflow.spark.": {"megaflow.spark.launching": "the names by which the launcher loads the others"},
    "megaflow.job.launcher.processes.spark_provisioner": {},
    "megaflow.job.launcher.outputs.spark_results": {},
    "megaflow.connect.": {
        "megaflow.connect.sink_host": "what a job lends to its sinks",
        "megaflow.connect.source_protocol": "how the files of a job are read",
        "megaflow.connect.writing": "the names by which streams load the others",
    },
    "megaflow.job.worker.writing.open_": {},
    "megaflow.job.launcher.store.": {},
    "megaflow.job.formats.csv_": {},
    "megaflow.job.formats.json_": {},
    "megaflow.job.worker.snapshots.": {},
    "megaflow.durable.": {
        f"megaflow.durable.{module}": "messages and the words for states, which have a meaning without a store"
        for module in ("blocks", "commits", "incarnation", "key_kinds", "restored", "segments", "store")
    } | {"megaflow.durable.local_folder": "writes a file so that it survives a crash of the machine, as outputs do"},
    "megaflow.megaphone.snapshot.": {},
    "megaflow.web": {},
    "megaflow.job.watching": {},
    "megaflow.job.launcher.run.live_page": {},
    "aiohttp": {},
    "prometheus_client": {},
    "thread:megaflow-hub": {},
    "thread:megaflow-page": {},
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> list[set[str]]:
    """Return the modules that each process of a word count has loaded, and its threads."""
    folder = tmp_path_factory.mktemp("loaded")
    (folder / "notes").mkdir()
    (folder / "sitecustomize.py").write_text(AT_EXIT)
    (folder / "lines.txt").write_text("a rose is a rose\n")
    command = ["-m", "megaflow", "run", "apps/wordcount.py", "--lines", str(folder / "lines.txt"), "--output", "none"]
    environment = {**os.environ, "NOTES": str(folder / "notes"), "PYTHONPATH": str(folder)}
    run = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stderr
    return [set(note.read_text().split()) for note in sorted(Path(folder / "notes").iterdir())]


@pytest.mark.cluster
@pytest.mark.parametrize("feature", FEATURES)
def test_a_word_count_loads_no_code_of_a_feature_that_is_off(loaded: list[set[str]], feature: str) -> None:
    assert len(loaded) == 2, "the launcher and one worker"
    assert any("thread:megaflow-door" in modules for modules in loaded), "threads are noted"
    for modules in loaded:
        assert {name for name in modules if name.startswith(feature)} - FEATURES[feature].keys() == set()
