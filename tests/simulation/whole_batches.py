"""Random runs of durable jobs whose Spark batches are whole and give the watermark, with moves, joins and crashes.

The jobs are those of `durable_spark`, with another fold. It gets a key's lines of a time together, and sets timers for
watermarks. A batch's number, in seconds, is the watermark of its commit. After the last batch the query raises the
watermark twice more. A plain loop over the batches computes what the fold must put out:
1. One call has all lines that a batch has for the key, and no others.
2. A timer fires once: after the batch, or between the batches, whose watermark reaches it first.
3. Timers that no watermark has reached do not fire at the end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

from megaflow.control.client.conversation import Stopped
from megaflow.control.messages import CommitBatch, RaiseWatermark
from megaflow.testing.simulated_clients import Waits
from tests.simulation import durable_spark
from tests.simulation.durable_spark import KeptQuery, SparkJob
from tests.simulation.jobs import BINS, PADDING, WORDS

SECOND = 1_000_000  # microseconds
RAISES = 2


class WholeQuery(KeptQuery):
    """Query with whole batches."""

    def commit_of(self, number: int, winners: dict[int, tuple[int, int, int]]) -> CommitBatch:
        """Return the commit of a batch."""
        return CommitBatch("query", "run", number, winners, is_whole=True, watermark=number * SECOND)

    def _between(self) -> Waits:
        for number in range(RAISES):
            with suppress(Stopped):
                yield from self._ask(RaiseWatermark((len(self._job.spark.batches) + number) * SECOND))


def fold(word: str, values: list[Any], state: Any, at_event: Any) -> tuple[Any, list[Any]]:
    """Put out each batch of a word with the number of its lines, and each timer with the batches before it."""
    before = list(state or ())
    if isinstance(values[0], list):
        return state, [(word, "due", number, before) for [number] in values]
    [batch] = {batch for batch, _ in values}  # one batch
    for number in range(2):
        at_event(batch + (batch + len(word)) * (number + 1) % 4, [batch])
    return [*before, batch], [(word, "batch", batch, len(values), before)]


def dataflow(flow: Any) -> Any:
    """Apply the fold to the words of each batch."""

    def folded(word: str, time: int, values: list[Any], state: Any, timers: Any) -> Any:
        return fold(word, values, state, timers.at_event)

    def read(line: str) -> tuple[str, tuple[int, str]]:
        word, batch, _ = line.split(" ")
        return word, (int(batch), line)

    return flow.lines().map(read).stateful_unary(folded, bins=BINS, name="folded")


class WholeJob(SparkJob):
    """Durable job that a query with whole batches feeds."""

    query = WholeQuery
    dataflow = staticmethod(dataflow)


def batches_of(random: Random, count: int) -> list[list[list[str]]]:
    """Draw batches of lines in partitions. A line contains its word and its batch."""
    partitions, batches = random.randint(1, 4), list[list[list[str]]]()
    while count > 0:
        batch: list[list[str]] = [[] for _ in range(partitions)]
        for _ in range(min(count, random.choice([0, 3, 6, 12]))):
            batch[random.randrange(partitions)].append(f"{random.choice(WORDS)} {len(batches)} {PADDING}")
            count -= 1
        batches.append(batch)
    return batches


def expected_of(batches: Sequence[Sequence[Sequence[str]]]) -> Counter[str]:
    """Return what the jobs must put out."""
    states, timers, outputs = dict[str, Any](), defaultdict[float, list[tuple[str, Any]]](list), list[Any]()
    for number in range(len(batches) + RAISES):
        lines = [line.split(" ")[0] for part in batches[number] for line in part] if number < len(batches) else []
        for word, count in Counter(lines).items():
            at_event = partial(lambda word, at, payload: timers[at].append((word, payload)), word)
            states[word], out = fold(word, [(number, "")] * count, states.get(word), at_event)
            outputs += out
        for at in sorted(at for at in timers if at <= number):
            for word, payload in timers.pop(at):
                outputs += fold(word, [payload], states.get(word), None)[1]
    return Counter(map(repr, map(_plain, outputs)))


def _plain(output: Sequence[Any]) -> list[Any]:
    return [list(each) if isinstance(each, tuple) else each for each in output]


def run(seed: int) -> Counter[str]:
    """Run a seed; return counts of what happened. Raise an AssertionError that names it if a rule is broken."""
    random = Random(f"whole batches {seed}")
    batches = batches_of(random, random.randint(20, 50))
    return durable_spark.run_job(seed, random, WholeJob, batches, expected_of(batches), lambda each: repr(_plain(each)))
