"""Channels: the purpose of a message between two workers, and the lane on which it travels.

These are all the channels. The numbers are part of the wire format.

| lane              | dataflow | number | carries                                                               |
|-------------------|----------|--------|-----------------------------------------------------------------------|
| MAIL              | -1       | 0      | mail: (topic, body)                                                   |
| each              | -2       | 0      | membership messages that must keep their place among a lane's messages |
| PROGRESS          | n        | 0      | progress batches of dataflow n: (number, changes)                     |
| PROGRESS          | n        | 1      | its name and signature; None: the sender's program ended without building it |
| MAIL              | n        | -1     | credit: ((number of a channel of records, records), …)                |
| MAIL              | n        | -2     | messages between operators of the same place, outside of time: (node, body) |
| MAIL, STATE, DATA | n        | k      | records of the dataflow's channel k, counted from 0: (time, batch)    |
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias


class Lane(IntEnum):
    """Independent FIFO lanes between two workers. Lanes with lower numbers leave first."""

    PROGRESS = 0
    MAIL = 1
    STATE = 2
    DATA = 3


class Channel(NamedTuple):
    """One kind of message, from any worker to any other."""

    lane: Lane
    dataflow: int  # negative outside dataflows
    number: int

    @staticmethod
    def membership(lane: Lane) -> "Channel":
        """Return the channel of membership changes on a lane."""
        return Channel(lane, -2, 0)

    @staticmethod
    def progress(dataflow: int) -> "Channel":
        """Return the channel of a dataflow's progress batches."""
        return Channel(Lane.PROGRESS, dataflow, 0)

    @staticmethod
    def signature(dataflow: int) -> "Channel":
        """Return the channel on which workers compare how they have built a dataflow."""
        return Channel(Lane.PROGRESS, dataflow, 1)

    @staticmethod
    def credit(dataflow: int) -> "Channel":
        """Return the channel on which receivers return the credit for a dataflow's records."""
        return Channel(Lane.MAIL, dataflow, -1)

    @staticmethod
    def aside(dataflow: int) -> "Channel":
        """Return the channel on which the operators of one place send each other messages outside of time."""
        return Channel(Lane.MAIL, dataflow, -2)

    @property
    def is_progress(self) -> bool:
        """Whether progress batches travel on this channel."""
        return self.lane is Lane.PROGRESS and self.number == 0 and self.dataflow >= 0

    @property
    def is_records(self) -> bool:
        """Whether records travel on this channel."""
        return self.lane is not Lane.PROGRESS and self.number >= 0 and self.dataflow >= 0


MAIL = Channel(Lane.MAIL, -1, 0)


class Envelope(NamedTuple):
    """One message as it arrives at the worker that it is for."""

    channel: Channel
    source: int
    body: Any


Handler: TypeAlias = Callable[[int, Any], None]
"""Called with the source and body of each message that arrives on a channel."""
