"""What the launcher of any job calls of this package. A name is loaded from its module when it is first used.

So a job without Spark loads none of these modules. The types of the names are in `launching.pyi`.
"""

from megaflow.front_door import offer

_NAMES = {
    "megaflow.spark.kept_query": ("KeptFeed", "check_frames", "check_records", "keep_queries"),
    "megaflow.spark.named_sources": ("register_sources",),
    "megaflow.spark.preflight": ("check_spark", "local_files", "would_read"),
    "megaflow.spark.query_spec": (
        "NOT_READ_AGAIN", "RowFrames", "SparkSpec", "is_a_batch", "parse_row_specs", "parse_spark_spec", "sources_of",
        "spark_spec_of",
    ),
    "megaflow.spark.row_packing": ("check_columns",),
    "megaflow.spark.source": ("SparkFeed",),
    "megaflow.spark.worker_jobs": ("WorkerJobs",),
    "megaflow.spark.worker_settings": ("parse_conf", "parse_on"),
}  # module -> names that it offers

__getattr__, __dir__, __all__ = offer(globals(), _NAMES)
