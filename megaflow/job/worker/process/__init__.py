"""The worker process and its dataflow.

child            the process, started by the launcher
join_by_hand     a process started by `megaflow run --join`
leave_on_signal  Ctrl-C at such a process
lifeline         ends the process when the launcher ends
worker_text      what several workers print: whole lines, each with its worker
watchdog         detects busy workers
program_loading  loads the user's function
source_record    the source from which it was loaded
inputs_check     checks that a process finds the job's inputs
fingerprint      checks that all processes run the same code
worker_program   the dataflow of each worker, and the loop that steps it
flow             the argument of the user's function
named_inputs     the inputs by name and type
discovery        finds partitions of sources
worker_sinks     the sinks to which the program writes
build_only       builds the dataflow without running it
rehearsal        checks whether the program can resume with its states
"""
