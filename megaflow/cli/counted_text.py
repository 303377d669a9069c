"""Texts about counts, for a status and the end of a run: skipped lines, replaced bytes, late records."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from megaflow.control import reports
from megaflow.control.wording import quantity

NONE: Final[Mapping[str, int]] = {}


def counted_texts(status: reports.JobStatus) -> list[str]:
    """Return the counts of skipped lines, replaced bytes and late records, for a status."""
    skipped: Counter[str] = Counter()
    replaced: Counter[str] = Counter()
    late: Counter[str] = Counter()
    for worker in status.workers:
        skipped.update(worker.skipped)
        replaced.update(worker.replaced)
        late.update({operator: use.late for operator, use in worker.useful.items() if use.late})
    overtaken = sum(use.overtaken for worker in status.workers for use in worker.useful.values())
    return summed_texts(skipped, replaced, late) + ([overtaken_text(overtaken)] if overtaken else [])


def summed_texts(skipped: Mapping[str, int], replaced: Mapping[str, int], late: Mapping[str, int] = NONE) -> list[str]:
    """Return a text for each of these counts that is not empty.

    >>> summed_texts({"orders": 1}, {})
    ['1 line skipped (orders 1)']
    """
    texts = (skipped, skipped_text), (replaced, replaced_text), (late, late_text)
    return [text(counts) for counts, text in texts if counts]


def skipped_text(skipped: Mapping[str, int]) -> str:
    """Return how many lines of each input were skipped.

    >>> skipped_text({"": 1}), skipped_text({"orders": 2, "payments": 3})
    ('1 line skipped', '5 lines skipped (orders 2, payments 3)')
    """
    return f"{quantity(sum(skipped.values()), 'line')} skipped{of_each(skipped)}"


def replaced_text(replaced: Mapping[str, int]) -> str:
    """Return how often bytes that are not text were replaced, in each input.

    >>> replaced_text({"": 1}), replaced_text({"orders": 2, "payments": 3})
    ('1 sequence of bytes replaced by U+FFFD', '5 sequences of bytes replaced by U+FFFD (orders 2, payments 3)')
    """
    count = sum(replaced.values())
    return f"{count} sequence{'s' * (count != 1)} of bytes replaced by U+FFFD{of_each(replaced)}"


def of_each(counts: Mapping[str, int]) -> str:
    """Return the share of each input; the input without a name has no text."""
    text = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if name)
    return text and f" ({text})"


def late_text(late: Mapping[str, int]) -> str:
    """Return how many records of each operator were too late for their windows.

    >>> late_text({"window": 1, "sessions": 3})
    '4 records too late for their windows (operator sessions: 3, operator window: 1)'
    """
    operators = ", ".join(f"operator {name}: {count}" for name, count in sorted(late.items()))
    return f"{quantity(sum(late.values()), 'record')} too late for their windows ({operators})"


def overtaken_text(count: int) -> str:
    """Return how many of these were late by the watermark alone.

    >>> overtaken_text(2)
    '2 of them late only because their file or partition was idle, or is new'
    """
    return f"{count} of them late only because their file or partition was idle, or is new"
