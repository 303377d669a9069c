"""Totals per customer: Spark reads and prepares orders, megaflow's workers fold them, Spark gets the results."""

import tempfile

import megaflow
from megaflow import Flow, Stream
from pyspark.sql import SparkSession

TOTALS = "customer STRING, orders LONG, cents LONG"

Total = tuple[str, int, int]  # as in TOTALS


def spend(customer: str, cents: int, state: tuple[int, int] | None) -> tuple[tuple[int, int], list[Total]]:
    """Add an order to its customer's state, which is None before the first. Return the new state, and outputs."""
    orders, total = state or (0, 0)
    state = orders + 1, total + cents
    return state, [(customer, *state)]


def totals(orders: Stream[tuple[str, int]]) -> Stream[Total]:
    """Return each customer's total after each order."""
    return orders.stateful_state_machine(spend)


def dataflow(flow: Flow) -> Stream[Total]:
    """Read the rows of the DataFrame that `main` names "orders": a tuple of its columns each."""
    return totals(flow.rows("orders"))


def main() -> None:
    """Run the dataflow between two DataFrames, on the executors of a session."""
    session = SparkSession.builder.master("local[2]").getOrCreate()
    orders = session.read.json("orders.json").where("paid").select("customer", "cents")
    with tempfile.TemporaryDirectory() as folder, megaflow.spark.run({"orders": orders}, dataflow, TOTALS) as run:
        results = run.results.writeStream.option("checkpointLocation", f"{folder}/checkpoint")
        query = run.start_query(lambda: results.trigger(availableNow=True).start(f"{folder}/totals"))
        query.awaitTermination()  # it ends with the job
        totals = session.read.parquet(f"{folder}/totals")
        totals.groupBy("customer").max("orders", "cents").orderBy("customer").show()


if __name__ == "__main__":
    main()
