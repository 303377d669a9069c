"""The Java for Spark is found where Spark's scripts look. If there is none, one clear line says so."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from pyspark.version import __version__

from megaflow.errors import SourceError
from megaflow.spark.preflight import check_installation, find_java, folder_of_a_session, java_version


def fake_java(folder: Path, banner: str) -> Path:
    folder.mkdir(parents=True)
    java = folder / "java"
    java.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
    java.chmod(0o755)
    return java


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    at_home = fake_java(tmp_path / "home" / "bin", 'openjdk version "21" 2023-09-19')
    on_path = fake_java(tmp_path / "path", 'openjdk version "17.0.15" 2025-04-15')
    path = f"{tmp_path / 'path'}:/bin:/usr/bin"
    assert find_java({"JAVA_HOME": str(tmp_path / "home"), "PATH": path}) == str(at_home)
    assert find_java({"PATH": path}) == str(on_path)


def test_what_a_killed_process_has_written_goes_and_what_others_have_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, new, other = (tmp_path / f"{name}-abc" for name in ("megaflow-spark-left", "megaflow-spark-new", "other"))
    for folder in (left, new, other):
        folder.mkdir()
    (left / "spark.log").touch()
    with folder_of_a_session() as own:
        for folder in (left, other, own):
            os.utime(folder, (0, 0))
        with folder_of_a_session() as second:
            assert sorted(tmp_path.iterdir()) == sorted([own, second, new, other])
    assert sorted(tmp_path.iterdir()) == sorted([new, other])


EXITING = """
import os, sys, threading
from megaflow.spark.preflight import folder_of_a_session

def work():
    with folder_of_a_session() as folder:
        folders.append(folder)
        begun.set()
        over.wait()

folders, begun, over = [], threading.Event(), threading.Event()
threading.Thread(target=work).start()
begun.wait()
if not os.fork():
    sys.exit()
os.wait()
print(folders[0].exists())
over.set()
"""


def test_fork_that_exits_leaves_folder_to_its_parent() -> None:
    command = [sys.executable, "-W", "ignore", "-c", EXITING]
    assert subprocess.run(command, capture_output=True, text=True, timeout=180, check=True).stdout == "True\n"


def test_no_java_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    for environ, why in [
        ({"PATH": ""}, "JAVA_HOME is not set"),
        ({}, "JAVA_HOME is not set"),
        ({"JAVA_HOME": str(tmp_path), "PATH": "/usr/bin"}, f"JAVA_HOME is {tmp_path}"),
    ]:
        with pytest.raises(SourceError) as error:
            find_java(environ)
        message = str(error.value)
        assert message.startswith(f"Spark needs Java 17 or newer, but there is none ({why}). Install one")
        assert "\n" not in message


def test_an_old_java_is_named_with_its_version(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "bin", 'openjdk version "11.0.2" 2019-01-15')
    with pytest.raises(SourceError, match=f"needs Java 17 or newer, but {java} is Java 11. Install one"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_a_java_that_says_nothing_is_refused(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "bin", "The operation could not be completed.")
    with pytest.raises(SourceError, match=f"{java} does not report its version"):
        find_java({"JAVA_HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("banner", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_401"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ("", 0),
    ],
)
def test_the_version_is_read_from_the_banner(banner: str, version: int) -> None:
    assert java_version(banner) == version


def test_another_spark_at_spark_home_is_named_with_both_versions(tmp_path: Path) -> None:
    fake_java(tmp_path / "java", 'openjdk version "17.0.15" 2025-04-15')
    home, jars = tmp_path / "spark", tmp_path / "spark" / "jars"
    environ = {"PATH": f"{tmp_path / 'java'}:/bin:/usr/bin", "SPARK_HOME": str(home)}
    with pytest.raises(SourceError, match=f"SPARK_HOME={home}: There is no Spark .* Unset SPARK_HOME"):
        check_installation(environ)
    for folder in (home / "bin", jars):
        folder.mkdir(parents=True)
    (home / "bin" / "spark-submit").touch()
    check_installation(environ)  # of an unknown version
    own = jars / f"spark-core_2.13-{__version__}.jar"
    own.touch()
    check_installation(environ)
    own.rename(jars / "spark-core_2.12-3.5.1.jar")
    with pytest.raises(SourceError, match=rf"has Spark 3\.5\.1, but this Python has PySpark {__version__}\. Unset"):
        check_installation(environ)
    check_installation({**environ, "PYSPARK_GATEWAY_PORT": "1"})  # of spark-submit, which has started Java
