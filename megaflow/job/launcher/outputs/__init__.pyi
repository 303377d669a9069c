from megaflow.job.launcher.outputs.spark_results import open_results as open_results
