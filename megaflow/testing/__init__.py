"""A job in one thread: real code, real bytes, and machines that are simulated. Its order is drawn from a seed.

`SimulatedCluster(seed)` runs what `megaflow run` runs, a `dataflow(flow)`, for the tests of programs:

    cluster = SimulatedCluster(seed, durable=True)
    cluster.at(record=1000, do=Join())
    cluster.at(commit="orders", do=Kill())
    outputs = cluster.run(dataflow, lines=lines)

simulated_cluster    what a test calls: the runs, one life of a job after the other; a test for one seed after the other
changes              what can happen; cluster_plan: when it is due, and what became of it
cluster_job          one life, in which it happens
cluster_files        the lines, as files that grow
copied_program       the program, as each process has it
kept_records         the outputs, which outlive a launcher

Below is the whole job: launcher, processes, controller, clients; processes are killed at any step.
simulated_job        the run: dice, clock, who can do something
simulated_links      connections, as bytes
simulated_process    a worker process; simulated_life: its threads; simulated_fabric: its transport, above the sockets
simulated_launch     the launcher; simulated_machine: what it has of its machine
simulated_storage    what outlives it: its store and its output, on a simulated disk
simulated_disk       a disk that loses what was not synced, and fails where it is told to
simulated_reader     lines and items that the launcher reads itself
simulated_outside    those outside of the job, and when each goes on
simulated_clients    who steers the job, and a Spark query

`EngineCluster(seed)` runs engine programs and gives records times of a test's choice: the workers alone, over a
transport that encodes every message between them as TCP would and delivers it when the dice say so. While it runs a
monitor watches, and raises `Violation` if
 - a worker's frontier excludes a time at which a record may still come, by a brute-force
   account of all counts on all workers, or still admits other times when nothing is under way;
 - a bin is owned by two workers at once;
 - nothing can happen any more and the dataflow is not complete.

engine_cluster       the workers, and the dice; engine_feeds: what they are fed
network              the transport
monitor              the account that every frontier is compared with
membership_driver    carries out the joins and leaves that a test plans
"""

from megaflow.testing.changes import Crash, Join, Kill, Leave, Stop
from megaflow.testing.engine_cluster import Build, EngineCluster
from megaflow.testing.membership_driver import HandOver, KillJoiner
from megaflow.testing.monitor import Monitor, Violation
from megaflow.testing.network import Network, SimulatedAllocator
from megaflow.testing.simulated_cluster import SimulatedCluster, seeds
from megaflow.testing.simulated_disk import Crashed, SimulatedDisk
from megaflow.testing.simulated_reader import Wait

__all__ = [
    "Build",
    "Crash",
    "Crashed",
    "EngineCluster",
    "HandOver",
    "Join",
    "Kill",
    "KillJoiner",
    "Leave",
    "Monitor",
    "Network",
    "SimulatedAllocator",
    "SimulatedCluster",
    "SimulatedDisk",
    "Stop",
    "Violation",
    "Wait",
    "seeds",
]
