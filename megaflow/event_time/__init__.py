"""Event time, above the operators with state: timestamps, windows, and states that last only for a while.

timestamp_assigner  event_time: gives records their timestamps, and knows the greatest of each partition
record_bounds       how far event time had advanced in a record's own partition, which decides whether it is late
lateness            counts of how much later records come than a later record of their partition
windows             the kinds of windows, and their bounds
calendar_windows    days, weeks and months in a time zone; calendar_panes: those of one key
accumulators        accumulations of the records of a window
windowed            the operator of a windowed stream
panes               one key's windows of one size: its panes
sessions            one key's sessions: its intervals
kept_windows        whether a program can continue with the windows of a store
fold_stamps         the timestamps of a fold's outputs, and what windows downstream may expect
state_ttl           a fold with a lifetime: a key without records for a while loses its state

Modules of streams import this package and load a name below on its first use. So a program without event time loads
none of these modules. The types of the names are in `__init__.pyi`.
"""

from megaflow.front_door import offer

_NAMES = {
    "megaflow.event_time.accumulators": (
        "Collect", "Count", "Mean", "Sum", "best", "by_fold", "by_reduction", "extreme",
    ),
    "megaflow.event_time.fold_stamps": (
        "RECORD", "by_key", "exchange", "keep_stamps", "stamp_by_function", "stamp_by_record",
    ),
    "megaflow.event_time.lateness": ("LatenessHistogram",),
    "megaflow.event_time.record_bounds": ("timestamp_of",),
    "megaflow.event_time.state_ttl": ("TtlMachine",),
    "megaflow.event_time.timestamp_assigner": ("event_time",),
    "megaflow.event_time.windowed": ("Emit", "WindowedPort"),
    "megaflow.event_time.windows": ("Length", "Window", "WindowResult", "Windows", "length_of"),
}  # module -> names that it offers

__getattr__, __dir__, __all__ = offer(globals(), _NAMES)
