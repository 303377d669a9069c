"""Functions are known by the operator for which they ran."""

import pstats
from pathlib import Path
from typing import Any

from megaflow.job.profile.call_profile import Calls


def shared(times: int) -> int:
    return sum(range(times))


def calls_of(functions: tuple[Any, ...]) -> int:
    return sum(calls for name, _, calls, _, _ in functions if name == "shared")


def test_a_shared_function_is_counted_where_it_was_called_from(tmp_path: Path) -> None:
    calls = Calls()
    calls.begin()
    shared(1)
    for key, number in (((0, 1), 2), ((0, 2), 3), ((0, 1), 4)):
        calls.enter(key)
        for _ in range(number):
            shared(1)
        calls.leave()
        shared(1)
    found = calls.end()
    assert {key: calls_of(functions) for key, functions in found.items()} == {None: 4, (0, 1): 6, (0, 2): 3}
    calls.dump(tmp_path / "all.pstats")
    stats: Any = pstats.Stats(str(tmp_path / "all.pstats"))
    assert [numbers[1] for (_, _, name), numbers in stats.stats.items() if name == "shared"] == [13]


def test_an_operator_that_never_stopped_is_kept() -> None:
    calls = Calls()
    calls.begin()
    calls.enter((0, 1))
    shared(1)
    assert calls_of(calls.end()[0, 1]) == 1
