"""Write the lines of files to topics of the same names: python feed.py orders.csv views.jsonl."""

import csv
import json
import sys
from pathlib import Path

from quixstreams import Application
from quixstreams.models import TopicConfig

THREE = TopicConfig(num_partitions=3, replication_factor=1, extra_config={"retention.ms": "604800000"})

app = Application("127.0.0.1:9092")
with app.get_producer() as producer:
    for path in map(Path, sys.argv[1:]):
        topic = app.topic(path.stem, config=THREE)
        with path.open() as lines:
            for row in csv.DictReader(lines) if path.suffix == ".csv" else map(str.strip, lines):
                record = row if isinstance(row, dict) else json.loads(row) if path.suffix == ".jsonl" else row
                key = next((record[name] for name in ("customer", "page", "order") if name in record), "line")
                at = record["at"] * 1000 if isinstance(record, dict) and "at" in record else None
                producer.produce(topic.name, json.dumps(record), key, timestamp=at)
