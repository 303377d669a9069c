"""Views of a page per minute on Spark Structured Streaming. Late views are dropped, and counted in the progress."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 3).getOrCreate()
views = spark.readStream.schema("at long, page string").option("maxFilesPerTrigger", 1).json("views")
timed = views.withColumn("time", f.timestamp_seconds("at")).withWatermark("time", "30 seconds")
counts = timed.groupBy(f.window("time", "1 minute"), "page").count()
flat = counts.select("page", f.unix_timestamp("window.start").alias("start"), "count")
query = flat.writeStream.outputMode("append").format("console").trigger(availableNow=True).start()
query.awaitTermination()
print("late:", sum(state.numRowsDroppedByWatermark for progress in query.recentProgress
                   for state in progress.stateOperators))
