"""Lines and rows from Spark, results to it, workers on its executors. Nothing else in megaflow knows pyspark.

What programs call, of which `job.launcher.spark_run` has more:
    run            starts a job between DataFrames, on the executors of their session
    Run            that job

What is below:

query_spec     what `--lines spark:…` and `--rows NAME=spark:…` say
preflight      what can be known to fail before Spark starts, and where a session writes
spark_session  a Spark session of our own
source         the queries that feed a job, in the launcher; fed_query: one of them; batch_run: of a batch DataFrame
kept_query     where it goes on, if the job has a store
results_source results as a streaming DataFrame; results_spec, results_query: what `--output spark:…` says, and runs;
               results_batches: how it does without Arrow
push           how lines leave Spark, in its executors; row_packing: how rows do

cluster, worker_jobs          a session whose executors run worker processes, each as a job of one task
shipping, worker_settings     what is sent to them; which settings of Spark's they can live with

A public name is loaded from its module when it is first used. Its type stands in `__init__.pyi`.
"""

from megaflow.front_door import offer

_NAMES = {"megaflow.job.launcher.spark_run": ("Run", "run")}  # module -> what it offers

__getattr__, __dir__, __all__ = offer(globals(), _NAMES)
