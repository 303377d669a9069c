"""apps/buffered.py: under each policy all readings are accounted for, and the right ones are used."""

import pytest

from apps.buffered import main
from megaflow.errors import ProgramError
from tests.timely.cases import run_threads

COUNT = 40_000
BESIDES = 11_200 + 700  # readings that the slow operator's queue may hold or has taken


def shares(policy: str, workers: int) -> list[dict[str, int]]:
    return run_threads(workers, main, policy, str(COUNT))


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("policy", ["wait", "grow", "drop_newest", "drop_oldest", "merge"])
def test_each_reading_is_used_dropped_or_merged(policy: str, workers: int) -> None:
    for index, found in enumerate(shares(policy, workers)):
        each = COUNT // workers
        assert found["used"] + found["dropped"] + found["merged"] == each
        assert (found["dropped"] > 0) == policy.startswith("drop")
        assert (found["merged"] > 0) == (policy == "merge")
        assert found["most"] <= (1000 if policy != "grow" else each)
        last = COUNT - workers + index
        assert found["highest"] == (workers * (found["used"] - 1) + index if policy == "drop_newest" else last)
        if policy.startswith("drop"):
            assert found["used"] <= BESIDES + 1000


def test_a_buffer_that_may_not_overflow_ends_the_program() -> None:
    with pytest.raises(ProgramError, match=r"Buffer\(fail, 1000\) \(.*buffered.py:\d+\): \d+ records wait"):
        shares("fail", 1)
