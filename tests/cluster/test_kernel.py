"""Notebooks in a real Jupyter kernel: the shipped one shows true outputs; cells run, fail, stop and run again."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from megaflow.job.job_file import process_start
from tests.cluster.kernels import NO_KERNEL, Kernel, Ran, executed
from tests.cluster.processes import END_SECONDS, ROOT, lives, records_of, wait_until
from tests.results import check_equal, comparing
from tests.test_docs import VARIES
from tests.words import without_delays

pytest.importorskip("ipykernel", reason=NO_KERNEL)
nbformat = pytest.importorskip("nbformat", reason=NO_KERNEL)
pytest.importorskip("nbclient", reason=NO_KERNEL)

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
BEGIN = """
import itertools, sys
import megaflow

def count(user, n, total):
    total = (total or 0) + n
    return total, [(user, total)]

def dataflow(flow):
    return flow.items().map(lambda user: (user, 1)).stateful_state_machine(count)

def endless(pulled):
    for number in itertools.count():
        pulled.append("abc"[number % 3])
        yield pulled[-1]
        if number == 500:
            print("500 items", flush=True)

def exact(records, pulled):
    seen = {}
    for user in pulled:
        seen[user] = seen.get(user, 0) + 1
    assert len(pulled) > 500, len(pulled)
    if len(records) != len(pulled):
        return f"{len(records)} records of {len(pulled)} items"
    return {user: max((n for name, n in records if name == user), default=0) for user in seen} == seen
"""
CLICK = """
from dataclasses import dataclass

@dataclass
class Click:
    user: str
    def shown(self):
        return self.user{how}

def shown(flow):
    return flow.items().map(lambda click: (click.shown(), type(click).__name__, click))
"""


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    made = Kernel(tmp_path_factory.mktemp("kernel"))
    try:
        made.run("import megaflow")
        yield made
    finally:
        made.close()


@pytest.fixture
def cells(kernel: Kernel) -> Kernel:
    assert kernel.run("%reset -f").error == kernel.run(BEGIN).error == ""
    return kernel


def result_of(ran: Ran) -> str:
    """Return the result of a cell, which must not have failed."""
    assert not ran.error, ran.traceback
    return ran.result


def shown(cell: Any) -> dict[str, str]:
    """Return the text of a cell's outputs, without durations."""
    texts = {"stdout": "", "stderr": "", "result": "", "error": ""}
    for each in cell.outputs:
        name = {"stream": each.get("name"), "error": "error"}.get(each.output_type, "result")
        texts[name] += each.get("text") or each.get("evalue") or each["data"]["text/plain"]
    return {name: VARIES.sub("…", without_delays(text)) for name, text in texts.items()}


def test_the_outputs_of_the_shipped_notebook_are_true(tmp_path: Path) -> None:
    stored = nbformat.read(NOTEBOOK, 4)
    fresh = executed(nbformat.read(NOTEBOOK, 4), tmp_path)
    pairs = [(old, new) for old, new in zip(stored.cells, fresh.cells, strict=True) if old.cell_type == "code"]
    assert len(pairs) > 8
    if os.environ.get("MEGAFLOW_REWRITE"):
        for cell in fresh.cells:
            cell.metadata.clear()
        nbformat.write(fresh, NOTEBOOK)
        return
    for old, new in pairs:
        found, expected = shown(new), shown(old)
        assert found["error"] == expected["error"], old.source
        check_equal(found["result"], expected["result"], old.source)
        assert found == expected, old.source
        assert max(map(len, old.source.splitlines())) <= 120
    warned = [cell.source for _, cell in pairs if "records were late" in shown(cell)["stderr"]]
    assert len(warned) == 2 and not any(shown(cell)["error"] for _, cell in pairs)


def test_warnings_are_shown_below_their_cell(cells: Kernel) -> None:
    late = cells.run("""
def windows(flow):
    return flow.items().event_time(float).window(megaflow.tumbling(10), key=lambda n: 0).count()
megaflow.run(windows, items=[15, 25, 1, 2, 3])
""")
    result = result_of(late)
    with comparing():
        assert result.startswith("[(0, Window(start=10, end=20), 1)")
    assert not late.out
    assert "megaflow: 'window' drops records" in late.err and "3 of 5 records were late" in late.err
    assert without_delays(cells.run("megaflow.run(dataflow, items=['a'])").err) == ""


