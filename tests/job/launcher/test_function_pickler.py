"""Functions and classes of a script keep their file names and line numbers on their way to the workers."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from megaflow.job.launcher.program.function_pickler import pickle_by_value
from tests.results import check_equal, comparing

SCRIPT = '''
from dataclasses import dataclass

import megaflow

@dataclass(frozen=True)
class Shop:
    name: str

def count(shop, n, total):
    total = (total or 0) + n
    if shop.name == "wrong":
        raise ValueError("as the test wants it")  # line 13
    return total, [(shop.name, total)]

def dataflow(flow):
    return flow.items().map(lambda name: (Shop(name), 1)).stateful_state_machine(count, bins=4)

if __name__ == "__main__":
    print(megaflow.run(dataflow, items=["a", "a"], processes=2))
    megaflow.run(dataflow, items=["a", "wrong"])
'''


def test_code_keeps_its_file_and_lines() -> None:
    def outer(word: str) -> str:
        return "".join(letter for letter in word if inner(letter))

    def inner(letter: str) -> bool:
        return letter > "a"

    made = pickle.loads(pickle_by_value(outer))
    assert made("abc") == "bc"
    assert (made.__code__, made.__code__.co_filename) == (outer.__code__, __file__)
    nested = [each for each in made.__code__.co_consts if hasattr(each, "co_filename")]
    assert [each.co_filename for each in nested] == [__file__] * len(nested)


@pytest.mark.cluster
def test_a_script_has_dataclass_keys_and_whole_tracebacks(tmp_path: Path) -> None:
    script = tmp_path / "shops.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=750, check=False)
    assert f'File "{script}", line 13, in count\n    raise ValueError("as the test wants it")' in done.stderr
    check_equal(done.stdout, "[('a', 1), ('a', 2)]\n", done.stderr)


LIBRARIES = """
import datetime, sys
import numpy as np, pandas as pd
import megaflow

def visits(key, n, total):
    return (total or 0) + n, [(key, (total or 0) + n)]

def dataflow(flow):                             # nothing here names a library
    return flow.items().map(lambda item: (item, 1)).stateful_state_machine(visits, bins=4)

keys = [np.float32(2), np.str_("a"), pd.Timestamp("2024-01-01 00:00:00.000000007", tz="Europe/Berlin"),
        pd.Timestamp("2024-01-01"), np.datetime64("2024-01-02"), pd.Timedelta("1s"), np.timedelta64(7, "ns"),
        pd.Period("2024-01")]
found = megaflow.run(dataflow, items=keys * 2, processes=2)
assert {*found} == {(key, n) for key in keys for n in (1, 2)}, found
assert {*map(type, dict(found))} == {*map(type, keys)}, found
[stamp] = [key for key, _ in found if str(key).endswith("07+01:00")][:1]
assert (stamp.nanosecond, str(stamp.tz)) == (7, "Europe/Berlin")

array, missing, count = megaflow.run(lambda flow: flow.items(), items=[np.arange(3) * 2, pd.NA, pd.Timedelta("1D")])
assert array.tolist() == [0, 2, 4] and missing is pd.NA and count == datetime.timedelta(1)
"""


@pytest.mark.cluster
def test_workers_import_libraries_that_a_script_has(tmp_path: Path) -> None:
    script = tmp_path / "libraries.py"
    script.write_text(LIBRARIES)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=750, check=False)
    with comparing():  # the script compares its results
        assert "AssertionError" not in done.stderr, done.stderr
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


CACHES = """
import functools, threading
import megaflow

lock = threading.Lock()

@functools.cache
def steps(n):
    return 0 if n < 2 else 1 + steps(n // 2)

@functools.singledispatch
def text(value):
    return str(value)

def pair(line):
    with lock:
        return text(line), steps(len(line))

def dataflow(flow):
    pairs = flow.lines().map(pair).event_time(lambda pair: pair[1])
    return pairs.window(megaflow.tumbling(10), key=lambda pair: pair[0]).count()

print(megaflow.run(dataflow, lines=["aaaa", "aaaa"]))
"""


@pytest.mark.cluster
def test_a_script_has_caches_and_locks_and_gets_windows(tmp_path: Path) -> None:
    script = tmp_path / "caches.py"
    script.write_text(CACHES)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=750, check=False)
    assert done.returncode == 0, done.stderr
    check_equal(done.stdout, "[('aaaa', Window(start=0, end=10), 2)]\n", done.stderr)
