"""Lines and rows from Spark. Nothing else in megaflow knows pyspark.

query_spec     what `--lines spark:…` and `--rows NAME=spark:…` say
preflight      what can be known to fail before Spark starts
spark_session  a Spark session of our own
source         the queries that feed a job, in the launcher; fed_query: one of them; batch_run: of a batch DataFrame
kept_query     where it goes on, if the job has a store
push           how lines leave Spark, in its executors; row_packing: how rows do

cluster, worker_jobs          a session whose executors run worker processes, each as a job of one task
shipping, worker_settings     what is sent to them; which settings of Spark's they can live with
"""
