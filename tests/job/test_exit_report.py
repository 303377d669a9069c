"""The last word of a process arrives, whatever it is and however the process ends."""

import os
import subprocess
import sys

import pytest

from megaflow.job.exit_report import LastWord, LastWordPipe, say_last_word

WORDS = [
    LastWord("failed", "ValueError: nö"),
    LastWord("lost", "lost process 2", (4, 5), "0-63, 200"),
    LastWord("lost", "\ud800\n" * 3, ()),
]


@pytest.mark.parametrize("word", WORDS)
def test_what_is_said_is_heard_and_then_the_end(word: LastWord) -> None:
    pipe = LastWordPipe()
    say_last_word(pipe.writing, word)
    assert not pipe.read()
    pipe.close_writing()
    assert pipe.read()
    assert pipe.word == word
    pipe.close()
    assert pipe.read(), "also when nothing is open any more"


def test_a_long_text_is_cut_from_the_front_and_never_blocks() -> None:
    pipe = LastWordPipe()
    say_last_word(pipe.writing, LastWord("lost", "\ud800" * 100_000 + "the end", (1,), "0, 2" * 100_000))
    pipe.close_writing()
    assert pipe.read()
    assert pipe.word is not None and pipe.word.text.endswith("the end")
    pipe.close()


def test_without_a_reader_or_a_pipe_nothing_happens() -> None:
    pipe = LastWordPipe()
    pipe.close()
    say_last_word(pipe.writing, LastWord("failed", "unheard"))
    pipe.close_writing()
    say_last_word(None, LastWord("failed", "unheard"))


def test_a_process_that_dies_silently_is_noticed() -> None:
    pipe = LastWordPipe()
    command = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    with subprocess.Popen(command, pass_fds=[pipe.writing]) as process:
        pipe.close_writing()
        process.wait()
    os.set_blocking(pipe.fileno(), True)
    assert pipe.read()
    assert pipe.word is None
    pipe.close()
