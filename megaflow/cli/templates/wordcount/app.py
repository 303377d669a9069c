"""Running counts of the words in a text: one number per word, kept on the worker that owns the word."""

from megaflow import Flow, Stream


def count(word: str, n: int, total: int | None) -> tuple[int, list[tuple[str, int]]]:
    """Add `n` to a word's total, which is None before its first use. Return the new total, and a list of outputs."""
    total = (total or 0) + n
    return total, [(word, total)]


def words_of(line: str) -> list[tuple[str, int]]:
    """Return a pair for each word: its key and a value."""
    return [(word.strip(".,;:!?").lower(), 1) for word in line.split()]


def dataflow(flow: Flow) -> Stream[tuple[str, int]]:
    """Return the stream whose records are the job's output."""
    return flow.lines().flat_map(words_of).stateful_state_machine(count)
