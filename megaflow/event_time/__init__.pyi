"""The types of the names that this package loads on first use."""

from megaflow.event_time.accumulators import Collect as Collect
from megaflow.event_time.accumulators import Count as Count
from megaflow.event_time.accumulators import Mean as Mean
from megaflow.event_time.accumulators import Sum as Sum
from megaflow.event_time.accumulators import best as best
from megaflow.event_time.accumulators import by_fold as by_fold
from megaflow.event_time.accumulators import by_reduction as by_reduction
from megaflow.event_time.accumulators import extreme as extreme
from megaflow.event_time.fold_stamps import RECORD as RECORD
from megaflow.event_time.fold_stamps import by_key as by_key
from megaflow.event_time.fold_stamps import exchange as exchange
from megaflow.event_time.fold_stamps import keep_stamps as keep_stamps
from megaflow.event_time.fold_stamps import stamp_by_function as stamp_by_function
from megaflow.event_time.fold_stamps import stamp_by_record as stamp_by_record
from megaflow.event_time.lateness import LatenessHistogram as LatenessHistogram
from megaflow.event_time.record_bounds import timestamp_of as timestamp_of
from megaflow.event_time.state_ttl import TtlMachine as TtlMachine
from megaflow.event_time.timestamp_assigner import event_time as event_time
from megaflow.event_time.windowed import Emit as Emit
from megaflow.event_time.windowed import WindowedPort as WindowedPort
from megaflow.event_time.windows import Length as Length
from megaflow.event_time.windows import Window as Window
from megaflow.event_time.windows import WindowResult as WindowResult
from megaflow.event_time.windows import Windows as Windows
from megaflow.event_time.windows import length_of as length_of
