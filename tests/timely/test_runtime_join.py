"""execute: processes that join a running cluster, or are refused."""

import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from megaflow.errors import ConfigMismatch, ConnectTimeout, JoinDenied, UsageError
from megaflow.program import Worker, execute, execute_from_args
from megaflow.timely import InputHandle, ProbeHandle
from megaflow.timely.runtime import Config
from tests.ports import closed_port, free_ports

PATIENCE_SECONDS = 90.0
SECRET = b"of the tests"
ROUNDS = 12

Main = Callable[[Worker], Any]


class Processes:
    """Processes of one cluster as threads of this one."""

    def __init__(self) -> None:
        self.addresses: list[str] = []

    def start(self, processes: int, workers: int, main: Main) -> "list[Future[list[Any]]]":
        """Start the founders."""
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(processes)]
        self.addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
        return [
            self.run(Config.cluster(self.addresses, process, workers, listener, secret=SECRET), main)
            for process, listener in enumerate(listeners)
        ]

    def join(self, main: Main, workers: int = 1, server: int | None = None, **more: Any) -> "Future[list[Any]]":
        """Start a joining process, by default on any port."""
        config = {"address": "127.0.0.1:0", "secret": SECRET, "contact": self.addresses} | more
        return self.run(Config.join(workers=workers, server=server, **config), main)

    def run(self, config: Config, main: Main) -> "Future[list[Any]]":
        return in_thread(execute, config, main)


@pytest.fixture
def processes() -> Processes:
    return Processes()


def in_thread(function: Callable[..., Any], *args: Any) -> "Future[Any]":
    """Call in a thread that does not keep a failed test from ending."""
    future: Future[Any] = Future()

    def call() -> None:
        try:
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return future


