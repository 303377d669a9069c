"""Statements of cards through Spark: the app's processor by Spark's tester, and the whole app on both engines."""

import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cluster.processes import Process
from tests.results import comparing

ROOT = Path(__file__).parents[2]


def test_a_card_gets_a_statement_for_each_hour_that_is_over() -> None:
    tester_of = pytest.importorskip("pyspark.sql.streaming.tws_tester").TwsTester
    from pyspark.sql import Row

    from apps.spark_cards import HOUR_MS, Statements

    tester = tester_of(Statements(), timeMode="EventTime", eventTimeExtractor=lambda row: row.at)

    def pay(*hours: int) -> None:
        rows = [Row(card="c1", at=hour * HOUR_MS + 1, hour=hour, amount=10 * place) for place, hour in enumerate(hours)]
        assert tester.test("c1", rows) == []

    pay(7, 6, 6)
    assert tester.setWatermark(7 * HOUR_MS) == [("c1", 6, 2, 30, 20, 30)]
    pay(7, 9)
    assert tester.setWatermark(8 * HOUR_MS - 1) == []
    assert tester.setWatermark(10 * HOUR_MS) == [("c1", 7, 2, 0, 0, 30), ("c1", 9, 1, 10, 10, 40)]


@pytest.mark.parametrize("name", ["cards", "orders"])
def test_folders_that_do_not_belong_together_are_refused(tmp_path: Path, name: str) -> None:
    pytest.importorskip("pyspark.sql.streaming.stateful_processor")
    from apps import spark_cards, spark_orders

    main = {"cards": spark_cards, "orders": spark_orders}[name].main
    alone = CliRunner().invoke(main, ["--checkpoint", "kept"])
    assert alone.exit_code == 2 and f"name also {'PAYMENTS' if name == 'cards' else 'ORDERS'} and --out" in alone.output
    used = CliRunner().invoke(main, ["--out", str(tmp_path)])
    assert used.exit_code == 2 and "is there already" in used.output


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("engine", ["megaflow", "spark"])
def test_the_statements_of_both_engines_are_those_of_a_batch(tmp_path: Path, engine: str) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("google.protobuf", reason="Spark needs protobuf for transformWithState")
    pytest.importorskip("pyspark.sql.streaming.stateful_processor")
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "apps" / "spark_cards.py"), "--engine", engine]
    app = Process(command, env=environment, cwd=tmp_path)
    try:
        ended = app.end(800.0)
    finally:
        app.finish()
    with comparing():  # the app compares its rows
        assert "not equal" not in ended.errors, ended.errors
    assert ended.code == 0, ended.errors
    last = ended.output.splitlines()[-1]
    assert last == "1,189 statements of 4,913 payments by 30 cards: equal to Spark's aggregation"
