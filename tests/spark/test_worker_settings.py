"""Settings that would kill workers, and unsuitable masters, are refused before Spark starts; files that are shipped."""

import socket
import zipfile
from pathlib import Path

import pytest

from megaflow.errors import ClusterError, UsageError
from megaflow.spark import cluster
from megaflow.spark.cluster import worker_jobs
from megaflow.spark.masters import check_master
from megaflow.spark.shipping import ship
from megaflow.spark.worker_settings import check_settings, parse_conf, parse_on


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"spark.speculation": "true", "spark.speculation.task.duration.threshold": "60s"},
         "spark.speculation.task.duration.threshold=60s"),
        ({"spark.python.worker.killOnIdleTimeout": "true", "spark.python.worker.idleTimeoutSeconds": "60"},
         "spark.python.worker.idleTimeoutSeconds=60"),
        ({"spark.executor.pyspark.memory": "2g"}, "spark.executor.pyspark.memory=2g"),
        ({"spark.executor.memory": "400m"}, "spark.executor.memory=400m"),
    ],
)  # fmt: skip
def test_a_setting_that_would_kill_workers_is_refused_by_name(settings: dict[str, str], name: str) -> None:
    with pytest.raises(UsageError, match=name):
        check_settings(settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"spark.speculation": "true"},
        {"spark.python.worker.idleTimeoutSeconds": "60"},
        {"spark.python.worker.killOnIdleTimeout": "true", "spark.python.worker.idleTimeoutSeconds": "0"},
        {"spark.executor.memory": "900m"},
    ],
)
def test_others_are_not(settings: dict[str, str]) -> None:
    check_settings(settings)


@pytest.mark.parametrize("wrong", ["memory=1g", "spark.executor.memory", "spark.master=local"])
def test_a_setting_must_be_one_of_spark_s(wrong: str) -> None:
    with pytest.raises(UsageError, match=f"--conf {wrong}: "):
        parse_conf([wrong])


@pytest.mark.parametrize("wrong", ["", "yarn", "spark:", "local[2]"])
def test_a_place_must_be_spark(wrong: str) -> None:
    with pytest.raises(UsageError, match=r"must be spark or spark:MASTER"):
        parse_on(wrong)


def test_a_master_with_too_few_slots_is_refused_with_both_numbers_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "check_installation", lambda: None)
    with (
        pytest.raises(UsageError, match=r"spark:local\[2\]: 2 .* Spark's own source need 3 slots, but Spark has 2: "),
        worker_jobs("local[2]", {}, None, (), 2, True),
    ):
        pass


def test_a_master_that_does_not_answer_is_named_before_spark_starts() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # and does not listen
        place = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(ClusterError, match=rf"No Spark master answers at {place} \(Connection refused\)"):
            check_master(f"spark://{place}")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        check_master(f"spark://{place},127.0.0.1:{listener.getsockname()[1]}")
    check_master("local[2]")


def test_the_app_its_neighbours_and_megaflow_are_sent_and_no_more(tmp_path: Path) -> None:
    app, package, data = tmp_path / "app.py", tmp_path / "package", tmp_path / "data"
    for folder in (package, data, tmp_path / ".hidden", tmp_path / "out"):
        folder.mkdir()
    for name in ("app.py", "more.py", "package/__init__.py", "package/deep.py", "data/x.py", "data/table"):
        file = tmp_path / name
        file.write_text("pass")
    name, path = ship(tmp_path / "out", str(app), [str(data)])
    names = set(zipfile.ZipFile(path).namelist())
    assert {each for each in names if each.startswith("app/")} == {
        "app/app.py", "app/more.py", "app/package/__init__.py", "app/package/deep.py", "app/data/x.py",
        "app/data/table",
    }  # fmt: skip
    assert {"lib/megaflow/__init__.py", "lib/megaflow/job/worker/process/child.py", "deps/msgpack/__init__.py",
            "deps/sortedcontainers/__init__.py"} <= names
    assert not [each for each in names if "__pycache__" in each]
    assert ship(tmp_path / "out", str(app), [str(data)])[0] == name, "what is the same has the same name"
    (tmp_path / "more.py").write_text("1")
    assert ship(tmp_path / "out", str(app), [str(data)])[0] != name
    with pytest.raises(UsageError, match="--ship /nowhere"):
        ship(tmp_path / "out", str(app), ["/nowhere"])
