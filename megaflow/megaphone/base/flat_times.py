"""The times of a nested scope as F and S see them: flat, in a total order, with the outer time first.

In a nested scope a time is Product(t, i), round i of outer time t, or deeper. Two of these times may be unordered. But
F has one table, and S has one state for a key, so they need a total order. F and S see the coordinates, (t, i), which
are ordered as tuples: by the outer time, then by the round. Commands have int times, and t becomes (t, 0). So F and S
in a nested scope are those of the root with other ends (`flat_ends`).

Why a move at t is also exact in a nested scope
 1. The flat order extends that of products. So the least time of a frontier in the flat order is a lower bound of
    everything that may come. If S's output is at {(t - 1, 5), (t, 0)}, its flat time is (t - 1, 5): records before t
    are not all applied, although as a product (t - 1, 5) is not before (t, 0).
 2. Commands enter the scope from the root. Their path turns t into (t, 0) at the state output, the first of all times
    with outer time t. So a bin that moves at t moves after the last round of t - 1 and before round 0 of t, on all
    workers. The rules of `router` hold as they stand, if "before" refers to the flat order.
 3. S applies a record at (t, i) when it has applied everything at earlier outer times and at earlier rounds of t. So
    nothing that is sent at (t, i) reveals anything that comes later in this order. Neither moves nor the speed of
    workers change the output. This has a price: records at t + 1 wait before S until the loop is through with t. A loop
    that never ends at t holds back everything after t, and no bin moves there any longer.
 4. No operator waits forever. A pointstamp p blocks q if p leads to the place of q at a time before that of q, or at
    the same time where q waits until its time is closed. Along a path flat times stay in order, because a path adds to
    coordinates, drops the inner ones or appends zeros. Around a cycle they increase, or the dataflow is refused. If
    each of p, q, …, p blocked the next one, p would lead, along a cycle, to its own place at its own time or an earlier
    one. So at least one outstanding pointstamp is not blocked. A move at t closes no such cycle either: F holds its
    capability at (t, 0) and waits for pointstamps that lead to S's output before (t, 0), and each S that waits for F is
    at (t, 0) or later.
 5. A right to send at (t, i) gives no right to send at a time that is not later as a product: (2, 1) gives none at
    (3, 0). So an S with timers has a capability for each time at which something waits, not only for the first. A fold
    may set timers only for times that are at least the present one in each coordinate. A chunk comes at (t, 0), which
    gives a right to the times of all its timers: their outer times are t or later, and no round is less than 0.
"""

from typing import Any, TypeAlias

from megaflow.timely.order import Time, coordinates, from_coordinates

FlatTime: TypeAlias = Any
"""An int, or in a nested scope a tuple of ints. In either case `<` sorts it in the order of F and S."""


def flattened(time: Time, length: int) -> FlatTime:
    """Return the flat time, of this many coordinates, for a time of a nested scope or of the root.

    >>> from megaflow.timely.order import Product
    >>> flattened(Product(3, 1), 2), flattened(3, 2)
    ((3, 1), (3, 0))
    """
    known = coordinates(time)
    return known + (0,) * (length - len(known))


def unflattened(time: FlatTime) -> Time:
    """Return the time in the form that programs know.

    >>> unflattened(3), unflattened((3, 1))
    (3, Product(3, 1))
    """
    return time if type(time) is int else from_coordinates(time)


def outermost(time: FlatTime) -> int:
    """Return the outer time, which commands and messages show.

    >>> outermost(3), outermost((3, 1))
    (3, 3)
    """
    return time if type(time) is int else time[0]
