"""The launcher reads a process's last sign of life, whatever moment it looks at."""

import os
import threading

import pytest

from megaflow.job.exit_report import ReportPipe
from megaflow.job.sign_of_life import BUSY_WRITTEN_MAX, READ_BYTES, LongStep, SignFile, SignOfLife, write_sign
from megaflow.timely.dataflow.running_place import TEXT_MAX

STEP = LongStep(1, 1.5, "fold", "app.py:12", "count", "'wörd'")


def test_the_last_sign_is_read_and_stays_known() -> None:
    file = SignFile(1.0)
    assert file.read() == SignOfLife(1.0)
    for sign in (SignOfLife(2.0, (STEP,)), SignOfLife(3.0)):
        write_sign(file.file, sign)
        assert file.read() == file.read() == sign
    file.close()
    assert file.read() == SignOfLife(3.0)
    file.close()


def test_a_file_is_closed_once_though_a_ctrl_c_comes_just_then(monkeypatch: pytest.MonkeyPatch) -> None:
    close = os.close

    def interrupted(file: int) -> None:
        close(file)
        raise KeyboardInterrupt

    pipe = ReportPipe()
    pipe.close_writing()
    for each in (SignFile(1.0), pipe):
        monkeypatch.setattr(os, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            each.close()
        each.close()
        monkeypatch.undo()


def test_what_is_half_written_is_not_taken() -> None:
    file = SignFile(1.0)
    write_sign(file.file, SignOfLife(2.0))
    os.pwrite(file.file, b"?", 12)
    assert file.read() == SignOfLife(1.0)
    os.truncate(file.file, 3)
    assert file.read() == SignOfLife(1.0)
    file.close()


def test_a_reader_never_sees_parts_of_two_signs() -> None:
    file = SignFile(0.0)
    signs = [SignOfLife(float(number), (STEP,) * (number % 5)) for number in range(1, 400)]
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
    file = SignFile(0.0)
    write_sign(file.file, SignOfLife(1.0, (busy,) * BUSY_WRITTEN_MAX * 2))
    assert file.read() == SignOfLife(1.0, (busy,) * BUSY_WRITTEN_MAX)
    assert os.fstat(file.file).st_size <= READ_BYTES
    file.close()