class Rounds:
    """Worker 0 sends numbers, each to one worker; the first round waits until `workers` workers are there."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.running = threading.Event()
        self.released = threading.Event()  # the members may proceed

    def __call__(self, worker: Worker) -> tuple[int, list[int]]:
        seen: list[int] = []
        numbers: InputHandle[int] = InputHandle()
        probe = ProbeHandle()
        with worker.dataflow("rounds") as scope:
            scope.input_from(numbers).exchange(lambda x: x).inspect(seen.append).probe_with(probe)
        if worker.bootstrap():
            return worker.index, seen
        self.running.set()
        worker.step_while(lambda: worker.peers < self.workers and not self.released.is_set())
        for number in range(ROUNDS):
            if worker.index == 0:
                numbers.send(number)
            numbers.advance_to(number + 1)
            worker.step_while(lambda: probe.less_than(numbers.time))
        return worker.index, seen


def results(started: "Sequence[Future[list[Any]]]") -> dict[int, list[int]]:
    return dict(result for future in started for result in future.result(PATIENCE_SECONDS))


def shares(workers: int) -> dict[int, list[int]]:
    return {worker: list(range(worker, ROUNDS, workers)) for worker in range(workers)}


@pytest.mark.parametrize(("founders", "workers", "server"), [(2, 1, 0), (2, 1, None), (1, 2, 1), (2, 2, 3)])
def test_a_process_that_joins_gets_its_share(
    processes: Processes, founders: int, workers: int, server: int | None
) -> None:
    everybody = (founders + 1) * workers
    main = Rounds(everybody)
    started = processes.start(founders, workers, main)
    started.append(processes.join(main, workers, server))
    assert results(started) == shares(everybody)


def test_two_that_ask_at_once_join_one_after_the_other(processes: Processes) -> None:
    main = Rounds(4)
    started = processes.start(2, 1, main)
    started += [processes.join(main), processes.join(main)]
    assert results(started) == shares(4)


def test_a_process_may_join_with_a_listener_of_its_own(processes: Processes) -> None:
    main = Rounds(2)
    started = processes.start(1, 1, main)
    listener = socket.create_server(("127.0.0.1", 0))
    started.append(processes.join(main, contact=processes.addresses[0], address=None, listener=listener))
    assert results(started) == shares(2)


def test_a_program_that_does_not_ask_for_it_lends_a_hand_all_the_same(processes: Processes) -> None:
    main = Rounds(2)

    def forgetful(worker: Worker) -> tuple[int, list[int]]:
        seen: list[int] = []
        with worker.dataflow("rounds") as scope:
            handle: InputHandle[int] = InputHandle()
            scope.input_from(handle).exchange(lambda x: x).inspect(seen.append).probe_with(ProbeHandle())
        return worker.index, seen

    started = processes.start(1, 1, main)
    started.append(processes.join(forgetful))
    assert results(started) == shares(2)


def test_what_serves_roles_may_depend_on_the_ids_of_the_workers(processes: Processes) -> None:
    main = Rounds(2)
    heard: list[tuple[int, ...]] = []

    def roles(ids: tuple[int, ...]) -> dict[str, Any]:
        heard.append(ids)
        return {}

    started = processes.start(1, 1, main)
    started.append(processes.join(main, roles=roles))
    assert results(started) == shares(2)
    assert heard == [(1,)]


# Not let in ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"workers": 2}, JoinDenied, "this process may not join: it has 2 workers, but .* has 1"),
        ({"server": 9}, JoinDenied, "there is no worker 9"),
        ({"secret": b"another"}, ConfigMismatch, "this process cannot join: .*the same MEGAFLOW_SECRET"),
    ],
)
def test_who_is_not_let_in_learns_why_and_the_others_go_on(
    processes: Processes, more: dict[str, Any], error: type[Exception], said: str
) -> None:
    main = Rounds(2)
    started = processes.start(1, 1, main)
    assert main.running.wait(PATIENCE_SECONDS)
    with pytest.raises(error, match=said):
        processes.join(main, **more).result(PATIENCE_SECONDS)
    started.append(processes.join(main))
    assert results(started) == shares(2)


def test_a_joining_process_that_fails_before_it_takes_part_stops_nobody(processes: Processes) -> None:
    main = Rounds(2)

    def failing(worker: Worker) -> None:
        raise ZeroDivisionError("before bootstrap")

    started = processes.start(1, 1, main)
    with pytest.raises(ZeroDivisionError, match="before bootstrap"):
        processes.join(failing).result(PATIENCE_SECONDS)
    main.released.set()
    assert results(started) == {0: list(range(ROUNDS))}


def test_where_nobody_is_there_to_ask_the_contacts_are_named(processes: Processes) -> None:
    with closed_port() as (host, port):
        joining = processes.join(Rounds(1), contact=f"{host}:{port}", connect_timeout_seconds=0.2)
        wanted = rf"this process could not join within 0.2 s: {host}:{port} \((Connection refused|not tried)\)"
        with pytest.raises(ConnectTimeout, match=wanted):
            joining.result(PATIENCE_SECONDS)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"this process cannot listen on 127.0.0.1:{port}: "):
            execute(Config.join("127.0.0.1:1", f"127.0.0.1:{port}", secret=b"x"), lambda worker: None)


def test_listening_for_other_machines_needs_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEGAFLOW_SECRET", raising=False)
    with pytest.raises(UsageError, match=r"this process would listen on 0.0.0.0:1, which other machines can reach"):
        execute(Config.join("127.0.0.1:1", "0.0.0.0:1"), lambda worker: None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"contact": []}, "name at least one process to ask"),
        ({"contact": "localhost:1", "workers": 0}, "0 workers: there must be at least one worker"),
        ({"contact": "localhost:1", "address": None}, "give the address of this process"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Config.join(**{"address": "localhost:2"} | given)


@pytest.mark.parametrize("given", [("localhost", "localhost:2"), ("localhost:1", "here")])
def test_what_is_no_address_is_refused(given: tuple[str, str]) -> None:
    with pytest.raises(UsageError, match="is not an address; write host:port"):
        execute(Config.join(*given, secret=b"x"), lambda worker: None)


# Leaving, and coming again ------------------------------------------------------------------


def test_grow_shrink_and_grow_on_the_same_address(processes: Processes) -> None:
    main = Rounds(4)

    def leaving(worker: Worker) -> int:
        with worker.dataflow("rounds") as scope:
            handle: InputHandle[int] = InputHandle()
            scope.input_from(handle).exchange(lambda x: x).inspect(lambda x: None).probe_with(ProbeHandle())
        assert worker.bootstrap()
        worker.retire()
        return worker.index

    started = processes.start(2, 1, main)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    for index in (2, 3):
        assert processes.join(leaving, address=address).result(PATIENCE_SECONDS) == [index]
    started += [processes.join(main, address=address), processes.join(main)]
    found = results(started)
    assert sorted(found) == [0, 1, 4, 5]
    assert sorted(found.values()) == sorted(shares(4).values())


# The command line ---------------------------------------------------------------------------


def test_a_process_joins_by_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGAFLOW_SECRET", "of the tests")
    main = Rounds(3)
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"127.0.0.1:{port}\n" for port in free_ports(3)))
    lines = [["-n2", "-p0"], ["-n2", "-p1"], ["-n2", "-p2", "--join", "0", "--nn", "3"]]
    started = [in_thread(execute_from_args, main, [*words, "-h", str(hosts)]) for words in lines]
    assert results(started) == shares(3)


def test_a_single_process_that_is_told_of_more_addresses_can_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MEGAFLOW_SECRET", "of the tests")
    main = Rounds(2)
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"127.0.0.1:{port}\n" for port in free_ports(2)))
    lines = [["--nn", "2"], ["-p1", "--join", "0", "--nn", "2"]]
    started = [in_thread(execute_from_args, main, [*words, "-h", str(hosts)]) for words in lines]
    assert results(started) == shares(2)
