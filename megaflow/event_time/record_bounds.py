"""The bound at a record: how far event time had advanced in the record's own partition when the record was read.

The bound at a record is the greatest timestamp in its partition so far, less `out_of_order`. It depends only on the
contents and the order of the partition, so it is the same at any speed and with any number of workers. The watermark is
not: which records come before it depends on which worker reads faster. So bounds decide what is late, and the watermark
only decides when windows close.

1. A record is late for an aligned window iff its bound has reached the window's end plus the allowed lateness. It is
   late for sessions iff its timestamp plus the allowed lateness is less than its bound. A state with `ttl` is over at a
   record iff the greater of the record's timestamp and its bound is `ttl` or more after the state's last timestamp.
2. The job's watermark w decides as well. A record that comes when w has reached these limits is late, and finds no
   state that is over by w, whatever its bound is. As long as no partition is idle, and each was known from the start,
   this changes nothing. In that case w is the least of the partitions' maxima as they were reported, less
   `out_of_order`. A record comes after the report of its partition, so w is not ahead of the record's bound. Records
   that only the watermark makes late are counted apart, because other partitions made them late. A resumed run begins
   with the last watermark, which holds from its first record.
3. So a window that closes at w has all records that are not late for it: a record that comes later has a bound of w or
   more, and is late for it. Likewise a closed session misses no record that is not late. Its end plus the allowed
   lateness is at most w, so the timestamp of such a record is at the session's end or after it. (If a late record could
   join an open session, lateness would depend on which sessions were still open.)
4. A record that is not below its bound is late for nothing, because each of its windows ends after its timestamp. So
   only a record below its bound carries the bound, and others cost nothing. Its stamp (`operators.stamped`) is then not
   a timestamp but has both in one int, which is greater than INFINITE: `with_bound` makes it, `apart` reads it. The
   stamp stays beside everything that stateless operators make of the record, and goes with it to other workers.
5. Results of windows have no partition and carry no bound: by their timestamps no window downstream is late for them.
   Late records keep their bounds.
6. All workers read a query of Spark at once, in no order. Its records carry no bound. The watermark judges them; a
   batch raises it only once the batch is completely taken in.
Not reproducible: inputs that are `?unordered`, the order of equal timestamps in `collect`, sums of floats, results by
`emit=`, and folds that look at epochs.
"""

from typing import Final

from megaflow.megaphone.base.event_unit import INFINITE, LEAST, NEVER

_BITS: Final = 64
_MASK: Final = (1 << _BITS) - 1


def with_bound(micros: int, bound: int) -> int:
    """Return the stamp of a record whose timestamp is below its bound. It is greater than INFINITE."""
    return (bound - LEAST << _BITS) + micros - LEAST


def apart(stamp: int) -> tuple[int, int]:
    """Return the timestamp and the bound of a record; the bound is NEVER if the record is not below it.

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
    """Return how far event time is for a record: rules 1 and 2. An infinite watermark makes no further record late."""
    return bound if watermark == INFINITE else max(bound, watermark)
