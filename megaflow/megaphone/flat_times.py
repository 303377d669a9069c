"""The times of a nested scope as F and S see them: flat, in one order, the outer time first.

In a nested scope a time is Product(t, i), round i of outer time t, or deeper. Two of them may be in no order; but F has
one table, and S one state for a key, so they have to be in one. F and S see the coordinates, (t, i), which are ordered
as tuples are: by the outer time, then by the round. Commands have int times, and t is (t, 0). So F and S in a nested
scope are those of the root with other ends (`flat_ends`).

Why a move at t is exact in a nested scope, too
 1. The flat order extends that of products. So the least time of a frontier, in the flat order, is a lower bound of all
    that may come, and S's output at {(t - 1, 5), (t, 0)} is at (t - 1, 5): what is before t is not applied, although as
    a product (t - 1, 5) is not before (t, 0).
 2. Commands come into the scope from the root, along a path that makes t of the state output (t, 0), the first of all
    times with outer time t. So a bin that moves at t moves after the last round of t - 1 and before round 0 of t, on
    all workers, and the rules of `router` hold as they stand, "before" being that of the flat order.
 3. S applies a record at (t, i) when all at earlier outer times and, at t, of earlier rounds are applied. So nothing
    that is sent at (t, i) shows what comes later in this order, and neither moves nor the speed of workers change what
    comes out. The price: what is at t + 1 waits before S until the loop is through with t. A loop that never ends at t
    holds back all after it, and no bin moves there any more.
 4. Nobody waits for ever. A pointstamp p blocks q if p leads to the place of q at a time before that of q, or equal to
    it where q waits until its time is closed. Along a path flat times stay in order, for a path adds to coordinates,
    drops the inner ones or appends zeros; and around a cycle they increase, or the dataflow is refused. If each of
    p, q, …, p blocked the next one, p would lead, along a cycle, to its own place at its own time or an earlier one. So
    of all that is outstanding something is not blocked. What F holds for a move at t, at (t, 0), waits for what leads
    to S's output before (t, 0), and each S that waits for it is at (t, 0) or after: it closes no such cycle either.
 5. A right to send at (t, i) gives none at a time that is no later as a product, (t + 1, 0) say. So an S with timers
    has a capability for each time at which something waits, not only for the first, and a fold may set timers only for
    times that are at least the present one in each coordinate. Chunks bring timers at (t, 0), which all are after.
"""

from typing import Any, TypeAlias

from megaflow.timely.order import Time, coordinates, from_coordinates

FlatTime: TypeAlias = Any
"""An int, or in a nested scope a tuple of ints: in either case sorted by `<`, in the order of F and S."""


def flattened(time: Time, length: int) -> FlatTime:
    """Return the flat time, of so many coordinates, of a time of a nested scope or of the root.

    >>> from megaflow.timely.order import Product
    >>> flattened(Product(3, 1), 2), flattened(3, 2)
    ((3, 1), (3, 0))
    """
    known = coordinates(time)
    return known + (0,) * (length - len(known))


def unflattened(time: FlatTime) -> Time:
    """Return the time as programs know it.

    >>> unflattened(3), unflattened((3, 1))
    (3, Product(3, 1))
    """
    return time if type(time) is int else from_coordinates(time)


def outermost(time: FlatTime) -> int:
    """Return the outer time, which commands and people know.

    >>> outermost(3), outermost((3, 1))
    (3, 3)
    """
    return time if type(time) is int else time[0]
