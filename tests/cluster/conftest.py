"""Jobs for the tests here, ended with them, and a text to count."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.jobs import Run


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def starting(*words: str, **more: Any) -> Run:
        runs.append(Run(tmp_path, *words, **more))
        return runs[-1]

    yield starting
    for one in runs:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        one.reader.join()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    rng = random.Random(7)
    words = [f"word{n}" for n in range(300)]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(" ".join(rng.choices(words, k=8)) for _ in range(4000)))
    return path
