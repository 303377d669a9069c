"""The types of the names that this package loads on first use."""

from megaflow.job.formats.csv_format import Csv as Csv
from megaflow.job.formats.csv_types import ReadColumns as ReadColumns
from megaflow.job.formats.json_format import JsonLines as JsonLines
from megaflow.job.formats.json_values import JsonValues as JsonValues
