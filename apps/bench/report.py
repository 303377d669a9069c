"""Results as values: medians, ratios and goals, held or missed; and their table, JSON and picture.

1. A ratio is the median of the ratios of neighbours. The contenders of one repetition run one after the other, so a
   slow spell of the machine affects both.
2. If a goal is a multiple of several contenders, the one that is hardest to beat counts.
3. A goal without figures is not measured. It is neither held nor missed.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from apps.bench.experiment import COLOURS, plain_axes
from megaflow.cli.text import table_text

HELD, MISSED, UNKNOWN = "held", "missed", "not measured"
PEERS = ("Bytewax", "Pathway", "Spark")  # beginnings of the rows of other systems, for their colour
YARDSTICKS = ("plain", "bare", "two parked", "python", "pinned", "steady", "before")  # and of the rows to compare with
LOG_FROM = 50  # least ratio of the greatest to the smallest value for a logarithmic scale

Found = dict[str, dict[str, list[float]]]  # row -> figure -> values, at least one of each repetition
Draw = Callable[[Any], None]  # into a matplotlib Figure


@dataclass(frozen=True, slots=True)
class Goal:
    """Goal of a row's figure: a number, or a multiple of the same figure of other rows."""

    row: str
    figure: str
    limit: float
    at_least: bool = False  # otherwise at most
    of: tuple[str, ...] = ()  # rows, as far as they exist; empty: compare the figure itself
    of_above: float = 0.0  # compare only if the others' median is greater

    def text(self) -> str:
        """Return the goal in words.

        >>> Goal("one process", "words/s", 0.85, at_least=True, of=("plain",)).text()
        'one process: words/s at least 0.85 times plain'
        """
        best = "the best of " if len(self.of) > 1 else ""
        times = f" times {best}{' and '.join(self.of)}" if self.of else ""
        above = f", where that is above {number(self.of_above)}" if self.of_above else ""
        word = "at least" if self.at_least else "at most"
        return f"{self.row}: {self.figure} {word} {number(self.limit)}{times}{above}"


@dataclass(frozen=True, slots=True)
class Judged:
    """A goal with its verdict."""

    goal: Goal
    value: float | None  # the figure's median, or the ratio
    verdict: str


@dataclass(slots=True)
class Result:
    """All results of one workload, added while it runs."""

    id: str
    title: str
    base: str | None  # the row to which others are shown as a ratio
    goals: tuple[Goal, ...]
    notes: tuple[str, ...] = ()
    found: Found = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)  # contender -> reason why it was left out
    wrong: list[str] = field(default_factory=list)  # failures, and counts that were not right
    drawings: dict[str, Draw] = field(default_factory=dict)  # name -> a picture in addition to the bars

    def add(self, more: Found) -> None:
        """Add the results of one step."""
        for row, figures in more.items():
            for figure, values in figures.items():
                self.found.setdefault(row, {}).setdefault(figure, []).extend(values)

    def judged(self) -> list[Judged]:
        """Return all goals with their verdicts."""
        return [judge(goal, self.found) for goal in self.goals]


def judge(goal: Goal, found: Found) -> Judged:
    """Compare the results with a goal.

    >>> found = {"a": {"rate": [8.0, 9.0, 10.0]}, "b": {"rate": [10.0, 10.0, 10.0]}}
    >>> judged = judge(Goal("a", "rate", 0.85, at_least=True, of=("b", "c")), found)
    >>> judged.value, judged.verdict
    (0.9, 'held')
    """
    value = measured(goal, found)
    if value is None or math.isnan(value):
        return Judged(goal, None, UNKNOWN)
    good = value >= goal.limit if goal.at_least else value <= goal.limit
    return Judged(goal, value, HELD if good else MISSED)


def measured(goal: Goal, found: Found) -> float | None:
    """Return the value to compare with a goal's limit; None if there is none."""
    own = found.get(goal.row, {}).get(goal.figure, [])
    if not own:
        return None
    if not goal.of:
        return statistics.median(own)
    others = [found.get(row, {}).get(goal.figure, []) for row in goal.of]
    ratios = [ratio(own, other) for other in others if other and statistics.median(other) > goal.of_above]
    known = [each for each in ratios if each is not None]
    return (min(known) if goal.at_least else max(known)) if known else None


