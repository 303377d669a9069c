"""The launcher reads a process's last heartbeat correctly, at any moment."""

import os
import threading

import pytest

from megaflow.job.exit_report import ReportPipe
from megaflow.job.heartbeat import BUSY_WRITTEN_MAX, READ_BYTES, Heartbeat, HeartbeatFile, LongStep, write_sign
from megaflow.timely.dataflow.running_place import TEXT_MAX

STEP = LongStep(1, 1.5, "fold", "app.py:12", "count", "'wörd'")


def test_the_last_sign_is_read_and_stays_known() -> None:
    file = HeartbeatFile(1.0)
    assert file.read() == Heartbeat(1.0)
    for sign in (Heartbeat(2.0, (STEP,)), Heartbeat(3.0)):
        write_sign(file.file, sign)
        assert file.read() == file.read() == sign
    file.close()
    assert file.read() == Heartbeat(3.0)
    file.close()


def test_a_file_is_closed_once_though_a_ctrl_c_comes_just_then(monkeypatch: pytest.MonkeyPatch) -> None:
    close = os.close

    def interrupted(file: int) -> None:
        close(file)
        raise KeyboardInterrupt

    pipe = ReportPipe()
    pipe.close_writing()
    for each in (HeartbeatFile(1.0), pipe):
        monkeypatch.setattr(os, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            each.close()
        each.close()
        monkeypatch.undo()


def test_what_is_half_written_is_not_taken() -> None:
    file = HeartbeatFile(1.0)
    write_sign(file.file, Heartbeat(2.0))
    os.pwrite(file.file, b"?", 12)
    assert file.read() == Heartbeat(1.0)
    os.truncate(file.file, 3)
    assert file.read() == Heartbeat(1.0)
    file.close()


def test_a_reader_never_sees_parts_of_two_signs() -> None:
    file = HeartbeatFile(0.0)
    signs = [Heartbeat(float(number), (STEP,) * (number % 5)) for number in range(1, 400)]
    writer = threading.Thread(target=lambda: [write_sign(file.file, sign) for sign in signs])
    writer.start()
    seen = []
    while writer.is_alive():
        seen.append(file.read())
    assert all(sign in signs for sign in seen if sign.now)
    assert file.read() == signs[-1]
    file.close()


def test_the_largest_sign_is_read_at_once() -> None:
    text = "\udfff" * TEXT_MAX
    busy = LongStep(1 << 62, 1e300, text, text * 2, text, text)
    file = HeartbeatFile(0.0)
    write_sign(file.file, Heartbeat(1.0, (busy,) * BUSY_WRITTEN_MAX * 2))
    assert file.read() == Heartbeat(1.0, (busy,) * BUSY_WRITTEN_MAX)
    assert os.fstat(file.file).st_size <= READ_BYTES
    file.close()
