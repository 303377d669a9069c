"""Planted faults: a piece of megaflow's code is made wrong, and a search must find a seed that fails.

A fault that survives all seeds of its search shows that the search proves less than it claims.
"""

import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import pytest

from tests.simulation.faults import FAULTS, jobs
from tests.simulation.planting import ROOT, Fault, check_fits

SEEDS = {
    "jobs": 400,
    "stores": 1000,  # some faults need three accidents in a row, and a seed takes a twentieth of a second
    "moved files": 100,
    "two inputs": 50,
    "interleaved": 50,
    "durable Spark": 40,
    "whole batches": 40,
    "several queries": 40,
}
OTHERS = 200  # seeds of the other searches

# Of these searches, the fast suite runs the first fault, which is found soon.
QUICK = {"moves", "cuts", "event timers", "stores"}

# These searches run here without a fault, with so many seeds; other tests run the others.
WITHOUT_FAULT = {
    "moves": 5, "graphs": 5, "changes": 5, "partitions": 5, "hand-overs": 5, "processes": 5, "loops": 5, "stores": 5,
    "objects": 5, "introductions": 5, "aggregates": 5, "cuts": 20, "event timers": 20,
}  # fmt: skip

ALL = [(search, name) for search, faults in FAULTS.items() for name in faults]


def case(search: str, name: str) -> Any:
    is_quick = search in QUICK and name == next(iter(FAULTS[search]))
    return pytest.param(search, name, marks=[] if is_quick else pytest.mark.slow, id=f"{search}: {name}")


@pytest.mark.parametrize("search, name", [case(*each) for each in ALL])
def test_search_finds_planted_fault(search: str, name: str) -> None:
    done = run(search, SEEDS.get(search, OTHERS), FAULTS[search][name])
    assert done.returncode == 3, f"not found: {done.stdout}{done.stderr}"
    assert "NameError" not in done.stdout, f"the fault is wrong, so any run finds it: {done.stdout}"


@pytest.mark.parametrize("search, name", ALL, ids=[f"{search}: {name}" for search, name in ALL])
def test_planted_fault_fits_the_code(search: str, name: str) -> None:
    check_fits(FAULTS[search][name])


@pytest.mark.slow
@pytest.mark.parametrize("search, seeds", WITHOUT_FAULT.items())
def test_search_finds_nothing_in_the_code_as_it_is(search: str, seeds: int) -> None:
    done = run(search, seeds)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("given", ["", "7"])
def test_search_is_the_same_whatever_strings_are_hashed_to(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", given)
    (renamed,) = jobs.FOLDERS.values()
    done = run("folders", 1, Fault(renamed.where, renamed.right, "[][print(hash('a')) or 9]"))
    pinned = [sys.executable, "-c", "print(hash('a'))"]
    wanted = subprocess.run(pinned, env={"PYTHONHASHSEED": "0"}, capture_output=True, text=True, timeout=180)
    assert done.returncode == 3 and done.stdout.splitlines()[0] == wanted.stdout.strip(), done.stdout + done.stderr


def run(search: str, seeds: int, fault: Fault | None = None) -> "subprocess.CompletedProcess[str]":
    """Run the seeds in a separate process, with a fault in megaflow."""
    planting = [json.dumps(asdict(fault))] if fault else []
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation.search", search, str(seeds), *planting],
        cwd=ROOT, capture_output=True, text=True, timeout=840,
    )  # fmt: skip
