"""The job that `megaflow run` starts: a launcher and its worker processes.

spec               what the launcher sends to a process before it starts
app                the function to run
launcher/          the launcher
worker/            the worker processes
files/             input files: splits, positions, growing files
formats/           lines, CSV and JSON
profile/           `--profile`: the measurements of each worker, and the report
job_file, contact  find a running job
admin_socket       asks its launcher
watching           its status again and again, and its events as they come
reachable          the addresses at which others reach this machine
process_agent      runs beside a process on Spark's executors
agent_messages     its messages
exit_report        why a worker process ended
heartbeat          whether a process is alive
program_code       compares the code of two processes, and files with the code that was loaded
made_anew          objects of a program that each worker makes anew, such as caches
nested_start       refuses a job that would start again in each of its workers
log_records        the levels and the JSON of `--log-level` and `--log-format`
script_logging     what megaflow logs, and the logging setup of a script in its workers
patient_stream     standard error with a bounded wait for its reader
dropped_tail       the last lines that a process could not print
limits             errors of limits on files, processes and memory
memory_limit       kills because of exhausted memory
kept_states        the states that a job has saved, for tests, notebooks and Spark
spark_sources      the data sources that a session of Spark finds by name
"""
