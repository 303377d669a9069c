"""Tests that share something expensive run in one test process."""

import re
from pathlib import Path

import pytest

from tests.scheduling import CLUSTERS, OWN_GROUPS, group_of

TESTS = Path(__file__).parent


@pytest.mark.parametrize("file", sorted(CLUSTERS | OWN_GROUPS))
def test_files_with_groups_exist(file: str) -> None:
    assert (TESTS.parent / file).exists()


def test_tests_with_a_fixture_for_a_module_have_a_group() -> None:
    scoped = re.compile(r"scope=\"(module|package)\"\)?[^\n]*\ndef (\w+)")
    for home in TESTS.rglob("*.py"):
        names = [name for _, name in scoped.findall(home.read_text(encoding="utf-8"))]
        uses = re.compile(rf"def test_\w+\([^)]*\b({'|'.join(names)})\b")
        for path in home.parent.rglob("test_*.py") if home.name == "conftest.py" else [home]:
            case = f"{path.relative_to(TESTS.parent)}::test_it"
            assert not names or not uses.search(path.read_text(encoding="utf-8")) or group_of(case) != case, case


def test_tests_of_spark_have_two_groups() -> None:
    groups = {group_of(f"{path.relative_to(TESTS.parent)}::test_it") for path in (TESTS / "spark").glob("test_*.py")}
    assert groups == {"Spark session", "Spark clusters"}
