"""Durable jobs whose input files are renamed, linked, compressed and removed: see `moved_files`.

By hand: `python -m tests.simulation.search "moved files" 1000`.
"""

import pytest

from tests.simulation.attempts import check_all
from tests.simulation.moved_files import run

SEEDS = 150
_SEEDS_PER_TEST = 50
EVENTS = {
    "acknowledged", "compressed", "ended", "exchanged", "killed", "linked", "removed", "renamed", "restarted",
    "stopped", "went on",
}  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_names_of_files_change_nothing_in_the_output(seed: int) -> None:
    run(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, _SEEDS_PER_TEST))
def test_names_of_files_change_nothing_in_many_more(first: int) -> None:
    check_all(run, range(first, first + _SEEDS_PER_TEST), EVENTS)
