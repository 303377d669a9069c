"""Lines from Spark Structured Streaming. Nothing else in megaflow knows pyspark.

query_spec     what `--lines spark:…` says
preflight      what can be known to fail before Spark starts
spark_session  a Spark session of our own
source         a streaming query that feeds a job, in the launcher
kept_query     where it goes on, if the job has a store
push           how lines leave Spark, in its executors

cluster, worker_jobs          a session whose executors run worker processes, each as a job of one task
shipping, worker_settings     what is sent to them; which settings of Spark's they can live with
"""
