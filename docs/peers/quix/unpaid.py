"""Orders without a payment within ten minutes, on Quix Streams: sessions over two topics."""

from datetime import timedelta

from quixstreams import Application
from quixstreams.dataframe.windows import Collect


def unpaid(session, key, timestamp, headers):
    return [f"unpaid: {key.decode()}"] if not any(line["paid"] for line in session["value"]) else []


app = Application("127.0.0.1:9092", consumer_group="unpaid", auto_offset_reset="earliest")
orders = app.dataframe(app.topic("orders")).apply(lambda order: {**order, "paid": False})
payments = app.dataframe(app.topic("payments")).apply(lambda payment: {**payment, "paid": True})
sessions = orders.concat(payments).session_window(timedelta(minutes=10)).agg(value=Collect())
found = sessions.final(closing_strategy="partition")
found.apply(unpaid, expand=True, metadata=True).print()

if __name__ == "__main__":
    app.run(timeout=10)
