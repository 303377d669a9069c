"""Rotation of the slow tests of seeds and faults: `make test-slow` runs a quarter of their cases, `make soak` runs all.

1. Only a number decides which cases run, so `make test-slow ROTATION=2` repeats a run. Without one, make takes the hash
   of the commit. So a commit always gets the same tests, and over some commits all cases have their turn.
2. Each test function keeps at least one of its cases, and each search one of its planted faults: the ID of a fault has
   its search before a colon. So each run has seeds and planted faults of every kind.
3. Of the files in `BY_FILE`, whose tests take minutes each, every run has a quarter of the tests, whatever their
   functions. `make test-spark` runs them all.
4. The functions in `WHOLE` keep all their cases, because their seeds are the ones that find lost and repeated records.
   Planted faults may wait for their turn: they test the simulation, which changes less often than megaflow.
"""

from collections.abc import Iterable

SHARES = 4
PLACES = (
    "tests/simulation/", "tests/model/", "tests/apps/test_nexmark.py", "tests/spark/test_spark_crashes.py",
    "tests/timely/test_quiet.py",
)  # fmt: skip
BY_FILE = {"tests/spark/test_spark_crashes.py"}
WHOLE = {
    f"tests/simulation/{function}"
    for function in (
        "test_crash_points.py::test_a_job_goes_on_after_a_crash_anywhere",
        "test_cuts.py::test_checkpoints_have_all_before_their_time_and_restarts_give_the_outputs_that_are_left",
        "test_cuts.py::test_so_they_do_in_loops",
        "test_durable_jobs.py::test_so_it_is_in_many_more",
        "test_jobs.py::test_a_job_counts_each_line_once_and_in_order_whatever_is_asked_of_it",
        "test_jobs.py::test_a_job_that_loses_a_process_ends_with_an_error_and_what_it_has_written_is_right",
        "test_membership.py::test_outputs_and_their_times_are_those_of_one_worker_however_the_membership_changes",
        "test_membership.py::test_so_they_are_when_processes_have_several_workers",
        "test_membership.py::test_so_they_are_when_the_coordinator_hands_over_or_leaves",
        "test_oracle.py::test_outputs_and_their_times_equal_those_of_one_worker_without_moves",
    )
}


def cases_of(rotation: int, cases: Iterable[str]) -> set[str]:
    """Return the cases that run, given the node IDs of all."""
    kinds: dict[str, list[str]] = {}
    for case in cases:
        file, (search, colon, _) = case.partition("::")[0], case.partition(": ")
        kind = file if file in BY_FILE else search if colon else case.partition("[")[0]
        kinds.setdefault(kind, []).append(case)
    return {
        case
        for kind, all_cases in kinds.items()
        for case in (all_cases if kind in WHOLE else all_cases[rotation % min(SHARES, len(all_cases)) :: SHARES])
    }
