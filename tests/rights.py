"""Files that cannot be used: permissions that hold for root, and a disk without room."""

import ctypes
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

VERSION = 0x20080522
PR_CAPBSET_DROP = 24
OVERRIDES = (1, 2)  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH

Half = ctypes.c_uint32 * 3  # effective, permitted, inheritable; of capabilities 0 to 31
Header = ctypes.c_uint32 * 2  # version, thread; 0: this one
libc = ctypes.CDLL(None, use_errno=True)


def _call(function: str, *arguments: object) -> None:
    if getattr(libc, function)(*arguments):
        raise OSError(ctypes.get_errno(), f"{function} failed")


@contextmanager
def without_rights() -> Iterator[None]:
    """Make the permissions of files hold for this thread."""
    if os.geteuid():
        yield
        return
    header, sets = Header(VERSION, 0), (Half * 2)()
    _call("capget", header, sets)
    before = sets[0][0]
    for each in OVERRIDES:
        sets[0][0] &= ~(1 << each)
    _call("capset", header, sets)
    try:
        yield
    finally:
        sets[0][0] = before
        _call("capset", header, sets)


def give_up_rights() -> None:
    """Make the permissions of files hold for the program that this process will run."""
    for each in () if os.geteuid() else OVERRIDES:
        _call("prctl", PR_CAPBSET_DROP, each, 0, 0, 0)


@contextmanager
def without_room() -> Iterator[None]:
    """Let this process write nothing to files, as on a full disk: it may make empty ones."""
    least, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (least, most))
