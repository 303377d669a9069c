"""Command line of engine programs: how many processes and workers, which process this is, and what it joins.

`-n` counts the processes that start together. A process that joins later (`--join SERVER`) gives the same number: it
may ask at the addresses of these processes. A higher number adds the next addresses, for when the first processes have
left. `-p` then only picks the joiner's own address, out of `--nn`.

argparse is imported only if there are arguments to read. The workers of a job read none.
"""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

from megaflow.errors import UsageError

_FIRST_PORT = 2101
_TIMEOUT_SECONDS_MAX = 1_000_000  # eleven days; the system counts milliseconds, only up to 2**31


class Arguments(SimpleNamespace):
    """Values of the options."""

    workers: int
    processes: int
    process: int
    hostfile: str | None
    join: int | None  # the worker that bootstraps this process; None: this process does not join a running cluster
    nn: int | None  # number of addresses; None: no process may join
    report: bool
    connect_timeout_seconds: float
    rest: tuple[str, ...]  # positionals and everything after --
    addresses: tuple[str, ...]  # of all processes that start together
    address: str  # of this process


def parse(argv: Sequence[str]) -> Arguments:
    """Read the options. Raises UsageError for unknown options and numbers that do not fit together; `--help` exits.

    >>> parse(["20", "-w2", "--", "-x"]).rest
    ('20', '-x')
    >>> parse(["-n2", "-p1"]).addresses
    ('localhost:2101', 'localhost:2102')
    """
    parser = import_module("argparse").ArgumentParser(prog="program", add_help=False, allow_abbrev=False)

    def refuse(message: str) -> NoReturn:
        raise UsageError(f"{message}. {' '.join(parser.format_usage().split())}")

    parser.error = refuse
    parser.add_argument("-w", "--workers", type=int, default=1, metavar="W", help="workers in each process")
    parser.add_argument("-n", "--processes", type=int, default=1, metavar="N", help="number of processes")
    parser.add_argument("-p", "--process", type=int, default=0, metavar="P", help="index of this process, from 0")
    parser.add_argument("-h", "--hostfile", metavar="FILE", help="host:port of each process, one a line")
    parser.add_argument("-j", "--join", type=int, metavar="SERVER", help="join a running cluster through worker SERVER")
    parser.add_argument("--nn", type=int, metavar="N", help="number of addresses, including those of processes that "
                                                            "join later")
    parser.add_argument("-r", "--report", action="store_true", help="report connections")
    parser.add_argument("--debug", action="store_true", help="keep the engine's frames in tracebacks")
    seconds = {"metavar": "SECONDS", "dest": "connect_timeout_seconds"}
    parser.add_argument("--connect-timeout", type=float, default=30.0, **seconds)
    parser.add_argument("--help", action="help", help="show this and exit")
    parser.add_argument("rest", nargs="*", metavar="args", help="the program's own")
    end = argv.index("--") if "--" in argv else len(argv)
    options: Arguments = parser.parse_intermixed_args(argv[:end], Arguments())
    options.rest = (*options.rest, *argv[end + 1 :])
    _check(options)
    addresses = _addresses(options)
    options.addresses, options.address = addresses[: options.processes], addresses[options.process]
    return options


def _check(options: Arguments) -> None:
    if options.workers < 1:
        raise UsageError(f"-w {options.workers}: there must be at least one worker in a process")
    if options.processes < 1:
        raise UsageError(f"-n {options.processes}: there must be at least one process")
    if options.nn is not None and options.nn < options.processes:
        raise UsageError(
            f"--nn {options.nn}: the cluster starts with {options.processes} processes (-n); give at least as many"
        )
    if options.join is None:
        _check_process(options, "-n", options.processes)
    else:
        _check_join(options, options.join)
    if not 0 < options.connect_timeout_seconds <= _TIMEOUT_SECONDS_MAX:
        raise UsageError(
            f"--connect-timeout {options.connect_timeout_seconds:g}: give more than 0 and at most "
            f"{_TIMEOUT_SECONDS_MAX} seconds"
        )


def _check_process(options: Arguments, option: str, count: int) -> None:
    if not 0 <= options.process < count:
        raise UsageError(f"-p {options.process}: with {option} {count}, processes are numbered 0 to {count - 1}")


def _check_join(options: Arguments, server: int) -> None:
    if server < 0:
        raise UsageError(f"--join {server}: name a running worker; worker ids start at 0")
    if options.nn is None and options.process >= options.processes:
        raise UsageError(
            f"-p {options.process}: with -n {options.processes} there are addresses for 0 to "
            f"{options.processes - 1}; give --nn {options.process + 1}, the number of addresses including those of "
            "processes that join"
        )
    _check_process(options, "--nn", options.nn or options.processes)
    if options.processes == 1 and options.process == 0:
        raise UsageError("-p 0: this process cannot join through itself; give it another address, as in -p 1 --nn 2")


def _addresses(options: Arguments) -> tuple[str, ...]:
    count = options.nn or options.processes
    if options.hostfile is None:
        return tuple(f"localhost:{_FIRST_PORT + process}" for process in range(count))
    try:
        lines = Path(options.hostfile).read_text(encoding="utf-8").split()
    except OSError as error:
        raise UsageError(f"-h {options.hostfile}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"-h {options.hostfile}: not a text file; write one host:port on each line") from error
    if len(lines) < count:
        option = "-n" if options.nn is None else "--nn"
        raise UsageError(f"-h {options.hostfile}: {len(lines)} addresses for {count} processes ({option})")
    return tuple(lines[:count])
