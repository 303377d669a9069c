"""apps/capture_send.py and apps/capture_recv.py with real processes: k senders, j receivers, over TCP."""

import os
import re
import select
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from megaflow.timely import Messages, Progress
from megaflow.timely.dataflow.capture.event_format import HEADER, encode_event
from tests.ports import free_ports
from tests.results import check_equal, comparing

pytestmark = pytest.mark.cluster

APPS = Path(__file__).resolve().parent.parent.parent / "apps"

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start an app in a separate process, with output and errors in one pipe."""
    running = []

    def starting(app: str, *words: object) -> "subprocess.Popen[str]":
        command = [sys.executable, str(APPS / app), *map(str, words)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            cwd=APPS.parent, env={**os.environ, "MEGAFLOW_SECRET": str(tmp_path)},
        )  # fmt: skip
        running.append(process)
        return process

    yield starting
    for process in running:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def ports_of(receivers: "list[subprocess.Popen[str]]", senders: int) -> list[int]:
    """Return the port for each sender, as the processes print them; process p has the senders p, p + processes, …"""
    ports = {}
    for number, process in enumerate(receivers):
        assert process.stdout is not None
        for _ in range(number, senders, len(receivers)):
            found = re.fullmatch(r"sender (\d+): port (\d+)\n", process.stdout.readline())
            assert found is not None
            ports[int(found[1])] = int(found[2])
    return [ports[sender] for sender in range(senders)]


def ended(process: "subprocess.Popen[str]") -> list[str]:
    """Return the rest of its output once it has ended without error."""
    output, _ = process.communicate()
    assert process.returncode == 0, output
    return output.splitlines()


def check(lines: list[str], senders: int) -> None:
    """Check that everything sent was replayed, and counted once, after everything else."""
    wanted = Counter({str(number): senders for number in range(10)})
    check_equal(Counter(line.split(": replayed ")[1] for line in lines if "replayed" in line), wanted)
    check_equal(lines[-1], f"time 0: {10 * senders} records")
    check_equal(sum(line.startswith("time") for line in lines), 1)


@pytest.mark.parametrize(
    ("senders", "receivers"),
    [(5, 3), *(pytest.param(*counts, marks=pytest.mark.slow) for counts in [(3, 5), (4, 1), (1, 3)])],
)
def test_what_k_workers_send_is_replayed_by_j_workers(start: Start, senders: int, receivers: int) -> None:
    """Case 35."""
    receiving = start("capture_recv.py", senders, "-w", receivers)
    sending = start("capture_send.py", *ports_of([receiving], senders), "-w", senders)
    check(ended(receiving), senders)
    assert ended(sending) == []


def free_addresses(path: Path, count: int) -> Path:
    """Write a file of addresses on which no process listens."""
    path.write_text("\n".join(f"127.0.0.1:{port}" for port in free_ports(count)))
    return path


def test_two_processes_replay_what_three_processes_send(start: Start, tmp_path: Path) -> None:
    """Case 35."""
    hosts = free_addresses(tmp_path / "receivers", 2)
    receiving = [start("capture_recv.py", 5, "-n2", f"-p{index}", "-h", hosts) for index in range(2)]
    ports = ports_of(receiving, 5)
    sending = [start("capture_send.py", port) for port in ports[:3]]
    hosts = free_addresses(tmp_path / "senders", 2)
    sending += [start("capture_send.py", *ports[3:], "-n2", f"-p{index}", "-h", hosts) for index in range(2)]
    first, second = map(ended, receiving)  # worker 0, which counts, is in the first process
    replayed = Counter(line.split(": replayed ")[1] for line in first + second if "replayed" in line)
    check_equal(replayed, Counter({str(number): 5 for number in range(10)}))
    check_equal([line for line in first + second if line.startswith("time")], ["time 0: 50 records"])
    assert {line.split(":")[0] for line in second} == {"worker 1"}
    assert [ended(process) for process in sending] == [[]] * 5


def test_a_time_is_counted_only_after_the_last_sender_has_ended(start: Start) -> None:
    """Case 35: the last sender is this test, which stops in the middle of an event."""
    receiving = start("capture_recv.py", 3, "-w", 2)
    assert receiving.stdout is not None
    *ports, last = ports_of([receiving], 3)
    with socket.create_connection(("127.0.0.1", last)) as connection:
        end = encode_event(Progress([(0, -1)]))
        sending = start("capture_send.py", *ports, "-w", 2)
        assert ended(sending) == []
        connection.sendall(HEADER + encode_event(Messages(0, list(range(10)))) + end[:-1])
        lines = [receiving.stdout.readline().rstrip() for _ in range(30)]
        check_equal([line for line in lines if line.startswith("time")], [])
        assert all("replayed" in line for line in lines)
        assert receiving.poll() is None
        with comparing():
            assert select.select([receiving.stdout], [], [], 0.2)[0] == []  # nothing counted: the last has not ended
        connection.sendall(end[-1:])
        check([*lines, *ended(receiving)], 3)


def test_a_sender_that_dies_in_the_middle_of_an_event_is_an_error(start: Start) -> None:
    receiving = start("capture_recv.py", 2, "-w", 2)
    first, last = ports_of([receiving], 2)
    start("capture_send.py", first)
    frame = encode_event(Messages(0, ["x"]))
    with socket.create_connection(("127.0.0.1", last)) as connection:
        connection.sendall(HEADER + frame[:-1])
    output, _ = receiving.communicate()
    assert receiving.returncode == 1
    with comparing():
        assert "'x'" not in output
        assert "records" not in output
    place = f"{len(frame) - 1} bytes into the event that begins at byte {len(HEADER)}"
    assert re.search(
        rf"SourceError: socket to 127\.0\.0\.1:\d+: ended at byte {len(HEADER) + len(frame) - 1}, {place}", output
    )
