"""Views of a page per minute on Quix Streams, with a callback for late views."""

from datetime import timedelta

from quixstreams import Application


def late(value, key, timestamp, late_by, start, end, name, topic, partition, offset):
    print("late:", value)
    return False                   # no warning in the log


app = Application("127.0.0.1:9092", consumer_group="views", auto_offset_reset="earliest")
views = app.dataframe(app.topic("views"))                    # the key of a message is its page
minutes = views.tumbling_window(timedelta(minutes=1), grace_ms=timedelta(seconds=30), on_late=late)
minutes.count().final().print(metadata=True)

if __name__ == "__main__":
    app.run(timeout=10)
