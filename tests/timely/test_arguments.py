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


def test_a_process_that_joins_names_the_server_and_picks_its_address() -> None:
    options = parse(["20", "200", "-n2", "-p2", "--join", "0", "--nn", "3"])
    assert (options.join, options.rest) == (0, ("20", "200"))
    assert parse(["20", "200", "-n2", "-p2", "-j0", "--nn", "3"]) == options
    assert (options.addresses, options.address) == (("localhost:2101", "localhost:2102"), "localhost:2103")


def test_a_process_may_join_at_the_address_of_a_founder_who_has_left() -> None:
    options = parse(["-n3", "-p1", "--join=7"])
    assert (options.join, options.address, options.nn) == (7, "localhost:2102", None)


def test_one_who_may_be_joined_is_told_so_or_not() -> None:
    assert (parse(["-n2"]).join, parse(["-n2"]).nn) == (None, None)
    options = parse(["-n1", "--nn", "2"])
    assert (options.nn, options.processes, options.addresses) == (2, 1, ("localhost:2101",))


def test_a_host_file_lists_those_that_join_after_the_others(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("one:1\ntwo:2\nthree:3\nfour:4\n")
    options = parse(["-n2", "-p3", "--join", "1", "--nn", "4", "-h", str(hosts)])
    assert (options.addresses, options.address) == (("one:1", "two:2"), "four:4")
    with pytest.raises(UsageError, match=r"hosts: 4 addresses for 5 processes \(--nn\)"):
        parse(["-n2", "--nn", "5", "-h", str(hosts)])


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
        (["-n2", "-p2"], r"-p 2: with -n 2, processes are numbered 0 to 1"),
        (["-p", "-1"], r"-p -1: with -n 1, processes are numbered 0 to 0"),
        (["--join"], r"--join: expected one argument"),
        (["--join", "a", "-p1", "--nn2"], r"--join: invalid int value: 'a'"),
        (["-n2", "-p2", "--join", "-1", "--nn", "3"], r"--join -1: name a running worker"),
        (["-n2", "-p2", "--join", "0"], r"-p 2: with -n 2 there are addresses for 0 to 1; give --nn 3"),
        (["-n2", "-p3", "--join", "0", "--nn", "3"], r"-p 3: with --nn 3, processes are numbered 0 to 2"),
        (["-n2", "-p-1", "--join", "0", "--nn", "3"], r"-p -1: with --nn 3, processes are numbered 0 to 2"),
        (["-n2", "-p2", "--nn", "3"], r"-p 2: with -n 2, processes are numbered 0 to 1"),
        (["-n3", "--nn", "2"], r"--nn 2: the cluster starts with 3 processes"),
        (["-p0", "--join", "0"], r"-p 0: this process cannot join through itself"),
        (["--connect-timeout", "0"], r"--connect-timeout 0: give more than 0"),
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


def test_help_says_what_each_option_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        parse(["20", "--help"])
    assert exit.value.code == 0
    assert "index of this process, from 0" in capsys.readouterr().out
