"""Lines and rows from Spark, results to Spark, workers on its executors. Only this package knows pyspark.

Programs call these names; see also `job.launcher.run.spark_run`, `spark_stateful` beside it, and `job.spark_sources`:
    stateful       folds a grouped DataFrame; returns a DataFrame
    FrameJob       the job behind it
    transformWithState     runs a StatefulProcessor of Spark; also transformWithStateInPandas
    RowTimers      sets timers in a fold
    run            starts a job between DataFrames, on the executors of their session
    Run            the running job
    register       lets a session find megaflow's data sources by name

Modules:

query_spec     the meaning of `--lines spark:…` and `--rows NAME=spark:…`
preflight      detects failures before Spark starts; the folder that a session writes to
spark_session  a Spark session that megaflow starts
source         the queries that feed a job, in the launcher
fed_query      one of these queries
batch_run      the query of a batch DataFrame
batch_times    the times of a query's batches, which timers follow
kept_query     the position from which a query resumes if the job has a store
results_source results as a streaming DataFrame
named_sources  the data sources that a session finds by name
results_spec   the meaning of `--output spark:…`
results_query  its query
results_batches    its batches without Arrow
stateful_frame the DataFrames around a stateful fold
stateful_rows  folds on Spark's Rows
processor_fold     a StatefulProcessor of Spark as a fold, and the dataflow around it
processor_states   its handle: states, TTL and timers of one key
processor_values   the values that it gets, keeps and returns
stateful_timers    folds with timers
job_progress   the progress of a job in the classes of Spark's streaming queries
push           how lines leave Spark, in its executors
row_packing    how rows leave Spark
cluster, worker_jobs          a session whose executors run worker processes, each as a job of one task
shipping       the files that are sent to the executors
worker_settings    the settings of Spark that workers support
spark_errors   Spark's errors in one sentence
masters        the names and versions of Spark's masters
slots          how many worker processes fit beside Spark's own tasks
launching      names of these modules, loaded on first use, for the launcher of any job

A public name is loaded from its module when it is first used. Its type is in `__init__.pyi`.
"""

from megaflow.front_door import offer

_NAMES = {
    "megaflow.job.launcher.run.spark_run": ("Run", "run"),
    "megaflow.job.launcher.run.spark_processor": ("transformWithState", "transformWithStateInPandas"),
    "megaflow.job.launcher.run.spark_stateful": ("FrameJob", "stateful"),
    "megaflow.spark.stateful_timers": ("RowTimers",),
    "megaflow.job.spark_sources": ("register",),
}  # module -> names that it offers

__getattr__, __dir__, __all__ = offer(globals(), _NAMES)
