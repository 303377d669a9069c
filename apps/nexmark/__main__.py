"""NEXMark: eight queries over the events of an auction house, whose state can move while they run.

python apps/nexmark QUERY [EVENTS [DELAY_US [STRATEGY]]] [-w WORKERS] [-n PROCESSES -p PROCESS]

QUERY is Q1 to Q8. The defaults are 10,000 events, a second of event time apart, so that the run includes windows of
minutes and hours. DELAY_US 100 is the benchmark's own rate of 10,000 a second. With a STRATEGY (fluid, all-at-once,
optimized) half of each worker's bins move to the next worker during the run.
"""

import os
import sys

from apps.nexmark.driver import main
from megaflow.timely import execute_from_args

if __name__ == "__main__":
    try:
        execute_from_args(main)
    except BrokenPipeError:  # the reader, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
