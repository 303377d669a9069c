"""One Spark session for all tests here that need one, and a cluster of two machines for those that need that."""

from collections.abc import Iterator
from contextlib import ExitStack, chdir
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from megaflow.spark.spark_session import spark_session

    foreign = tmp_path_factory.mktemp("foreign")  # Spark starts here; its Python must not import from it
    (foreign / "socket.py").write_text("raise RuntimeError('foreign code')")
    with ExitStack() as stack:
        with chdir(foreign):
            session = stack.enter_context(spark_session(tmp_path_factory.mktemp("spark")))
        session.conf.set("spark.sql.execution.pythonUDF.arrow.enabled", "false")
        session.conf.set("spark.sql.shuffle.partitions", "2")
        yield session


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Any]:
    from tests.spark.standalone import standalone

    with standalone(tmp_path) as cluster:
        yield cluster
