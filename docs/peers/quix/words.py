"""Running counts of words on Quix Streams."""

from quixstreams import Application


def count(word, state):
    total = state.get("total", 0) + 1
    state.set("total", total)
    return word, total


app = Application("127.0.0.1:9092", consumer_group="words", auto_offset_reset="earliest")
lines = app.dataframe(app.topic("lines"))
words = lines.apply(str.split, expand=True).group_by(lambda word: word, name="word")
words.apply(count, stateful=True).print()

if __name__ == "__main__":
    app.run(timeout=10)            # a job for a topic that grows forever has no timeout
