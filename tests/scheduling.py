"""Which tests run in one test process, one after the other: those that share a server, a Spark session or a job.

`--dist loadgroup` and the mark `xdist_group` do not do this: pytest-xdist 3.8 ignores the mark under pytest 9.2 without
an error. Then each of three test processes starts its own Spark and its own database servers. Here the file of a test
decides alone. Every file with a fixture for a whole module needs a group; `tests/test_scheduling.py` checks that.

Groups with many tests begin first. Otherwise a long one would run alone at the end.
"""

from xdist.scheduler import LoadScopeScheduling

CLUSTERS = {  # files whose tests start Spark clusters of their own; the other tests of Spark share one session
    f"tests/spark/test_{name}.py"
    for name in (
        "kill_table", "loss_in_a_program", "orders_crash", "programs_on_masters", "spark_crashes", "spark_submit",
        "standalone", "workers_on_executors",
    )
}  # fmt: skip

OWN_GROUPS = {  # files with a server, a job or a computation for all their tests
    "tests/apps/test_checkpoint_bytes.py",
    "tests/apps/test_crashes_text.py",
    "tests/apps/test_rescaling_workers.py",
    "tests/attack/test_hostile.py",
    "tests/cluster/test_flooded.py",
    "tests/cluster/test_kernel.py",
    "tests/connect/test_mariadb.py",
    "tests/connect/test_outages.py",
    "tests/connect/test_postgres.py",
    "tests/connect/test_postgres_source.py",
    "tests/job/test_splits.py",
    "tests/job/test_stream_reader.py",
    "tests/test_tidy.py",
    "tests/web/test_page.py",
    "tests/test_off_costs_nothing.py",
}


def group_of(case: str) -> str:
    """Return the group of a test, given its node ID; a test without a group is its own."""
    file = case.partition("::")[0]
    if file in CLUSTERS:
        return "Spark clusters"
    if file.startswith("tests/spark/"):
        return "Spark session"
    return file if file in OWN_GROUPS else case


class Scheduling(LoadScopeScheduling):
    """The scheduler of pytest-xdist, with these groups."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)