def test_the_stop_button_ends_a_run_with_all_it_has_read(cells: Kernel) -> None:
    ran = cells.run("pulled = []\nrecords = megaflow.run(dataflow, items=endless(pulled))", press_stop_at="500 items")
    assert ran.error == "Interrupted" and "sys.last_value.records" in ran.traceback and "File" not in ran.traceback
    result = result_of(cells.run("import sys; exact(sys.last_value.records, pulled), megaflow.jobs()"))
    with comparing():
        assert result.startswith("(True, ")
    assert result == "(True, [])"
    check_equal(result_of(cells.run("megaflow.run(dataflow, items=['a'])")), "[('a', 1)]")


def test_a_second_press_ends_a_run_at_once_with_its_results(cells: Kernel) -> None:
    ran = cells.run("""
import _thread, threading, time

def items():
    yield from range(5)
    print("all items", flush=True)
    threading.Timer(3.0, _thread.interrupt_main).start()

began = time.monotonic()
megaflow.run(lambda flow: flow.items().map(lambda n: time.sleep(100 if n == 3 else 0) or n), items=items())
""", press_stop_at="all items")  # fmt: skip
    assert ran.error == "Interrupted" and "sys.last_value.records" in ran.traceback
    result = result_of(cells.run("time.monotonic() - began < 60, {*sys.last_value.records} <= {0, 1, 2}"))
    with comparing():
        assert result.endswith(", True)")
    assert result == "(True, True)" and cells.run("megaflow.jobs()").result == "[]"


def test_the_stop_button_drains_a_job_whose_outputs_are_read(cells: Kernel) -> None:
    ran = cells.run("""
pulled, records = [], []
with megaflow.start(dataflow, items=endless(pulled), processes=2) as job:
    for record in job.outputs():
        records.append(record)
        if len(records) == 600:
            print("600 records", flush=True)
""", press_stop_at="600 records")  # fmt: skip
    assert ran.error == "KeyboardInterrupt" and "wait_in_slices" not in ran.traceback
    after = cells.run("""
records += job.outputs()  # those that came after the press, if it interrupted the loop's own code
exact(records, pulled), job.is_running, job.wait().records == len(records), megaflow.jobs()
""")
    result = result_of(after)
    with comparing():
        assert re.match(r"\(True, \w+, True, ", result), after
    assert result == "(True, False, True, [])", after


def test_two_presses_end_a_run_whose_processes_hang_as_they_start(cells: Kernel) -> None:
    ran = cells.run("""
import _thread, os, pathlib, threading, time

pathlib.Path("sitecustomize.py").write_text(
    "import os, pathlib, time\\npathlib.Path(f'started.{os.getpid()}').touch()\\ntime.sleep(600)\\n"
)
os.environ["PYTHONPATH"] = os.getcwd()

def tell():
    while len(list(pathlib.Path().glob("started.*"))) < 2:
        time.sleep(0.01)
    print("both processes have started", flush=True)
    time.sleep(2)
    _thread.interrupt_main()

threading.Thread(target=tell).start()
began = time.monotonic()
results = megaflow.run(dataflow, items=["a"], processes=2)
""", press_stop_at="both processes")  # fmt: skip
    assert ran.error == "Interrupted", ran
    after = cells.run("""
del os.environ["PYTHONPATH"]
megaflow.jobs(), sys.last_value.records, time.monotonic() - began < 25, [*map(str, pathlib.Path().glob("started.*"))]
""")
    jobs, records, is_soon, files = eval(after.result)
    check_equal(records, [])
    assert (jobs, is_soon, len(files)) == ([], True, 2)
    assert not any(Path(f"/proc/{name.rpartition('.')[2]}/cmdline").exists() for name in files)
    check_equal(result_of(cells.run("megaflow.run(dataflow, items=['a'])")), "[('a', 1)]")


def test_a_cell_that_runs_again_has_its_new_code_run(cells: Kernel) -> None:
    check_equal(result_of(cells.run("megaflow.run(dataflow, items=['a', 'a'])")), "[('a', 1), ('a', 2)]")
    cells.run("def count(user, n, total):\n    return n, [(user.upper(), n * factor)]\nfactor = 5")
    check_equal(result_of(cells.run("megaflow.run(dataflow, items=['a', 'a'])")), "[('A', 5), ('A', 5)]")
    cells.run("factor = 6")
    check_equal(result_of(cells.run("megaflow.run(dataflow, items=['a'])")), "[('A', 6)]")


