"""A few schedules of the attack, the same each time; `python -m tests.attack` plays new ones."""

import random

import pytest

from tests.attack import leaks, schedules
from tests.attack.jobs import KILLS

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

STEPS = 8


@pytest.mark.parametrize("seed", [2, 5, 12])
def test_a_job_is_exact_whatever_it_is_commanded(seed: int) -> None:
    schedules.play(random.Random(seed), STEPS)


@pytest.mark.parametrize(("seed", "who"), list(enumerate(KILLS)))
def test_a_job_ends_at_once_when_somebody_is_killed_in_the_midst(seed: int, who: str) -> None:
    schedules.play(random.Random(seed), 4, who)


def test_processes_that_join_and_leave_or_fail_to_leave_nothing_behind() -> None:
    leaks.attack_with_joins(random.Random(1), rounds=10)


def test_clients_that_come_and_go_leave_nothing_behind() -> None:
    leaks.attack_with_clients(random.Random(1), rounds=5)
