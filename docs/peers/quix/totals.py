"""Totals of customers on Quix Streams, each order once."""

from quixstreams import Application


def add(order, state):
    total = state.get("total", 0) + int(order["cents"])
    state.set("total", total)
    return {"customer": order["customer"], "total": total}


app = Application("127.0.0.1:9092", consumer_group="totals", auto_offset_reset="earliest",
                  processing_guarantee="exactly-once", commit_interval=1.0)
orders = app.dataframe(app.topic("orders"))                  # the key of a message is its customer
totals = orders.apply(add, stateful=True)
totals.to_topic(app.topic("totals"))

if __name__ == "__main__":
    app.run()