def test_values_of_a_class_that_a_cell_redefined_are_refused(cells: Kernel) -> None:
    cells.run(CLICK.format(how=""))
    cells.run("old = Click('a')")
    check_equal(result_of(cells.run("megaflow.run(shown, items=[old])")), "[('a', 'Click', Click(user='a'))]")
    cells.run(CLICK.format(how=" + '!'"))
    ran = cells.run("[(text, _, click)] = megaflow.run(shown, items=[Click('b')])\ntext, type(click) is Click")
    check_equal(result_of(ran), "('b!', True)")
    ran = cells.run("megaflow.run(shown, items=[old])")
    assert ran.error == "CannotTravel" and "defined again after the value was made: make the value again" in ran.said
    assert "Click(user='a')" in ran.said
    ran = cells.run("feed = __import__('queue').Queue()\njob = megaflow.start(shown, items=feed)")
    cells.run(CLICK.format(how="").replace("user: str", "user: str\n    page: str = '/'"))
    ran = cells.run("feed.put(Click('c'))\nnext(job.outputs())")
    assert "has other fields" in ran.said and "start the job again" in ran.said
    ran = cells.run("megaflow.run(shown, items=[Click('d')])")
    check_equal(result_of(ran), "[('d', 'Click', Click(user='d', page='/'))]")


def test_jobs_run_after_each_other_and_beside_each_other(cells: Kernel) -> None:
    ran = cells.run("[megaflow.run(dataflow, items=[user], processes=2) for user in 'abc']")
    check_equal(result_of(ran), "[[('a', 1)], [('b', 1)], [('c', 1)]]")
    ran = cells.run("""
jobs = [megaflow.start(dataflow, items=[user] * 3) for user in "ab"]
[sorted(job.outputs()) for job in jobs], len({job.name for job in jobs})
""")
    check_equal(result_of(ran), "([[('a', 1), ('a', 2), ('a', 3)], [('b', 1), ('b', 2), ('b', 3)]], 2)")
    ran = cells.run("""
[record async for record in megaflow.start(dataflow, items=["a", "a"]).outputs()]
""")
    check_equal(result_of(ran), "[('a', 1), ('a', 2)]")


def test_an_error_in_a_cell_shows_the_code_of_the_cell_alone(cells: Kernel) -> None:
    ran = cells.run("megaflow.run(lambda flow: flow.items().map(lambda n: 1 // n), items=[1, 0])")
    assert ran.error == "ZeroDivisionError" and "record 0" in ran.said and "ipykernel" in ran.said
    assert "job/launcher" not in ran.traceback
    check_equal(result_of(cells.run("megaflow.run(dataflow, items=['a'])")), "[('a', 1)]")


@pytest.mark.parametrize("way", ["restart", "kill"])
def test_no_worker_outlives_the_kernel(tmp_path: Path, way: str) -> None:
    made = Kernel(tmp_path)
    try:
        made.run(BEGIN)
        ran = made.run("""
import queue
job = megaflow.start(dataflow, items=queue.Queue(), processes=2)
while len(workers := job.status().workers) < 2:
    pass  # both answer
[worker.pid for worker in workers]
""")
        workers = [(pid, process_start(pid)) for pid in eval(ran.result)]
        assert len(workers) == 2 and all(lives(*each) for each in workers)
        if way == "restart":
            made.restart()
            assert made.run("import megaflow; megaflow.jobs()").result == "[]"
        else:
            made.kill()
        wait_until(lambda: not any(lives(*each) for each in workers), END_SECONDS)
    finally:
        made.close()


def test_a_job_resumes_after_a_restart_of_the_kernel(tmp_path: Path) -> None:
    users = ["abcdefg"[number * number % 7] for number in range(3000)]
    (tmp_path / "users").write_text("\n".join(users))
    begin = BEGIN + """
def lines(flow):
    return flow.lines().map(lambda user: (user, 1)).stateful_state_machine(count)

kept = {"lines": "users", "state": "kept", "output": "jsonl:out.jsonl", "checkpoint_every": 0.1}
"""
    made = Kernel(tmp_path)
    try:
        assert not made.run(begin + "job = megaflow.start(lines, rate=1000, **kept)").error
        wait_until(lambda: len(records_of(tmp_path / "out.jsonl")) > 300, END_SECONDS)
        made.restart()
        assert len(records_of(tmp_path / "out.jsonl")) < len(users)
        ran = made.run(begin + "megaflow.run(lines, **kept)")
        assert not ran.error, ran.traceback
    finally:
        made.close()
    totals, expected = Counter[str](), list[list[Any]]()
    for user in users:
        totals[user] += 1
        expected.append([user, totals[user]])
    check_equal(sorted(records_of(tmp_path / "out.jsonl")), sorted(expected))
