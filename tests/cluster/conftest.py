"""Fixtures: jobs, clusters and browsers that end with their test, and a text to count."""

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes import Cluster, Run
from tests.web.browser import Browser, browsing


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    with ExitStack() as stack:

        def starting(*words: str, **options: Any) -> Run:
            run = Run(tmp_path, *words, **options)
            stack.callback(run.process.finish)
            return run

        yield starting


@pytest.fixture
def browser() -> Iterator[Browser]:
    """A window of a new Chromium, without errors at the end of the test."""
    with browsing() as found:
        yield found
        assert found.errors() == []


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.finish()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    rng = random.Random(7)
    words = [f"word{n}" for n in range(300)]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(" ".join(rng.choices(words, k=8)) for _ in range(4000)))
    return path
