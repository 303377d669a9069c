"""Jobs with two inputs of very different density: see `interleaved`.

By hand: `python -m tests.simulation.search interleaved 500`.
"""

import pytest

from tests.simulation.attempts import check_all
from tests.simulation.interleaved import run


@pytest.mark.parametrize("seed", [0, 6])
def test_inputs_of_different_density_are_read_at_one_pace(seed: int) -> None:
    run(seed)


@pytest.mark.slow
def test_inputs_of_many_jobs_are_read_at_one_pace() -> None:
    check_all(run, range(60), {"1 processes", "2 processes"})
