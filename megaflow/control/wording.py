"""Wording of workers, bins and numbers of things, the same in all messages of a job.

The things counted include skipped faults, replaced bytes and late records.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from megaflow.control.reports import BusyWorker, JobStatus, MissingPartition

NONE_READ: Final[Mapping[str, Mapping[str, int]]] = MappingProxyType({})


class Notice(str):
    """A report about the normal course of a job. Other reports are warnings: they need the user's attention."""

    __slots__ = ()


def busy_text(busy: BusyWorker) -> str:
    """Return a worker's place and its time there, for a message.

    >>> busy_text(BusyWorker((1,), 77, 12.34, "busy", "fold", "app.py:12", "count", "'word'"))
    "worker 1 has been in 'fold' (app.py:12) for 12.3 s, operator 'count', record 'word'"
    >>> busy_text(BusyWorker((2, 3), 77, 5.0, "silent"))
    "workers 2, 3 have been silent for 5.0 s: the code holds Python's interpreter, or gets too little of a core"
    >>> busy_text(BusyWorker((1,), 77, 12.34, "busy", operator="write a", waits="the database sqlite:a.db, attempt 3"))
    "worker 1 has been waiting for 12.3 s for the database sqlite:a.db, attempt 3, operator 'write a'"
    """
    who = workers_text(busy.workers) if busy.workers else f"a process that has not joined yet (pid {busy.pid})"
    return f"{who} {'have' if len(busy.workers) > 1 else 'has'} been {busy_where(busy)}"


def busy_where(busy: BusyWorker) -> str:
    """Return the text that follows `has been`."""
    place = "" if busy.function is None else f"{busy.function!r} ({busy.where})"
    if busy.state == "suspended":
        return f"suspended for {busy.seconds:.1f} s: resume the process with kill -CONT {busy.pid}"
    if busy.state == "silent":
        last = f", last seen in {place}" if place else ""
        why = "the code holds Python's interpreter, or gets too little of a core"
        return f"silent for {busy.seconds:.1f} s{last}: {why}"
    facts = f", operator {busy.operator!r}" if busy.operator is not None else ""
    if busy.waits is not None:
        return f"waiting for {busy.seconds:.1f} s for {busy.waits}{facts}"
    facts += f", record {busy.record}" if busy.record is not None else ""
    return f"in {place or 'one step'} for {busy.seconds:.1f} s{facts}"


def missing_text(missing: MissingPartition) -> str:
    """Return why a partition is not read, and how many bytes of it.

    >>> missing_text(MissingPartition("logs", "'a.log' cannot be opened: Permission denied", 1, (0, 1), 14))
    "'a.log' cannot be opened: Permission denied (workers 0, 1): 14 bytes are not read"
    """
    what = "it is not read" if missing.unread is None else f"{quantity(missing.unread, 'byte')} are not read"
    return f"{missing.why} ({workers_text(missing.tried)}): {what}"


def missing_texts(missing: Sequence[MissingPartition]) -> list[str]:
    """Return what a status says of partitions that no process can open, and what helps."""
    return [
        f"{missing_text(each)}; worker {each.worker} tries again, so make the file readable there, under its path"
        for each in missing
    ]


def ranges_text(bins: Sequence[int]) -> str:
    """Return increasing bins as ranges, in the form that `--bins` takes.

    >>> ranges_text([0, 1, 2, 5, 7, 8])
    '0-2,5,7-8'
    """
    runs: list[list[int]] = []
    for bin in bins:
        if runs and runs[-1][1] == bin - 1:
            runs[-1][1] = bin
        else:
            runs.append([bin, bin])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def workers_text(ids: Sequence[int]) -> str:
    """Return workers for a message.

    >>> workers_text((2,)), workers_text((2, 3))
    ('worker 2', 'workers 2, 3')
    """
    return ("worker " if len(ids) == 1 else "workers ") + ", ".join(map(str, ids))


