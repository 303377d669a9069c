"""Clicks in JSON lines, drawn from a seed, out of order and some of them late; with the results of plain Python.

A user makes a hundred clicks in a day. Each click is written to one of several files, as several servers would do, up
to OUT_OF_ORDER seconds after it was made. So no click is further than that behind another click of its file. A small
share of the clicks is *late*: written hours after they were made. A late click may still be in time for its window.
That depends on the watermark, so the lines alone do not decide it. For any set of clicks that the app reports as late,
two facts must hold:
 1. The app never reports a click as late that was written in time.
 2. Each click is either in the result of its window or reported as late. So the results equal those of a plain loop
    over all clicks that were not reported.

For sessions, the second fact holds only for late clicks that are alone. Suppose that a late click belongs to a session
that was already sent, but a session of its own would not be late. Then it begins another session. Therefore late
clicks are made in the middle of a pause of more than two gaps, one click in each pause.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from heapq import heappop, heappush, nsmallest
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from apps.click_sessions import GAP_SECONDS, OUT_OF_ORDER
from apps.top_ten import MINUTE_SECONDS, TOP

MS = 1000  # in a second
DAY_SECONDS = 86_400
DAY_BEGINS_SECONDS = 1_700_006_400
CLICKS_OF_USER = 100
CATEGORIES = ("books", "music", "shoes", "tea", "toys")
PAGES = 40  # of each category
LATE_HOURS = 2  # from a late click to its line, or up to twice as long
FILES = 2
LINE = '{"id": %d, "ms": %d, "user": "%s", "category": "%s", "page": "%s"}\n'

Session = tuple[str, int, int, int]  # user, first and last click in milliseconds, clicks
Top = tuple[str, int, tuple[tuple[str, int], ...]]  # category, minute in milliseconds, pages and their clicks


class Click(NamedTuple):
    """A click. `id` numbers the clicks that are in time first, then the late ones."""

    id: int
    ms: int
    user: str
    category: str
    page: str


def draw_clicks(clicks: int, seed: int, late_share: float) -> Iterator[Click]:
    """Yield `clicks` clicks that are in time and a share of late ones, in the order in which they are written."""
    random = Random(seed)
    users = max(1, clicks // CLICKS_OF_USER)
    last = [0] * users  # user -> time of the last click, in milliseconds
    waiting: list[tuple[int, Click]] = []  # (when to write it, click)
    late = 0
    for number in range(clicks):
        since = number * DAY_SECONDS * MS // clicks
        now = DAY_BEGINS_SECONDS * MS + since + random.randrange(max(1, DAY_SECONDS * MS // clicks))
        while waiting and waiting[0][0] < now:
            yield heappop(waiting)[1]
        user = int(users * random.random())
        page = f"/{int(PAGES * random.random() ** 2)}"
        click = Click(number, now, f"user{user}", CATEGORIES[number % len(CATEGORIES)], page)
        heappush(waiting, (now + int(OUT_OF_ORDER * MS * random.random()), click))
        written = now + int((LATE_HOURS + LATE_HOURS * random.random()) * 3600 * MS)
        is_pause = 2 * GAP_SECONDS * MS < now - last[user] < DAY_SECONDS * MS
        if is_pause and late < late_share * number and written < (DAY_BEGINS_SECONDS + DAY_SECONDS) * MS:
            heappush(waiting, (written, click._replace(id=clicks + late, ms=(now + last[user]) // 2)))
            late += 1
        last[user] = now
    while waiting:
        yield heappop(waiting)[1]


def write_clicks(folder: Path, clicks: int, seed: int = 0, late_share: float = 0.001) -> list[Path]:
    """Write clicks into files of a new folder; return their paths. Each file begins with a click that is in time."""
    folder.mkdir()
    paths = [folder / f"clicks{number}.jsonl" for number in range(FILES)]
    random = Random(seed + 1)
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("w", encoding="ascii")) for path in paths]
        for click in draw_clicks(clicks, seed, late_share):
            files[random.randrange(FILES)].write(LINE % click)
    return paths


def read_clicks(paths: Iterable[Path]) -> Iterator[Click]:
    """Yield the clicks of files."""
    for path in paths:
        with path.open(encoding="ascii") as lines:
            for line in lines:
                yield Click(*json.loads(line).values())


def sessions_of(clicks: Iterable[Click]) -> Counter[Session]:
    """Return the sessions of all users."""
    times: dict[str, list[int]] = defaultdict(list)
    for click in clicks:
        times[click.user].append(click.ms)
    found: Counter[Session] = Counter()
    for user, made in times.items():
        made.sort()
        first = 0
        for number, ms in enumerate(made, 1):
            if number == len(made) or made[number] - ms >= GAP_SECONDS * MS:
                found[user, made[first], ms, number - first] += 1
                first = number
    return found


def tops_of(clicks: Iterable[Click]) -> Counter[Top]:
    """Return the most clicked pages of all categories and minutes."""
    counts: dict[tuple[str, int], Counter[str]] = defaultdict(Counter)
    for click in clicks:
        counts[click.category, click.ms - click.ms % (MINUTE_SECONDS * MS)][click.page] += 1
    return Counter(
        (category, minute, tuple(nsmallest(TOP, pages.items(), key=lambda each: (-each[1], each[0]))))
        for (category, minute), pages in counts.items()
    )


def faults(paths: Sequence[Path], app: str, clicks: int, results: Iterable[Any], late: Sequence[int]) -> list[str]:
    """Compare an app's results and the ids of its late clicks with plain Python; return all errors.

    `clicks` is the number of clicks that were in time. Results are as read back from JSON.
    """
    told = sorted(late)
    gone = set(told)
    wanted = ORACLES[app](click for click in read_clicks(paths) if click.id not in gone)
    found = Counter(hashable(result) for result in results)
    lost, more = wanted - found, found - wanted
    in_time = [number for number in told if number < clicks]
    return [
        *([f"{len(in_time)} clicks are called late and were in time, as {in_time[:3]}"] if in_time else ()),
        *(["clicks are called late twice"] if len(gone) < len(told) else ()),
        *([f"{lost.total()} results are missing, as {min(lost)}"] if lost else ()),
        *([f"{more.total()} results are wrong, as {min(more)}"] if more else ()),
    ]


def hashable(value: Any) -> Any:
    """Return a value with its lists as tuples, as they were before JSON."""
    return tuple(hashable(each) for each in value) if isinstance(value, (list, tuple)) else value


ORACLES: dict[str, Callable[[Iterable[Click]], Counter[Any]]] = {"click_sessions": sessions_of, "top_ten": tops_of}
"""The function that computes the expected results of each app."""
