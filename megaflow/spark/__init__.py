"""Lines and rows from Spark, results to Spark, workers on its executors. Only this package knows pyspark.

What programs call, see also `job.launcher.spark_run`:
    run            starts a job between DataFrames, on the executors of their session
    Run            the running job

Below:

query_spec     the meaning of `--lines spark:…` and `--rows NAME=spark:…`
preflight      failures that can be detected before Spark starts, and where a session writes
spark_session  a Spark session that megaflow starts
source         the queries that feed a job, in the launcher
fed_query      one of these queries
batch_run      the query of a batch DataFrame
kept_query     the position from which a query resumes if the job has a store
results_source results as a streaming DataFrame
results_spec   the meaning of `--output spark:…`
results_query  its query
results_batches    its batches without Arrow
push           how lines leave Spark, in its executors
row_packing    how rows leave it
cluster, worker_jobs          a session whose executors run worker processes, each as a job of one task
shipping       the files that are sent to the executors
worker_settings    the settings of Spark that workers support

A public name is loaded from its module when it is first used. Its type is in `__init__.pyi`.
"""

from megaflow.front_door import offer

_NAMES = {"megaflow.job.launcher.spark_run": ("Run", "run")}  # module -> what it offers

__getattr__, __dir__, __all__ = offer(globals(), _NAMES)
