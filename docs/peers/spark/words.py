"""Running counts of words on Spark Structured Streaming."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 3).getOrCreate()
lines = spark.readStream.text("lines")                       # a folder
words = lines.select(f.explode(f.split("value", " ")).alias("word"))
counts = words.groupBy("word").count()
query = counts.writeStream.outputMode("update").format("console").trigger(availableNow=True).start()
query.awaitTermination()
