"""Totals of customers on Spark Structured Streaming, with a checkpoint: totals.py [CORES]."""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

cores = sys.argv[1] if sys.argv[1:] else "2"
spark = SparkSession.builder.master(f"local[{cores}]").config("spark.sql.shuffle.partitions", 3).getOrCreate()
files = spark.readStream.schema("customer string, cents long").option("maxFilesPerTrigger", 1)
orders = files.csv("orders", header=True)
totals = orders.groupBy("customer").agg(f.sum("cents").alias("total"))


def write(batch, number):
    batch.write.mode("overwrite").csv(f"totals/{number}")    # the same folder if the batch is repeated


query = (totals.writeStream.outputMode("update").foreachBatch(write)
               .option("checkpointLocation", "checkpoint").trigger(availableNow=True).start())
query.awaitTermination()
