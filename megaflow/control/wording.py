"""How workers, bins and numbers of things are worded, alike in all messages of a job."""

from collections.abc import Sequence

from megaflow.control.reports import BusyWorker


def busy_text(busy: BusyWorker) -> str:
    """Return where a worker is and for how long, for a message.

    >>> busy_text(BusyWorker((1,), 77, 12.34, "busy", "fold", "app.py:12", "count", "'word'"))
    "worker 1 has been in 'fold' (app.py:12) for 12.3 s, operator 'count', record 'word'"
    >>> busy_text(BusyWorker((2, 3), 77, 5.0, "silent"))
    "workers 2, 3 have been silent for 5.0 s: the code holds Python's interpreter, or gets too little of a core"
    """
    who = workers_text(busy.workers) if busy.workers else f"a process that has not joined yet (pid {busy.pid})"
    return f"{who} {'have' if len(busy.workers) > 1 else 'has'} been {busy_where(busy)}"


def busy_where(busy: BusyWorker) -> str:
    """Return what comes behind `has been`."""
    place = "" if busy.function is None else f"{busy.function!r} ({busy.where})"
    if busy.state == "suspended":
        return f"suspended for {busy.seconds:.1f} s: resume the process with kill -CONT {busy.pid}"
    if busy.state == "silent":
        last = f", last seen in {place}" if place else ""
        why = "the code holds Python's interpreter, or gets too little of a core"
        return f"silent for {busy.seconds:.1f} s{last}: {why}"
    facts = f", operator {busy.operator!r}" if busy.operator is not None else ""
    facts += f", record {busy.record}" if busy.record is not None else ""
    return f"in {place or 'one step'} for {busy.seconds:.1f} s{facts}"


def ranges_text(bins: Sequence[int]) -> str:
    """Return bins, in increasing order, as ranges: the form that `--bins` takes.

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


def quantity(number: int, noun: str) -> str:
    """Return a number of things for a message.

    >>> quantity(1, "bin"), quantity(2, "bin"), quantity(0, "process")
    ('1 bin', '2 bins', '0 processes')
    """
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number} {noun}{ending}"
