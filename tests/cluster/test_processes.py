"""Tests of the tests' own processes: all their output arrives, in every way to wait for it."""

import sys

import pytest

from tests.cluster.processes import Process

pytestmark = pytest.mark.cluster


def test_lines_that_came_together_with_an_awaited_one_are_not_lost() -> None:
    process = Process([sys.executable, "-c", "import sys; sys.stdout.write('one\\ntwo\\nthree\\n')"])
    process.await_line("two")
    ended = process.end()
    assert (ended.code, ended.output, ended.errors) == (0, "one\ntwo\nthree\n", "")
    assert (process.read_line(), process.read_line()) == ("three\n", "")
