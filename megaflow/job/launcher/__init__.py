"""Runs in the launcher: worker processes, their lines, their outputs, their ends.

launch              starts the processes, stays with them, ends them
supervision         the lives of a job that is durable: after lost processes it goes on from its last checkpoint
loop, wakeups       its loop, of one life, and what wakes it; machine: what it has of the machine it runs on
run_summary         what a run came to
children, newcomers    the processes it started, and those that join; child_process: one of them
place, process_starter    where they run, and how they are started there
on_spark, remote_process, agent_door    Spark's executors as that place; one there; where their agents connect
launcher_input      where lines come from; line_options: what the user says of that
file_lines          lines of a pipe; line_reader, line_pusher: those that the launcher reads itself
epoch_merge         outputs in epoch order; output_queue: on their way to their writer
output_specs        what `--output` says; several_outputs: more than one, as one; csv_file: one of rows
output_file         a file as an output, and the files that it protects; output_copy: taken from another launcher
spark_results       `--output spark:…`; results_log, results_files: what there is for Spark, and what it has read
store_keeper        the store of durable state; kept_input: what that says of the input's files
resumption          how a job with a store begins; first_owners: with which bins each worker does
checkpointing       checkpoints under way; commit_draft: what is known of one
stop_request        its own request to stop; early_end: the end of a job that has not worked off everything
door_keeper         who answers at its side door; busy_workers: which of them are in one step for long
python_function     `megaflow.run`, `megaflow.start`; spark_run: `megaflow.spark.run`; function_pickler: their dataflow
started_job         a job beside the program's own work; job_control: its commands; program_output: what it reads of it
pulled_source       iterables and queues of the program's, from which the job pulls; loop_sources: those of asyncio
"""
