"""The bound at a record: how far event time was in the record's own partition when the record was read.

The bound at a record is the greatest timestamp that its partition has had so far, less `out_of_order`. It follows from
what the partition has and in which order, so it is the same at any speed and with any number of workers. A watermark is
not: which records come before it and which after it depends on who reads faster. So what is late is decided by bounds,
and the watermark only says when windows close.

1. A record is late for an aligned window iff its bound has come to the window's end and the allowed lateness. It is
   late for sessions iff its timestamp and the allowed lateness are less than its bound. A state with `ttl` is over at a
   record iff the greater of the record's timestamp and its bound is `ttl` or more after the state's last timestamp.
2. The job's watermark decides as well: a record that comes when w has come as far is late, and finds no state that is
   over by w, whatever its bound is. As long as no partition is idle, and each was known from the beginning, this
   changes nothing: w is the least of the partitions' maxima as they were reported, and a record comes after what was
   reported of its partition, so w is not ahead of its bound. Such records are counted apart: they are late because of
   who else was there. A run that resumes begins with the last watermark, which holds from its first record.
3. So a window that closes at w has all records that are not late for it: one that is still to come has a bound of w or
   more, and is late for it. A session that has closed meets no record that is still to come and not late, either: its
   end and the allowed lateness are at most w, so the record's timestamp is at its end or after it. (If a late record
   could join a session that is open, who is late would depend on which sessions were still open.)
4. A record that is not below its bound is late for nothing: each of its windows ends after its timestamp. So only one
   that is below carries its bound, and others cost nothing. Then its stamp (`operators.stamped`) is no timestamp but
   both in one int, which is greater than INFINITE: `with_bound` makes it, `apart` reads it. It stays beside all that
   stateless operators make of the record, and goes with it to other workers.
5. Results of windows have no partition and carry no bound: by their timestamp no window behind them is late for them.
   Late records keep theirs.
6. A query of Spark is read by all workers at once, and in no order. Its records carry no bound; they are judged by the
   watermark, in which batches count that were wholly taken in before.
Not reproducible: inputs that are `?unordered`, the order of equal timestamps in `collect`, sums of floats, results by
`emit=`, and folds that look at epochs.
"""

from typing import Final

from megaflow.megaphone.event_unit import INFINITE, LEAST, NEVER

_BITS: Final = 64
_MASK: Final = (1 << _BITS) - 1


def with_bound(micros: int, bound: int) -> int:
    """Return the stamp of a record whose timestamp is below its bound. It is greater than INFINITE."""
    return (bound - LEAST << _BITS) + micros - LEAST


def apart(stamp: int) -> tuple[int, int]:
    """Return the timestamp of a record, and its bound; NEVER if it is not below that.

    >>> apart(with_bound(1_000_000, 3_000_000)), apart(7) == (7, NEVER)
    ((1000000, 3000000), True)
    """
    if stamp <= INFINITE:
        return stamp, NEVER
    return (stamp & _MASK) + LEAST, (stamp >> _BITS) + LEAST


def timestamp_of(stamp: int) -> int:
    """Return the timestamp of a record."""
    return stamp if stamp <= INFINITE else (stamp & _MASK) + LEAST


def limit_of(bound: int, watermark: int) -> int:
    """Return how far event time is for a record: rules 1 and 2. Under an infinite watermark nothing else is late."""
    return bound if watermark == INFINITE else max(bound, watermark)
