"""Functions and classes of a script keep their file names and line numbers on their way to the workers."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from megaflow.job.launcher.function_pickler import pickle_by_value

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
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=250, check=False)
    assert done.stdout == "[('a', 1), ('a', 2)]\n", done.stderr
    assert f'File "{script}", line 13, in count\n    raise ValueError("as the test wants it")' in done.stderr
