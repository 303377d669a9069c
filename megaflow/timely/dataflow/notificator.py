"""FrontierNotificator: tells an operator when the times that it asked about are complete.

A request is a capability: a notification of a time includes the right to send at it. The notificator owns the
capability and releases it after the notification, unless the operator uses it for a new request.

Invariant: a request is in `_due` if the last known frontiers have passed its time, otherwise in `_waiting`.
"""

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, overload

from megaflow.errors import CapabilityError
from megaflow.timely.dataflow.builder import Input
from megaflow.timely.dataflow.capability import Capability
from megaflow.timely.dataflow.context import Activator
from megaflow.timely.order import Time, in_order, is_total, pop_first, sort_key
from megaflow.timely.progress.antichain import Antichain

_Key = tuple[Any, ...]  # sort key of a time, see `sort_key`


class FrontierNotificator:
    """Notifier of an operator: reports requested times once no frontier holds them back, the earliest first.

    Call `for_each` in every run. A request may come after its time is complete. With the `activator` of the operator's
    info, the operator then runs again by itself; without it, the notification waits for the next run. Cost: a request
    and a notification O(log of the requests). In nested scopes `for_each` looks at all requests.
    """

    def __init__(self, activator: Activator | None = None, inputs: Sequence[Input[Any]] = ()) -> None:
        """`inputs` are the operator's inputs. They allow calling `for_each` without frontiers."""
        self._activator = activator
        self._inputs = inputs
        self._requests: dict[_Key, list[tuple[Capability, int]]] = {}  # capabilities for one time, and how often each
        self._times: dict[_Key, Time] = {}  # the times of the requests
        self._waiting: list[_Key] = []  # heap
        self._due: list[_Key] = []  # heap; _due and _waiting together hold each key of _requests once
        self._frontiers: Sequence[Antichain] | None = None  # those given last
        self._notifying = False

    def notify_at(self, capability: Capability) -> None:
        """Request a notification at the capability's time, and hand the capability over.

        k requests for one time become one notification with count k.
        """
        if not isinstance(capability, Capability):
            raise CapabilityError(
                f"notify_at({capability!r}): this is not a capability; retain one first: notify_at(time.retain())"
            )
        if not capability.held:
            raise CapabilityError(
                f"notify_at: {capability!r} was released; request the notification before the release"
            )
        key = sort_key(capability.time)
        entries = self._requests.setdefault(key, [])
        for position, (known, count) in enumerate(entries):
            if known == capability:
                entries[position] = (known, count + 1)
                if known is not capability:
                    capability.release()
                return
        entries.append((capability, 1))
        if len(entries) > 1:
            return
        self._times[key] = capability.time
        if self._frontiers is None or not _is_over(capability.time, self._frontiers):
            heappush(self._waiting, key)
            return
        heappush(self._due, key)
        if self._activator is not None and not self._notifying:
            self._activator.activate()

    @overload
    def for_each(self, frontiers: Callable[[Capability, int], object]) -> None: ...
    @overload
    def for_each(self, frontiers: Sequence[Antichain], f: Callable[[Capability, int], object]) -> None: ...
    def for_each(self, frontiers: Any, f: Any = None) -> None:
        """Call `f(capability, count)` for each requested time that no frontier holds back.

        `for_each(f)` uses the frontiers of the operator's inputs, if the notificator was made with them. A frontier
        holds a time back while one of its elements is at or before that time. Times are visited in a total order that
        extends theirs. If `f` makes a request that is due, it is notified in the same call.
        """
        if f is None and self._inputs:
            frontiers, f = [each.frontier for each in self._inputs], frontiers
        if isinstance(frontiers, Antichain) or f is None:  # an Antichain is also iterable
            raise CapabilityError(
                "for_each: give it a list of the frontiers of all inputs, such as [input.frontier], then a function"
            )
        self._frontiers = frontiers
        self._collect()
        self._notifying = True
        pop = pop_first(not self._due or is_total(self._due[0]))
        try:
            while self._due:
                key = pop(self._due)
                time = self._times.pop(key)
                for capability, count in self._requests.pop(key):
                    f(capability, count)
                    anew = self._requests.get(sort_key(capability.time), ())
                    if not any(known is capability for known, _ in anew):
                        capability.release()
        except BaseException as error:
            error.add_note(f"while notified of time {time!r}")
            raise
        finally:
            self._notifying = False

    def pending(self) -> list[Time]:
        """Return the requested times that are not yet notified, in order."""
        return in_order(self._times.values())

    def _collect(self) -> None:
        """Move completed times from `_waiting` to `_due`."""
        assert self._frontiers is not None
        waiting = self._waiting
        if waiting and len(waiting[0]) == 1 and type(waiting[0][0]) is int:
            while waiting and _is_over(waiting[0][0], self._frontiers):
                heappush(self._due, heappop(waiting))
            return
        left = []
        for key in waiting:  # partially ordered times: each must be checked
            if _is_over(self._times[key], self._frontiers):
                heappush(self._due, key)
            else:
                left.append(key)
        heapify(left)
        self._waiting = left

    def _check(self) -> None:
        keys = self._waiting + self._due
        assert len(keys) == len(self._requests) and set(keys) == self._requests.keys(), "a request is in one heap"
        frontiers = self._frontiers or ()
        assert all(_is_over(self._times[key], frontiers) for key in self._due), "what is due is over"


def _is_over(time: Time, frontiers: Sequence[Antichain]) -> bool:
    for frontier in frontiers:
        if frontier.less_equal(time):
            return False
    return True