def ratio(own: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the median of the ratios of neighbours; None without values.

    >>> ratio([2.0, 30.0, 3.0], [1.0, 10.0, 2.0])
    2.0
    """
    ratios = [mine / its for mine, its in zip(own, other) if its]
    return statistics.median(ratios) if ratios else None


def spread(values: Sequence[float]) -> float:
    """Return how far apart the values are, as a share of their median.

    >>> spread([9.0, 10.0, 12.0])
    0.3
    """
    median = statistics.median(values)
    return (max(values) - min(values)) / abs(median) if median else 0.0


def number(value: float) -> str:
    """Return a number with about three digits.

    >>> [number(value) for value in (0.01234, 2.0, 12.34, 1234567.0)]
    ['0.0123', '2', '12.3', '1,234,567']
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def text(result: Result) -> str:
    """Return a workload's table and goals, the contenders left out, and the failures."""
    figures = list(dict.fromkeys(figure for row in result.found.values() for figure in row))
    shown = f"of {result.base}" if result.base in result.found and len(result.found) > 1 else None
    rows = [[name, *(cell(row.get(figure, [])) for figure in figures)] for name, row in result.found.items()]
    if shown is not None:
        for line, (name, row) in zip(rows, result.found.items()):
            line.append(of_base(result, name, figures[0]) if figures[0] in row else "-")
    head = ["", *figures, *([shown] if shown is not None else [])]
    times = max((len(values) for row in result.found.values() for values in row.values()), default=0)
    return "\n".join([
        f"{result.id}  {result.title} (medians of up to {times}, ± the spread)",
        *([table_text(head, rows)] if rows else []),
        *(f"  {judged_text(each)}" for each in result.judged()),
        *(f"  left out: {name}: {why}" for name, why in result.absent.items()),
        *(f"  note: {note}" for note in result.notes),
        *(f"  WRONG: {each}" for each in result.wrong),
    ])  # fmt: skip


def cell(values: Sequence[float]) -> str:
    """Return a median and, of several values, their spread.

    >>> cell([]), cell([2.0]), cell([2.0, 2.5, 3.0])
    ('-', '2', '2.5 ±40%')
    """
    if not values:
        return "-"
    median = number(statistics.median(values))
    return median if len(values) == 1 else f"{median} ±{spread(values):.0%}"


def of_base(result: Result, row: str, figure: str) -> str:
    """Return the ratio of a row's figure to that of the base."""
    assert result.base is not None
    found = ratio(result.found[row][figure], result.found[result.base].get(figure, []))
    return "-" if found is None else f"{found:.2f}"


def judged_text(judged: Judged) -> str:
    """Return one line: the verdict, the goal and the value."""
    value = "" if judged.value is None else f": {number(judged.value)}"
    return f"{judged.verdict:<12} {judged.goal.text()}{value}"


def summary(results: Sequence[Result]) -> str:
    """Return how many goals were held, and the names of the others."""
    judged = [(result.id, each) for result in results for each in result.judged()]
    counts = {word: sum(each.verdict == word for _, each in judged) for word in (HELD, MISSED, UNKNOWN)}
    lines = [f"goals: {', '.join(f'{count} {word}' for word, count in counts.items())}"]
    lines += [f"  {id} {judged_text(each)}" for id, each in judged if each.verdict != HELD]
    return "\n".join(lines)


def as_json(result: Result) -> dict[str, Any]:
    """Return a result for JSON: every value, with medians and verdicts."""
    return {
        "title": result.title,
        "found": result.found,
        "medians": {row: {name: statistics.median(each) for name, each in figures.items()}
                    for row, figures in result.found.items()},
        "goals": [{"goal": each.goal.text(), "value": each.value, "verdict": each.verdict} for each in result.judged()],
        "absent": result.absent,
        "notes": list(result.notes),
        "wrong": result.wrong,
    }  # fmt: skip


def draw(result: Result, figure: Any) -> None:
    """Draw bars of medians, a plot for each figure, with every value as a point."""
    names = list(dict.fromkeys(name for row in result.found.values() for name in row))
    rows = list(result.found)
    plots = figure.subplots(1, len(names), squeeze=False, sharey=True)[0]
    for axes, name in zip(plots, names):
        draw_bars(axes, {place: result.found[row].get(name, []) for place, row in enumerate(rows)}, rows)
        plain_axes(axes, name, "", "")
        axes.set_title(name, loc="left", fontsize=9)
        axes.tick_params(axis="x", labelsize=8)
    plots[0].set_yticks(range(len(rows)), rows, fontsize=8)
    plots[0].invert_yaxis()
    figure.suptitle(f"{result.id}  {result.title}", x=0.01, ha="left", fontsize=11)


def draw_bars(axes: Any, values_of: Mapping[int, Sequence[float]], rows: Sequence[str]) -> None:
    """Draw one figure of the rows that have it, on a scale on which small values are also visible."""
    for place, values in values_of.items():
        if values:
            colour = COLOURS[1 if rows[place].startswith(PEERS) else 2 if rows[place].startswith(YARDSTICKS) else 0]
            axes.barh(place, statistics.median(values), height=0.6, color=colour, alpha=0.75)
            axes.plot(values, [place] * len(values), "o", color="black", markersize=3)
    least = min((value for values in values_of.values() for value in values), default=0.0)
    most = max((value for values in values_of.values() for value in values), default=0.0)
    if 0 < least < most / LOG_FROM:
        axes.set_xscale("log")
    else:
        axes.locator_params(axis="x", nbins=3)
