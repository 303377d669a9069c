"""Crashes after some of the disk operations and messages of short durable jobs: see `crash_points`.

All of them, by hand: `python -m tests.simulation.crash_points`.
"""

import pytest

from tests.simulation.crash_points import SCRIPTS, cases, run

STRIDE = 151  # prime, so that all kinds occur


def test_a_job_goes_on_after_a_crash_in_the_middle_of_a_commit() -> None:
    [*some] = (case for case in cases("end") if case.place == "steps" and case.number == 40)
    assert len(some) == 5
    for case in some:
        run(case)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_job_goes_on_after_a_crash_anywhere(script: str) -> None:
    some = [*cases(script)][::STRIDE]
    assert {case.place for case in some} == {"steps", "actions"}
    for case in some:
        run(case)
