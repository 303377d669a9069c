"""A bench for a part that works in a thread of its own and wakes the loop that it belongs to."""

import threading

WAIT_SECONDS = 180.0


class Bench:
    """The wake-ups, the messages and the thread of the part on it."""

    def __init__(self, thread: str) -> None:
        """`thread`: the name of the part's thread."""
        self.woken = threading.Semaphore(0)
        self.said: list[str] = []
        self._name, self._before = thread, {*threading.enumerate()}

    def wait(self) -> None:
        """Wait until the part wakes the loop."""
        assert self.woken.acquire(timeout=WAIT_SECONDS), "the part does not wake the loop"

    def is_running(self) -> bool:
        """Return whether the part's thread runs."""
        return bool(self._threads())

    def join(self) -> None:
        """Wait until the part's thread has ended."""
        for thread in self._threads():
            thread.join(WAIT_SECONDS)
        assert not self.is_running()

    def _threads(self) -> list[threading.Thread]:
        return [each for each in threading.enumerate() if each.name == self._name and each not in self._before]
