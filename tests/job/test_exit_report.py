"""The last message of a process arrives, whatever it contains and however the process ends."""

import os
import subprocess
import sys

import pytest

from megaflow.job.exit_report import ExitReport, ReportPipe, say_stays, write_report

WORDS = [
    ExitReport("failed", "ValueError: nö"),
    ExitReport("lost", "lost process 2", (4, 5), "0-63, 200"),
    ExitReport("lost", "\ud800\n" * 3, ()),
]


@pytest.mark.parametrize("word", WORDS)
def test_what_is_said_is_heard_and_then_the_end(word: ExitReport) -> None:
    pipe = ReportPipe()
    write_report(pipe.writing, word)
    assert not pipe.read()
    pipe.close_writing()
    assert pipe.read()
    assert pipe.report == word
    pipe.close()
    assert pipe.read(), "also when nothing is open any more"


def test_one_that_stays_says_so_and_what_follows_is_of_another_part() -> None:
    pipe = ReportPipe()
    write_report(pipe.writing, WORDS[1])
    assert not pipe.wait(0.0) and pipe.report == WORDS[1]
    assert pipe.kept is None
    kept = (0, 3), (), (7,)
    say_stays(pipe.writing, kept)
    assert pipe.wait(180.0) and pipe.report == WORDS[1] and pipe.kept == kept
    pipe.begin_anew()
    assert not pipe.stays and pipe.report is None
    write_report(pipe.writing, WORDS[0])
    pipe.close_writing()
    assert not pipe.wait(180.0) and pipe.report == WORDS[0], "it has ended"
    pipe.close()


def test_one_that_has_said_a_part_of_what_it_has_does_not_stay_yet() -> None:
    pipe = ReportPipe()
    write_report(pipe.writing, WORDS[2])
    say_stays(pipe.writing, ((0, 3),))
    assert pipe.wait(180.0)
    whole = pipe.data
    for length in range(len(whole)):
        pipe.data = whole[:length]
        assert not pipe.stays and pipe.kept is None
    pipe.close_writing()
    pipe.close()


@pytest.mark.parametrize("character", ["\ud800", "\N{GRINNING FACE}", "\0"])
def test_a_long_text_is_cut_from_the_front_and_never_blocks(character: str) -> None:
    pipe = ReportPipe()
    os.set_blocking(pipe.writing, False)  # what does not fit would be cut, or wait for the reader
    write_report(pipe.writing, ExitReport("lost", character * 100_000 + "the end", (1,), "0, 2" * 100_000))
    pipe.close_writing()
    assert pipe.read()
    assert pipe.report is not None and pipe.report.text.endswith("the end")
    pipe.close()


def test_without_a_reader_or_a_pipe_nothing_happens() -> None:
    pipe = ReportPipe()
    pipe.close()
    write_report(pipe.writing, ExitReport("failed", "unheard"))
    pipe.close_writing()
    write_report(None, ExitReport("failed", "unheard"))


def test_a_process_that_dies_silently_is_noticed() -> None:
    pipe = ReportPipe()
    command = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    with subprocess.Popen(command, pass_fds=[pipe.writing]) as process:
        pipe.close_writing()
        process.wait()
    os.set_blocking(pipe.fileno(), True)
    assert pipe.read()
    assert pipe.report is None
    pipe.close()
