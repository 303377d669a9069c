"""Several inputs of lines on real processes: joined by key, with a store, through kills."""

import ast
import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from megaflow.errors import PeerFailed
from megaflow.job.launcher.run.python_function import run
from tests.apps.paid import Shop
from tests.cluster.processes import ROOT, STATUS_SECONDS, Run, committed, wait_until
from tests.results import check_equal

pytestmark = pytest.mark.cluster

APP = str(ROOT / "apps" / "paid_orders.py")


@pytest.mark.parametrize("processes", [pytest.param("1", marks=pytest.mark.slow), "2"])
def test_orders_are_joined_with_their_payments(start: Callable[..., Run], tmp_path: Path, processes: str) -> None:
    shop = Shop(tmp_path / "shop", 500)
    code, output, said = start(APP, *shop.words, "--processes", processes).end()
    assert code == 0, said
    check_equal(Counter(map(ast.literal_eval, output.splitlines())), shop.wanted)
    assert f"{shop.lines} lines" in said[-1], said


def both(flow):  # type: ignore[no-untyped-def]
    left, right, third = (flow.lines(name).map(lambda line, name=name: (name, line)) for name in ("a", "b", "c"))
    return left.concat(right, third)


@pytest.mark.slow
def test_from_python_each_is_what_lines_may_be_and_all_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1\n2\n")
    lines = {"a": tmp_path / "a.txt", "b": iter(["3", "4"]), "c": (str(each) for each in range(5, 1000))}
    records = run(both, lines=lines, processes=2)
    wanted = {"a": ["1", "2"], "b": ["3", "4"], "c": [str(each) for each in range(5, 1000)]}
    check_equal({name: [line for other, line in records if other == name] for name in wanted}, wanted)
    with pytest.raises(PeerFailed, match="reads the lines 'c', but the job was given the lines 'a' and 'b'"):
        run(both, lines={"a": ["x"], "b": []})


def at_one_pace(flow):  # type: ignore[no-untyped-def]
    dense, sparse = (
        flow.lines(name).map(lambda line, name=name: (name, int(line.split()[0]))).event_time(lambda each: each[1])
        for name in ("dense", "sparse")
    )
    return dense.concat(sparse).plain()


def test_dense_input_does_not_run_ahead_of_a_sparse_one(tmp_path: Path) -> None:
    seconds = 40_000
    for name, step in (("dense", 1), ("sparse", 20)):
        lines = (f"{second:06} {'.' * 80}\n" for second in range(0, seconds, step))
        (tmp_path / name).write_text("".join(lines))
    records = run(at_one_pace, lines={name: tmp_path / name for name in ("dense", "sparse")}, processes=1)
    check_equal(len(records), seconds + seconds // 20)
    front = {"dense": 0, "sparse": 0}
    for name, second in records:
        front[name] = second
        assert abs(front["dense"] - front["sparse"]) <= seconds / 4, "a batch of the sparse one is 1,400 seconds"


@pytest.mark.slow
def test_skew_of_two_workers_is_bounded(tmp_path: Path) -> None:
    seconds, skew = 20_000, 1000
    for name, step in (("dense", 1), ("sparse", 20)):
        lines = (f"{second:06} {'.' * 80}\n" for second in range(0, seconds, step))
        (tmp_path / name).write_text("".join(lines))
    paths = {name: tmp_path / name for name in ("dense", "sparse")}
    records = run(at_one_pace, lines=paths, processes=2, max_skew=skew, rate=4000)
    check_equal(len(records), seconds + seconds // 20)
    front, ends, compared = {"dense": 0, "sparse": 0}, {"dense": seconds - 1, "sparse": seconds - 20}, 0
    for name, second in records[len(records) // 5 :]:  # once limits are known
        front[name] = second
        if all(0 < front[each] < ends[each] for each in front):
            assert abs(front["dense"] - front["sparse"]) <= seconds / 4, "a skew, and two batches of 1,400 seconds"
            compared += 1
    assert compared, "one input was read to its end before the other began"


PARSED = """
def dataflow(flow):
    orders = flow.json_lines("orders", on_error="skip").map(lambda order: order["n"])
    return orders.concat(flow.csv("rows", on_error="skip", as_=tuple, header=False).map(lambda row: int(row[0])))
"""


@pytest.mark.slow
def test_lines_that_are_skipped_are_told_once_and_counted(start: Callable[..., Run], tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(PARSED)
    for number in range(4):
        lines = [f'{{"n": {n}}}' if n % 10 else "{broken" for n in range(200)]
        (tmp_path / f"{number}.jsonl").write_text("\n".join(lines))
    (tmp_path / "rows.csv").write_text("1\n2\n")
    inputs = ["--lines", f"orders={tmp_path}/*.jsonl", "--lines", f"rows={tmp_path}/rows.csv"]
    job = start(str(tmp_path / "app.py"), *inputs, "--processes", "2", "--rate", "20")
    status = job.status_when(lambda status: any(worker.get("skipped") for worker in status["workers"]))
    assert {name for worker in status["workers"] for name in worker.get("skipped", {})} == {"orders"}
    assert re.search(r"\d+ faults? skipped \(orders \d+\)", job.control("status").stdout)
    job.process.kill()
    job.end()
    code, output, said = start(str(tmp_path / "app.py"), *inputs, "--processes", "2").end()
    assert code == 0, said
    check_equal(Counter(output.split()), {**{str(n): 4 for n in range(200) if n % 10}, "1": 5, "2": 5}, said)
    assert "802 lines, 722 records, " in said[-1] and said[-1].endswith("80 faults skipped (orders 80)"), said
    told = [line for line in said if "is not JSON" in line]
    assert len(told) == 1 and re.search(r"line \d*1 of '.*\.jsonl' is not JSON: .* the line is '{broken'; it", told[0])


@pytest.mark.slow
def test_each_order_is_told_once_though_workers_and_launcher_are_killed(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    shop, store, out = Shop(tmp_path / "shop", 900), tmp_path / "store", tmp_path / "out.jsonl"
    words = [APP, *shop.words, "--state", str(store), "--output", f"jsonl:{out}", "--checkpoint-every", "0.1"]

    def await_more() -> None:
        before = committed(store)
        wait_until(lambda: committed(store) > before, STATUS_SECONDS)

    for worker in (1, 0):
        job = start(*words, "--processes", "2", "--rate", "10")  # it would take minutes to the end
        await_more()
        os.kill(job.status()["workers"][worker]["pid"], signal.SIGKILL)
        await_more()
        job.process.kill()
        job.end()
    code, _, said = start(*words).end()
    assert code == 0, said
    with out.open() as lines:
        check_equal(Counter(tuple(json.loads(line)["record"]) for line in lines), shop.wanted)
    assert "resumes from checkpoint" in "".join(said), said
    other = ["--lines", f"orders={shop.inputs['payments']}", "--lines", f"payments={shop.inputs['orders']}"]
    code, _, said = start(APP, *other, *words[5:]).end()
    assert code == 1 and "was read as the lines 'orders' before, and now as the lines 'payments'" in said[-1], said
