"""Out-of-order card payments in JSON lines, drawn from a seed, and the alerts that plain Python gives."""

import json
from collections import Counter, defaultdict
from collections.abc import Collection
from pathlib import Path
from random import Random
from typing import Any

BEGIN = 1_700_000_000
OUT_OF_ORDER = 30  # seconds
LATE_SECONDS = (600, 6000)  # of one in fifty
FILES = 2

Alert = tuple[int, str, str]


class TimedPayments:
    """Files of payments. Each is written up to OUT_OF_ORDER seconds after it was made, or long after that."""

    def __init__(self, folder: Path, payments: int, cards: int, seed: int = 0) -> None:
        folder.mkdir()
        random, seconds = Random(seed), BEGIN
        written: list[tuple[int, int, dict[str, Any]]] = []  # (when it is written, a random number, the payment)
        self.in_time: set[int] = set()  # ids
        made: set[tuple[str, int]] = set()
        card = ""
        for id in range(payments):
            is_again = card and random.random() < 0.4
            seconds += random.randrange(30 if is_again else 2000 // cards + 2)
            card = card if is_again else f"card{random.randrange(cards)}"
            at = seconds
            delay = random.randrange(OUT_OF_ORDER)
            if random.randrange(50):
                self.in_time.add(id)
            else:
                delay = random.randrange(*LATE_SECONDS)
            while (card, at) in made:
                at += 1
            made.add((card, at))
            country = random.choice(["CH"] * 6 + ["DE", "FR"])
            written.append((at + delay, id, {"id": id, "card": card, "seconds": at, "country": country}))
        self.lines: dict[str, list[str]] = {f"payments{number}.jsonl": [] for number in range(FILES)}
        for _, _, payment in sorted(written, key=lambda each: each[:2]):
            self.lines[random.choice(list(self.lines))].append(json.dumps(payment))
        for name, lines in self.lines.items():
            (folder / name).write_text("".join(f"{line}\n" for line in lines))
        self.payments = [payment for _, _, payment in written]

    def wanted(self, late: Collection[int]) -> Counter[Alert]:
        """Return the alerts for all payments except the late ones, checking each payment against all before it."""
        of_card: dict[str, list[dict[str, Any]]] = defaultdict(list)
        found: Counter[Alert] = Counter()
        for payment in sorted(self.payments, key=lambda each: each["seconds"]):
            id, card = payment["id"], payment["card"]
            if id in late:
                found[id, card, "late"] += 1
                continue
            before = of_card[card]
            since = [payment["seconds"] - each["seconds"] for each in before]
            if sum(each < 60 for each in since) >= 2:
                found[id, card, "burst"] += 1
            if before and before[-1]["country"] != payment["country"] and since[-1] < 3600:
                found[id, card, "abroad"] += 1
            before.append(payment)
        return found
