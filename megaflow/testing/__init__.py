"""A job in one thread: real code and real bytes on simulated machines. A seed decides the order of all steps.
These modules call the random generator of that seed *the dice*.

`SimulatedCluster(seed)` runs a `dataflow(flow)` as `megaflow run` does, for tests of programs:

    cluster = SimulatedCluster(seed, durable=True)
    cluster.at(record=1000, do=Join())
    cluster.at(commit="orders", do=Kill())
    outputs = cluster.run(dataflow, lines=lines)

simulated_cluster    called by a test: runs, one attempt of a job after the other; tests, one seed after the other
changes              the changes that a test can plan
cluster_plan         when each change is due, and its outcome
cluster_job          one attempt of a job, in which changes happen
cluster_pace         when the lines become due
cluster_files        the lines, as files that grow
copied_program       the program, as each process has it
kept_records         the outputs, which outlast a launcher

These modules simulate a whole job: launcher, processes, controller, clients. A process can be killed at any step.
simulated_job        the run: dice, clock, and the parts that can act
simulated_links      connections, as bytes
simulated_process    a worker process
simulated_life       the threads of a process
simulated_fabric     its transport, above the sockets
simulated_launch     the launcher
simulated_machine    the launcher's machine
simulated_storage    the job's store and output on a simulated disk, which outlast the launcher
simulated_disk       a disk that loses unsynced writes and fails on request
simulated_reader     lines and items that the launcher reads itself
simulated_outside    programs outside the job, and when each continues
simulated_clients    the clients that steer the job, and a Spark query

`EngineCluster(seed)` runs engine programs, and gives records the times that a test chooses. It has only workers. Its
transport encodes every message between processes as TCP would, and delivers it when the dice decide. During the run a
monitor checks the owners after every step and everything else after some, and raises `Violation` if

- a worker's frontier excludes a time at which a record may still come, by a brute-force account of all counts on all
  workers, or still admits other times when nothing is in flight;
- two workers own a bin at once;
- nothing can happen and the dataflow is not complete.

engine_cluster       the workers, and the dice
engine_feeds         the records and commands that they receive
network              the transport
monitor              the account with which every frontier is compared
reference            slow and obvious frontiers, for that account and for tests of the trackers
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