def printable(text: str) -> str:
    r"""Return a text as one line that cannot steer a terminal; names and reasons may have any characters.

    >>> printable("no\nbins \x1b[31m")
    'no\\nbins \\x1b[31m'
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def quantity(number: int, noun: str) -> str:
    """Return a number with its noun, for a message.

    >>> quantity(1, "bin"), quantity(2, "bin"), quantity(0, "process")
    ('1 bin', '2 bins', '0 processes')
    """
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{ending}"


def counted_texts(status: JobStatus) -> list[str]:
    """Return the counts of skipped faults, replaced bytes and late records, for a status."""
    skipped: Counter[str] = Counter()
    replaced: Counter[str] = Counter()
    read: dict[str, Counter[str]] = {}
    late: Counter[str] = Counter()
    for worker in status.workers:
        skipped.update(worker.skipped)
        replaced.update(worker.replaced)
        add_counts(read, worker.read_counts)
        late.update({operator: use.late for operator, use in worker.useful.items() if use.late})
    overtaken = sum(use.overtaken for worker in status.workers for use in worker.useful.values())
    texts = summed_texts(skipped, replaced, read) + ([late_text(late)] if late else [])
    return texts + ([overtaken_text(overtaken)] if overtaken else [])


def add_counts(sums: dict[str, Counter[str]], more: Mapping[str, Mapping[str, int]]) -> None:
    """Add the read counts of a worker to sums: kind -> input -> count."""
    for kind, counts in more.items():
        sums.setdefault(kind, Counter()).update(counts)


def summed_texts(
    skipped: Mapping[str, int], replaced: Mapping[str, int], read: Mapping[str, Mapping[str, int]] = NONE_READ
) -> list[str]:
    """Return one text for each of these counts that is not empty. `read`: kind -> input -> count.

    >>> summed_texts({"orders": 1}, {}, {MARKS: {"orders": 2}})
    ['1 fault skipped (orders 1)', '2 byte order marks left out at the beginning of rows (orders 2)']
    """
    texts = (skipped, skipped_text), (replaced, replaced_text)
    given = [text(counts) for counts, text in texts if counts]
    return given + [f"{READ_COUNTS[kind](sum(read[kind].values()))}{of_each(read[kind])}" for kind in sorted(read)]


def skipped_text(skipped: Mapping[str, int]) -> str:
    """Return how many faults of each input were skipped: lines, rows, or rests of JSON files after a fault.

    >>> skipped_text({"": 1}), skipped_text({"orders": 2, "payments": 3})
    ('1 fault skipped', '5 faults skipped (orders 2, payments 3)')
    """
    return f"{quantity(sum(skipped.values()), 'fault')} skipped{of_each(skipped)}"


MARKS: Final = "byte_order_marks"
NULS_LEFT_OUT: Final = "nul_bytes"
UNFINISHED: Final = "records_unfinished"
FILLED: Final = "rows_filled"
CUT: Final = "rows_cut"
SKIPPED_LINES: Final = "lines_of_skipped_rows"
SKIPPED_VALUE_LINES: Final = "lines_of_skipped_values"
PARTIAL_LEFT_OUT: Final = "partial_windows"
KEYS_FORGOTTEN: Final = "keys_forgotten"
READ_COUNTS: Final[Mapping[str, Callable[[int], str]]] = {
    MARKS: lambda count: f"{quantity(count, 'byte order mark')} left out at the beginning of rows",
    NULS_LEFT_OUT: lambda count: f"{quantity(count, 'NUL byte')} left out at the beginning of lines",
    UNFINISHED: lambda count: f"{quantity(count, 'unfinished record')} left to the next run",
    FILLED: lambda count: f"{quantity(count, 'short row')} filled with None",
    CUT: lambda count: f"{quantity(count, 'long row')} cut",
    SKIPPED_LINES: lambda count: (
        f"{quantity(count, 'further line')} skipped, because the skipped rows span lines. If each line is a row, give "
        "flow.csv multiline=False"
    ),
    PARTIAL_LEFT_OUT: lambda count: f"{quantity(count, 'window')} left out because records are missing",
    KEYS_FORGOTTEN: lambda count: f"the states of {quantity(count, 'key')} given up by upgrade",
    SKIPPED_VALUE_LINES: lambda count: f"{quantity(count, 'further line')} skipped, because the values span lines",
}
"""What reading counts beside faults and replaced bytes: its name in a status -> the text for a count."""


def replaced_text(replaced: Mapping[str, int]) -> str:
    """Return how many sequences of undecodable bytes were replaced in each input.

    >>> replaced_text({"": 1}), replaced_text({"orders": 2, "payments": 3})
    ('1 sequence of bytes replaced by U+FFFD', '5 sequences of bytes replaced by U+FFFD (orders 2, payments 3)')
    """
    count = sum(replaced.values())
    return f"{count} sequence{'s' * (count != 1)} of bytes replaced by U+FFFD{of_each(replaced)}"


def of_each(counts: Mapping[str, int]) -> str:
    """Return the share of each named input, in parentheses; an empty text if no input has a name."""
    text = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()) if name)
    return text and f" ({text})"


def late_text(late: Mapping[str, int]) -> str:
    """Return how many records of each operator came too late, as for their windows.

    >>> late_text({"window": 1, "sessions": 3})
    '4 records too late (operator sessions: 3, operator window: 1)'
    """
    operators = ", ".join(f"operator {name}: {count}" for name, count in sorted(late.items()))
    return f"{quantity(sum(late.values()), 'record')} too late ({operators})"


def dropped_texts(late: Mapping[str, int], windowed: Mapping[str, int]) -> list[str]:
    """Return how many of each windowed operator's records were late and left out.

    >>> dropped_texts({"window": 83_747}, {"window": 100_000, "sessions": 5})
    ["83,747 of 100,000 records were late and left out by 'window'"]
    """
    return [
        f"{count:,} of {windowed[name]:,} records were late and left out by {name!r}"
        for name, count in sorted(late.items())
    ]


def overtaken_text(count: int) -> str:
    """Return how many of the late records were late by the watermark alone.

    >>> overtaken_text(2)
    '2 of them late only because their file or partition was idle, or is new'
    """
    return f"{count} of them late only because their file or partition was idle, or is new"
