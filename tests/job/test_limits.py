"""A limit's error is one sentence with the value of the limit and the remedy."""

import errno
import resource
import tempfile

import pytest

from megaflow.errors import LimitReached, MegaflowError, OutputError, StateKept, StoreError, UsageError
from megaflow.job import limits
from megaflow.job.limits import limit_text, shortage_text, start_text, telling_limits, telling_passing_faults
from tests.rights import without_room

HAVE = {
    resource.RLIMIT_NOFILE: 256,
    resource.RLIMIT_NPROC: 40,
    resource.RLIMIT_AS: 200_000 * 1024,
    resource.RLIMIT_DATA: resource.RLIM_INFINITY,
}


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits.resource, "getrlimit", lambda which: (HAVE[which], HAVE[which]))


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EMFILE, "…"), ("may have 256 open", "ulimit -n 1024")),
        (RuntimeError("can't start new thread"), ("Cannot start another thread", "ulimit -u is 40", "200000 kB")),
        (MemoryError(), ("No memory is left: ulimit -v is 200000 kB. Raise the limit",)),
        (OSError(errno.ENOMEM, "…"), ("No memory is left",)),
    ],
)
def test_a_limit_is_named_with_its_value(error: BaseException, words: tuple[str, ...]) -> None:
    text = limit_text(error)
    assert all(word in text for word in words) and "\n" not in text, text
    with pytest.raises(LimitReached), telling_limits():
        raise error


@pytest.mark.usefixtures("limited")
def test_a_process_that_cannot_be_started_names_the_limit() -> None:
    text = start_text(BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"))
    assert text.startswith("Cannot start another process: the limit on processes and threads is reached (ulimit -u is")


@pytest.mark.parametrize("error", [ValueError(), OSError(errno.ENOENT, "…"), RuntimeError("other"), MemoryError()])
def test_other_errors_stay_as_they_are(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = resource.RLIM_INFINITY
    monkeypatch.setattr(limits.resource, "getrlimit", lambda which: (endless, endless))
    assert limit_text(error) == shortage_text(error) == ""
    with pytest.raises(type(error)), telling_limits():
        raise error


def start_with(state: str | None, kind: type[MegaflowError], number: int) -> None:
    with telling_passing_faults(state):
        raise kind("It is refused.") from OSError(number, "…")


@pytest.mark.parametrize(
    ("kind", "number", "remedy"),
    [
        (StoreError, errno.ENOSPC, "free some room"),
        (StoreError, errno.EIO, "mend the disk"),
        (OutputError, errno.EROFS, "make the disk writable"),
        (UsageError, errno.EROFS, "make the disk writable"),
        (UsageError, errno.EADDRINUSE, "free the port"),
    ],
)
def test_start_that_may_succeed_later_keeps_state(kind: type[MegaflowError], number: int, remedy: str) -> None:
    with pytest.raises(StateKept, match=rf"^It is refused\. The job did not start; {remedy}, then"):
        start_with("kept", kind, number)
    with pytest.raises(kind, match=r"^It is refused\.$"):
        start_with(None, kind, number)


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOENT, errno.EFBIG])
def test_start_that_a_user_must_mend_is_refused(number: int) -> None:
    for kind in (StoreError, OutputError, UsageError):
        with pytest.raises(kind, match=r"^It is refused\.$"):
            start_with("kept", kind, number)


@pytest.mark.usefixtures("limited")
def test_a_worker_without_memory_names_operator_and_record() -> None:
    error = MemoryError()
    error.add_note("in operator 'fold' (a.py:3), worker 0, time 0, record 'x'")
    assert shortage_text(error).startswith("operator 'fold' (a.py:3), worker 0, time 0, record 'x': No")


@pytest.mark.usefixtures("limited")
def test_a_report_that_finds_no_memory_keeps_the_place() -> None:
    try:
        try:
            error = MemoryError()
            error.add_note("in operator 'fold' (a.py:3)")
            raise error
        except MemoryError:
            raise MemoryError from None
    except MemoryError as second:
        assert shortage_text(second).startswith("operator 'fold' (a.py:3): No memory is left")
    assert shortage_text(MemoryError()).startswith("No memory is left")


def test_no_temporary_folder_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", None)  # to be found anew
    with without_room(), pytest.raises(FileNotFoundError) as failed:
        tempfile.mkdtemp()
    said = limit_text(failed.value)
    assert said.startswith("No usable temporary directory found in [") and said.endswith("can be written.")
    assert "Set TMPDIR" in said and limit_text(FileNotFoundError(2, "No such file or directory")) == ""
