"""apps/bitemporal.py: each answer is the sum of the reports on its hours that existed on its day."""

import pytest

from apps.bitemporal import HOURS, main, reports
from tests.timely.cases import run_threads
from tests.timely.workers import EVERY

DAYS = 3


def known(days: int) -> dict[tuple[int, int, int], int]:
    """The answers by definition: (day, hour, article) -> sum."""
    drawn = reports(days)
    return {
        (day, hour, article): sum(n for d, h, (a, n) in drawn if d <= day and h <= hour and a == article)
        for day in range(days)
        for hour in range(HOURS)
        for article in range(3)
        if any(d <= day and h <= hour and a == article for d, h, (a, _) in drawn)
    }


@pytest.mark.parametrize("workers", EVERY)
def test_each_question_gets_the_sum_of_what_was_known_while_corrections_may_still_come(workers: int) -> None:
    found = run_threads(workers, main, str(DAYS))
    assert {key: total for answers, _ in found for key, total in answers.items()} == known(DAYS)
    assert sum(len(answers) for answers, _ in found) == len(known(DAYS))
    assert all(most >= 2 for _, most in found), "hours of a day went on and days after it had begun"
