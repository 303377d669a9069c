"""A source whose readers return the answers of a script that the test writes."""

from typing import Any

from megaflow.connect import Exhausted
from megaflow.durable.commits import SourcePartition
from megaflow.timely.communication.codec.encode import encode


class Scripted:
    """Partition -> answers of each `read`: an answer, or a number of records. After the last it is exhausted."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers = answers
        self.readers: dict[str, ScriptedReader] = {}  # the open readers
        self.opened: list[tuple[str, Any]] = []

    def discover(self) -> list[str]:
        return [*self.answers]

    def open(self, partition: str, position: Any) -> "ScriptedReader":
        self.opened.append((partition, position))
        reader = self.readers[partition] = ScriptedReader(self, partition, position or 0)
        return reader


class ScriptedReader:
    """Numbers the records of its partition. Its position is the number of records so far."""

    def __init__(self, source: Scripted, partition: str, position: int) -> None:
        self.source, self.partition, self.position = source, partition, position
        self.limits: list[int] = []

    def read(self, limit: int) -> Any:
        self.limits.append(limit)
        answers = self.source.answers[self.partition]
        answer = answers.pop(0) if answers else Exhausted()
        if isinstance(answer, Exception):
            raise answer
        if type(answer) is not int:
            return answer
        records = [f"{self.partition}{number}" for number in range(self.position, self.position + answer)]
        self.position += answer
        return records, self.position

    def lag(self) -> int:
        return sum(answer for answer in self.source.answers[self.partition] if isinstance(answer, int))

    def close(self) -> None:
        assert self.source.readers.pop(self.partition) is self, "it is closed once"


def source_partitions(*partitions: str, input: str = "numbers") -> list[SourcePartition]:
    return [SourcePartition(-1 - number, input, encode(each)) for number, each in enumerate(partitions)]
