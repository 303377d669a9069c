"""The command line of engine programs."""

from pathlib import Path

import pytest

from megaflow.errors import UsageError
from megaflow.timely.arguments import parse


def test_without_options_there_is_one_worker_in_one_process() -> None:
    options = parse([])
    assert (options.workers, options.processes, options.process, options.rest) == (1, 1, 0, ())
    assert (options.report, options.connect_timeout_seconds) == (False, 30.0)


@pytest.mark.parametrize("words", [["-w2"], ["-w", "2"], ["--workers", "2"], ["--workers=2"]])
def test_options_may_be_written_as_is_usual(words: list[str]) -> None:
    assert parse(words).workers == 2


def test_positionals_may_stand_anywhere_and_all_after_two_dashes_is_left_alone() -> None:
    options = parse(["20", "-n2", "200", "-p1", "-r", "--", "-w9", "--", "x"])
    assert options.rest == ("20", "200", "-w9", "--", "x")
    assert (options.processes, options.process, options.workers, options.report) == (2, 1, 1, True)


def test_a_negative_number_is_a_positional() -> None:
    assert parse(["-5"]).rest == ("-5",)


def test_processes_on_one_machine_have_consecutive_ports() -> None:
    assert parse(["-n3"]).addresses == ("localhost:2101", "localhost:2102", "localhost:2103")


def test_a_host_file_has_an_address_a_line(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("one:1\n\n  two:2  \nthree:3\n")
    assert parse(["-n2", "-h", str(hosts)]).addresses == ("one:1", "two:2")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--wrokers", "2"], r"unrecognized arguments: --wrokers"),
        (["-x"], r"unrecognized arguments: -x"),
        (["--worker", "2"], r"unrecognized arguments: --worker"),
        (["-w", "two"], r"-w/--workers: invalid int value: 'two'"),
        (["-w"], r"-w/--workers: expected one argument"),
        (["-w0"], r"-w 0: there must be at least one worker in a process"),
        (["-n0"], r"-n 0: there must be at least one process"),
        (["-n2", "-p2"], r"-p 2: with -n 2 processes are 0 to 1"),
        (["-p", "-1"], r"-p -1: with -n 1 processes are 0 to 0"),
        (["--connect-timeout", "0"], r"--connect-timeout 0.0: must be more than 0 seconds"),
        (["-h", "/does/not/exist"], r"-h /does/not/exist: No such file or directory"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_was_written(words: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse(words)


def test_too_few_addresses_are_counted(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("one:1\n")
    with pytest.raises(UsageError, match=r"hosts: 1 addresses for 2 processes \(-n\)"):
        parse(["-n2", "-h", str(hosts)])


def test_a_host_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="hosts: "):
        parse(["-n2", "-h", str(hosts)])


def test_a_usage_error_shows_the_usage() -> None:
    with pytest.raises(UsageError, match=r"usage: program .*-w W.*-n N.*-p P.*-h FILE"):
        parse(["--nothing"])
