"""A cluster in one thread: real workers, real bytes, delivery in an order drawn from a seed.

`SimulatedCluster(seed)` runs the very workers that threads and processes run, over a
transport that encodes every message between workers as TCP would and then delivers it
when the dice say so: FIFO on each lane between two workers, in any order otherwise. So a
test can search hundreds of interleavings a minute, and a seed that fails fails again.

    cluster = SimulatedCluster(seed, workers=2)
    cluster.at(record=1000, do=Join())
    outputs = cluster.run(dataflow, lines=lines)

While it runs a monitor watches, and raises `Violation` if
 - a worker's frontier excludes a time at which a record may still come, by a brute-force
   account of all counts on all workers, or still admits other times when nothing is under way;
 - a bin is owned by two workers at once;
 - nothing can happen any more and the dataflow is not complete.

engine_cluster       the workers, and the dice; its records may be given times of a test's choice
simulated_lines      what a dataflow reads, dealt out to the sources of a real job
simulated_watermarks how far event time is
network              the transport
monitor              the account that every frontier is compared with
simulated_disk       a disk that loses what was not synced, and fails where it is told to
membership_driver    carries out the joins and leaves that a test plans

A whole job, for megaflow's own tests: launcher, processes, controller, clients; processes are killed at any step.
simulated_job        the run: dice, clock, who can do something
simulated_links      connections, as bytes
simulated_process    a worker process; simulated_life: its threads; simulated_fabric: its transport, above the sockets
simulated_launch     the launcher; simulated_machine: what it has of its machine
simulated_storage    what outlives it: its store and its output, on a simulated disk
simulated_reader     lines and items that the launcher reads itself
simulated_outside    those outside of the job, and when each goes on
simulated_clients    who steers the job, and a Spark query
"""

from megaflow.testing.engine_cluster import Build, EngineCluster
from megaflow.testing.membership_driver import HandOver, Join, KillJoiner, Leave
from megaflow.testing.monitor import Monitor, Violation
from megaflow.testing.network import Network, SimulatedAllocator
from megaflow.testing.simulated_disk import Crashed, SimulatedDisk

SimulatedCluster = EngineCluster

__all__ = [
    "Build",
    "Crashed",
    "EngineCluster",
    "HandOver",
    "Join",
    "KillJoiner",
    "Leave",
    "Monitor",
    "Network",
    "SimulatedAllocator",
    "SimulatedCluster",
    "SimulatedDisk",
    "Violation",
]
