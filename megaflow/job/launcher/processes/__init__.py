"""The worker processes of a job, on this machine or on Spark's executors.

children           the processes: their start, their end, and the blame for it
child_process      a single process
provisioner        finds slots for processes on this machine
spark_provisioner  finds slots for processes on Spark's executors
spark_slots        processes that wait for a slot of Spark
remote_process     a process on an executor, as its agent reports it
agent_door         the port for agents
printed_lines      what a process prints: whole lines with its name, and the last 64 kB
print_reader       reads and shows it
busy_workers       workers that spend long in a single step
drain_limit        the end of a job with unfinished work
stop_request       the launcher's own request to stop
wakeups            wake-ups of the launcher's loop by threads and signals

A name below is loaded when it is first used, so a job that stays on this machine does not load it. Its type is in
`__init__.pyi`.
"""

from megaflow.front_door import offer

_NAMES = {"megaflow.job.launcher.processes.spark_provisioner": ("SparkProvisioner",)}  # module -> names that it offers

__getattr__, __dir__, __all__ = offer(globals(), _NAMES)
