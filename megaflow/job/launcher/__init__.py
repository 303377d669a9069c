"""The launcher: starts worker processes, feeds them lines, and collects their outputs.

launch              starts the processes, stays with them, ends them
supervision         the lives of a durable job: after a loss, it resumes from its last checkpoint
loop, wakeups       the launcher's loop in one life, and the events that wake it; machine: its access to the machine
run_summary         the totals of a run
children, newcomers    the processes that it started, and those that join; child_process: a single process
place, process_starter    where the processes run, and how they are started there
on_spark, remote_process, agent_door    Spark's executors as a place; a process there; the port for agents
launcher_input      the source of the lines; line_options: the user's options for it
file_lines          lines of a pipe; line_reader, line_pusher: lines that the launcher itself reads
epoch_merge         outputs in epoch order; output_queue: outputs on their way to the writer
output_specs        the specifications of `--output`; several_outputs: many outputs as one; csv_file: rows
output_file         a file as an output, and the files that it protects; output_copy: a file taken over
spark_results       `--output spark:…`; results_log, results_files: the results that wait for Spark
store_keeper        the store of durable state; kept_input: the store's record of the input files
resumption          how a job with a store starts; first_owners: the bins with which each worker starts
checkpointing       checkpoints in progress; commit_draft: the parts of a checkpoint
stop_request        the launcher's own request to stop; early_end: the end of a job with unfinished work
door_keeper         answers at the side door; busy_workers: workers that spend long in a single step
python_function     `megaflow.run`, `megaflow.start`; spark_run: `megaflow.spark.run`; function_pickler: their dataflow
started_job         a job beside the program's own work; job_control: its commands; program_output: its outputs
pulled_source       iterables and queues from which the job pulls; loop_sources: sources of asyncio
"""
