"""What the README shows is run as it stands there."""

import re
from pathlib import Path
from typing import Any

import pytest

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def code_with(words: str) -> str:
    """The one block of Python that has these words."""
    [block] = [block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if words in block]
    return str(block)


def test_a_dataflow_is_tested_on_a_simulated_cluster() -> None:
    names: dict[str, Any] = {}
    exec(compile(code_with("SimulatedCluster"), "README.md", "exec"), names)
    cluster = names["cluster"]
    assert not cluster.refusals
    assert [(worker.index, worker.rescaling.left) for worker in cluster.workers] == [(0, False), (1, True), (2, False)]


def test_it_finds_what_is_wrong() -> None:
    wrong = code_with("SimulatedCluster").replace("return total, [(word, total)]", "return n, [(word, total)]")
    with pytest.raises(AssertionError):
        exec(compile(wrong, "README.md", "exec"), {})
