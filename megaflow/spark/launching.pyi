"""The types of the names that this module loads on first use."""

from megaflow.spark.kept_query import KeptFeed as KeptFeed
from megaflow.spark.kept_query import check_frames as check_frames
from megaflow.spark.kept_query import check_records as check_records
from megaflow.spark.kept_query import keep_queries as keep_queries
from megaflow.spark.named_sources import register_sources as register_sources
from megaflow.spark.preflight import check_spark as check_spark
from megaflow.spark.preflight import local_files as local_files
from megaflow.spark.preflight import would_read as would_read
from megaflow.spark.query_spec import NOT_READ_AGAIN as NOT_READ_AGAIN
from megaflow.spark.query_spec import RowFrames as RowFrames
from megaflow.spark.query_spec import SparkSpec as SparkSpec
from megaflow.spark.query_spec import is_a_batch as is_a_batch
from megaflow.spark.query_spec import parse_row_specs as parse_row_specs
from megaflow.spark.query_spec import parse_spark_spec as parse_spark_spec
from megaflow.spark.query_spec import sources_of as sources_of
from megaflow.spark.query_spec import spark_spec_of as spark_spec_of
from megaflow.spark.row_packing import check_columns as check_columns
from megaflow.spark.source import SparkFeed as SparkFeed
from megaflow.spark.worker_jobs import WorkerJobs as WorkerJobs
from megaflow.spark.worker_settings import parse_conf as parse_conf
from megaflow.spark.worker_settings import parse_on as parse_on
