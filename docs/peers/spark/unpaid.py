"""Orders without a payment within ten minutes, on Spark Structured Streaming: an outer join of two streams."""

from pyspark.sql import SparkSession
from pyspark.sql import functions as f


def read(name, *columns):
    lines = spark.readStream.schema("order string, at long").option("maxFilesPerTrigger", 1).json(name)
    return lines.select(f.col("order").alias(columns[0]), f.timestamp_seconds("at").alias(columns[1])).withWatermark(
        columns[1], "30 seconds")


spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 3).getOrCreate()
orders, payments = read("orders", "order", "placed"), read("payments", "paid_order", "paid")
in_time = f.expr("order = paid_order AND paid BETWEEN placed AND placed + INTERVAL 10 MINUTES")
unpaid = orders.join(payments, in_time, "leftOuter").where("paid IS NULL").select("order")
query = unpaid.writeStream.outputMode("append").format("console").trigger(availableNow=True).start()
query.awaitTermination()
