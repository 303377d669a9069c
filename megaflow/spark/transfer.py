"""How the lines of a batch get from Spark's Java into the Python of its tasks: as Arrow record batches, or as rows.

Arrow is taken, without being asked for, when all that Spark wants for it is installed here (`pip install
'megaflow[arrow]'`); `MEGAFLOW_SPARK_TRANSFER=rows` forces rows. What is staged and committed, and by which protocol, is
the same either way (`megaflow.spark.push`). Executors elsewhere are taken to have what is installed here, as they must
have megaflow; where they have no Arrow, force rows.
"""

import functools
import os
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from megaflow.errors import UsageError
from megaflow.spark.push import WINNER_SCHEMA, StageJob, Winner, push_batches, push_rows

VARIABLE = "MEGAFLOW_SPARK_TRANSFER"

Transfer: TypeAlias = Literal["arrow", "rows"]


def choose_transfer(environ: Mapping[str, str] = os.environ) -> tuple[Transfer, str]:
    """Return how lines are to travel, and a sentence that says so and why.

    Imports pyspark, and pandas and pyarrow if they are there. Raises UsageError if the environment asks for what there
    is not.
    """
    asked = environ.get(VARIABLE, "")
    if asked not in ("", "rows"):
        raise UsageError(f"{VARIABLE}={asked}: it must be rows, or not set: Arrow is used where it is installed")
    if asked:
        return "rows", f"lines leave Spark as rows ({VARIABLE}={asked})"
    from pyspark.sql.pandas.utils import require_minimum_pandas_version, require_minimum_pyarrow_version

    try:
        require_minimum_pandas_version()
        require_minimum_pyarrow_version()
    except ImportError as error:
        wanted = str(error).rpartition("] ")[2].partition(";")[0]  # Pandas >= 2.2.0 must be installed
        return "rows", f"lines leave Spark as rows; for Arrow, which is faster, {wanted}: pip install 'megaflow[arrow]'"
    return "arrow", "lines leave Spark as Arrow batches"


def push_frame(frame: Any, job: StageJob, transfer: Transfer) -> list[Winner]:
    """Have Spark's tasks stage the one text column of a batch; return those that went well, one a partition."""
    if transfer == "rows":
        winners: list[Winner] = frame.rdd.mapPartitionsWithIndex(functools.partial(push_rows, job)).collect()
        return winners
    pushed = frame.mapInArrow(functools.partial(push_batches, job), WINNER_SCHEMA)
    return [Winner(*row) for row in pushed.collect()]
