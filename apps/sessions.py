"""Sessions of words: stretches of a document in which a word comes again within GAP lines, in a stateful_unary.

Lines are `DOCUMENT NUMBER WORD WORD …`, numbered in the order of their document; each document is one file. Outputs are

    ("session", document, word, first line, last line, uses)     once it is over, by the word's next use or the end
    ("so far", document, word, before, uses)                     each use once, in stretches that a timer ends

Sessions depend only on the documents. Where a stretch ends depends on the epochs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from megaflow.job.worker.process.flow import Flow
from megaflow.stream import Stream

GAP = 40  # lines
PAUSE = 20  # epochs from a use to its report
END = 1 << 60  # an epoch that no job reaches: its timers are due when all lines are read
TELL, CLOSE = "tell", "close"  # payloads of timers

Key = tuple[str, str]  # document, word


@dataclass
class Uses:
    """Uses of a word in a document; changed in place."""

    first: int  # line of the open session
    last: int
    uses: int = 0  # in the open session
    seen: int = 0  # in all
    told: int = 0  # of these
    waits: bool = False  # for its timer to tell


def sessions(
    key: Key, time: Any, came: Iterable[int | str], state: Uses | None, timers: Any
) -> tuple[Uses | None, list[tuple[Any, ...]]]:
    """Fold the uses of a word at one time, after the payloads of timers."""
    outputs: list[tuple[Any, ...]] = []
    for use in came:
        if isinstance(use, int):
            if state is None:
                state = Uses(use, use)
                timers.at(END, CLOSE)
            elif use - state.last > GAP:
                outputs.append(("session", *key, state.first, state.last, state.uses))
                state.first, state.uses = use, 0
            state.last = use
            state.uses += 1
            state.seen += 1
            if not state.waits:
                state.waits = True
                timers.at(time + PAUSE, TELL)
        elif state is not None and use == TELL:
            outputs.append(("so far", *key, state.told, state.seen))
            state.told, state.waits = state.seen, False
        elif state is not None:
            outputs.append(("session", *key, state.first, state.last, state.uses))
            state = None
    return state, outputs


def uses_of(line: str) -> Iterator[tuple[Key, int]]:
    """Yield the uses of words in a line."""
    document, number, *words = line.split()
    return (((document, word), int(number)) for word in words)


def dataflow(flow: Flow) -> Stream[Any]:
    return flow.lines().flat_map(uses_of).stateful_unary(sessions)
