"""Acts on the word of a worker's role: sends its mail, tells the program, looks at the clock, warns."""

import logging
from collections.abc import Callable
from typing import Any

from megaflow.timely.rescale.change_stages import Mail
from megaflow.timely.rescale.handover import Role
from megaflow.timely.rescale.host import Host
from megaflow.timely.rescale.messages import TOPIC, Event, Succeeded
from megaflow.timely.rescale.sequencer import Coordinator

TICK_SECONDS = 1.0  # between looks whether something takes too long

_log = logging.getLogger("megaflow.rescale")


class Coordination:
    """One worker's role. One writer: the worker's thread."""

    def __init__(self, host: Host, coordinator: Coordinator | None, emit: Callable[[Event], None]) -> None:
        """`emit` tells the program."""
        self._host = host
        self._role = Role(host.index, coordinator)
        self._emit = emit
        self._ticking = False

    @property
    def coordinator(self) -> Coordinator | None:
        """It, if it is here."""
        return self._role.coordinator

    def hear(self, source: int, message: Any) -> None:
        """Take in a message for the coordinator."""
        self._send(self._role.hear(source, message, self._host.now()))
        if self._role.come_over is not None:
            self._emit(Succeeded(self._role.come_over.cargo, self._role.come_over.membership))
            self._send(self._role.begin(self._host.now()))

    def hand_over(self, cargo: object | None) -> None:
        """See `Member.hand_over`."""
        self._send(self._role.hand_over(cargo, self._host.now()))

    def give_up(self, reason: str) -> None:
        """See `Member.give_up`."""
        self._send(self._role.give_up(reason, self._host.now()))

    def _send(self, mail: Mail) -> None:
        for worker, message in mail:
            self._host.post(worker, TOPIC, message)
        if self._role.waits and not self._ticking:
            self._ticking = True
            self._host.after(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        warning = self._role.take_warning(self._host.now())
        if warning is not None:
            _log.warning("%s", warning)
        self._send(self._role.tick(self._host.now()))
