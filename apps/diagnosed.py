"""A running count that answers questions. Questions that wait for an answer hold up no result.

python apps/diagnosed.py [NUMBERS] [-w WORKERS] [-n PROCESSES -p PROCESS]

The operator has a data input and a diagnostic input, and an output for each. It declares that no question leads to a
count. So the counts of a time are complete although questions of that time may still come, and wait.
"""

from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from megaflow.timely import (
    Broadcast,
    Capability,
    Exchange,
    InputHandle,
    OperatorBuilder,
    OperatorInfo,
    ProbeHandle,
    Scope,
    Stream,
    Time,
    Worker,
    execute_from_args,
    less_equal,
)

_KEYS = 10

Counts: TypeAlias = Stream[tuple[int, int]]  # (key, how often so far)
Answers: TypeAlias = Stream[tuple[str, int, int]]  # (question, worker, records counted there up to its time)


def count(
    scope: Scope, numbers: Stream[int], questions: Stream[str], independent: bool = True
) -> tuple[Counts, Answers]:
    """Count numbers by key; answer each question, on every worker, once all numbers of its time are counted."""
    builder = OperatorBuilder(scope, "Count")
    data = builder.new_input(numbers, Exchange(lambda number: number % _KEYS))
    asked = builder.new_input(questions, Broadcast, notify=False)  # that no question may come any more changes nothing
    counts, counted = builder.new_output(depends_on=[data] if independent else None)
    answers, answered = builder.new_output(depends_on=[asked])

    def build(capabilities: list[Capability], info: OperatorInfo) -> Callable[[], None]:
        for capability in capabilities:
            capability.release()
        totals: Counter[int] = Counter()  # by key
        sizes: Counter[Time] = Counter()  # by time
        waiting: dict[Capability, list[str]] = {}

        def logic() -> None:
            for reference, batch in data:
                sizes[reference.time] += len(batch)
                with counts.session(reference) as session:
                    for number in batch:
                        totals[number % _KEYS] += 1
                        session.give((number % _KEYS, totals[number % _KEYS]))
            for reference, texts in asked:
                waiting.setdefault(reference.retain(answers), []).extend(texts)
            for held in [held for held in waiting if not data.frontier.less_equal(held.time)]:
                records = sum(size for time, size in sizes.items() if less_equal(time, held.time))
                with held, answers.session(held) as replies:
                    replies.give_iterator((text, info.worker, records) for text in waiting.pop(held))

        return logic

    builder.build(build)
    return counted, answered


def main(worker: Worker) -> tuple[Time, Time, list[tuple[str, int, int]]]:
    """Return the time up to which numbers were counted, the time of the questions meanwhile, and the answers."""
    size = int(worker.args[0]) if worker.args else 1000
    numbers: InputHandle[int] = InputHandle()
    questions: InputHandle[str] = InputHandle()
    counts_probe, answers_probe, heard = ProbeHandle(), ProbeHandle(), list[tuple[str, int, int]]()
    with worker.dataflow("diagnosed") as scope:
        counted, answered = count(scope, scope.input_from(numbers), scope.input_from(questions))
        counted.probe_with(counts_probe)
        answered.exchange(lambda answer: 0).inspect(heard.append).probe_with(answers_probe)
    if worker.index == 0:
        questions.send("how many?")  # at time 0, where the questions stay
        questions.flush()
    for time in range(10):
        together = range(time * size // 10, (time + 1) * size // 10)
        numbers.send_batch(list(together[worker.index :: worker.peers]))
        numbers.advance_to(time + 1)
        worker.step_while(lambda: counts_probe.less_than(numbers.time))
    asked = questions.time
    print(f"worker {worker.index}: counted to time {numbers.time}, questions at time {asked}", flush=True)
    questions.close()
    worker.step_while(lambda: answers_probe.less_than(numbers.time))
    for text, index, records in sorted(heard):
        print(f"{text} worker {index}: {records} records", flush=True)
    return numbers.time, asked, sorted(heard)


if __name__ == "__main__":
    execute_from_args(main)
