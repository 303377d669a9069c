"""All that knows pyspark: lines from Structured Streaming."""
