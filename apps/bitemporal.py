"""Reports on hours, corrected day by day: times are pairs of the day of a report and the hour that it describes.

python apps/bitemporal.py [DAYS] [-w WORKERS] [-n PROCESSES -p PROCESS]

Each day brings reports on all hours, the first hours first. Reports of a later day correct those of earlier days. A
time is `Product(day, hour)`, and (1, 5) and (2, 3) are incomparable. A question at (1, 5) adds up the reports of days 0
and 1 on the hours up to 5. It is answered while day 1 continues with hour 6 and day 2 may begin, because neither can
change the answer.
"""

from collections import Counter
from typing import Any, TypeAlias

from apps.draws import numbers
from megaflow.timely import (
    Broadcast,
    Capability,
    Exchange,
    OperatorInfo,
    Product,
    Time,
    Worker,
    execute_from_args,
    less_equal,
)

HOURS = 6
_REPORTS = 8  # of each day and hour, all workers together
_ARTICLES = 3
_QUESTION = (-1, 0)

Report: TypeAlias = tuple[int, int]  # (article, how many came or went)


def reports(days: int) -> list[tuple[int, int, Report]]:
    """Draw (day, hour, report) for all reports, in the order of their times."""
    drawn = numbers()
    times = [(day, hour) for day in range(days) for hour in range(HOURS) for _ in range(_REPORTS)]
    return [(day, hour, (next(drawn) % _ARTICLES, next(drawn) % 19 - 9)) for day, hour in times]


def stock(capability: Capability, info: OperatorInfo) -> Any:
    """Keep the reports of each time; answer a question when no report at its time or before it can come."""
    capability.release()
    known: dict[Any, Counter[int]] = {}  # time -> article -> sum
    waiting: dict[Capability, None] = {}

    def logic(data: Any, questions: Any, output: Any) -> None:
        for time, batch in data:
            sums = known.setdefault(time.time, Counter())
            for article, amount in batch:
                sums[article] += amount
        waiting.update((time.retain(), None) for time, _ in questions)
        for held in [each for each in waiting if not data.frontier.less_equal(each.time)]:
            del waiting[held]
            totals: Counter[int] = Counter()
            for time, sums in known.items():
                if less_equal(time, held.time):
                    totals.update(sums)
            with held, output.session(held) as session:
                session.give_iterator(totals.items())

    return logic


def main(worker: Worker) -> tuple[dict[tuple[int, int, int], int], int]:
    """Return (day, hour, article) -> stock for this worker's articles, and the frontier's greatest number of times."""
    days = int(worker.args[0]) if worker.args else 3
    answers: dict[tuple[int, int, int], int] = {}

    def hear(time: Time, total: tuple[int, int]) -> None:
        assert isinstance(time, Product)
        answers[time.outer, time.inner, total[0]] = total[1]  # type: ignore[index]

    with worker.dataflow("bitemporal", timestamp=Product(0, 0)) as scope:
        inputs, later, stream = scope.new_unordered_input()
        probe = stream.probe()
        data, questions = stream.branch(lambda time, report: report == _QUESTION)
        answered = data.binary_frontier(questions, Exchange(lambda report: report[0]), Broadcast, "Stock", stock)
        done = answered.inspect_time(hear).probe()
    drawn, most = reports(days), 0
    for day in range(days):
        today = later.clone()
        later.downgrade(Product(day + 1, 0))
        for hour in range(HOURS):
            now = Product(day, hour)
            with inputs.session(today) as session:
                mine = [report for *time, report in drawn if time == [day, hour]][worker.index :: worker.peers]
                session.give_iterator(mine if worker.index else [*mine, _QUESTION])
            today.downgrade(Product(day, hour + 1))
            worker.step_while(lambda now=now: done.less_equal(now))  # type: ignore[misc]
            most = max(most, len(probe.frontier))
        today.release()
    later.release()
    for (day, hour, article), total in sorted(answers.items()):
        print(f"known on day {day} until hour {hour}: {total} of article {article}", flush=True)
    return answers, most


if __name__ == "__main__":
    execute_from_args(main)
