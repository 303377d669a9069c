"""A job in the launcher, from its start to its end.

launch           the life of a job: starts its processes, and ends them
supervision      the attempts of a durable job: after a loss, it resumes from its last checkpoint
loop             the launcher's loop in one attempt
machine          clocks, selector and threads, which a simulation replaces; the parts of a job that outlast an attempt
process_starter  starts the processes of an attempt
newcomers        processes that join
checkpointing    checkpoints in the loop, from their beginning to their commit
door_keeper      answers at the admin socket
published_job    the file by which commands find the job
live_page        the page of a running job, and its metrics
run_summary      the totals of a run
started_job      a job beside the program's own work
job_control      its commands: `job.control`
python_function  `megaflow.run` and `megaflow.start`
spark_run        `megaflow.spark.run`
spark_stateful   `megaflow.spark.stateful`
spark_processor  `megaflow.spark.transformWithState`
"""
