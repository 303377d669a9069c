"""Orders and payments in files, drawn from a seed, and the expected output of `apps/paid_orders.py`."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any


class Shop:
    """Files of orders and of payments, by the arguments that name them."""

    def __init__(self, folder: Path, orders: int, seed: int = 0) -> None:
        random = Random(seed)
        lines: dict[str, list[str]] = {"orders.csv": [], "payments/one.csv": [], "payments/two.csv": []}
        self.wanted: Counter[tuple[Any, ...]] = Counter()
        for number in range(orders):
            cents, customer = random.randint(100, 999), f"customer{random.randrange(20)}"
            parts = random.choice([[cents], [cents], [40, cents - 40], [cents - 1], [60], []])
            is_known = random.random() < 0.95
            if is_known:
                lines["orders.csv"].append(f"{number},{customer},{cents}")
            for part in parts:
                lines[f"payments/{random.choice(['one', 'two'])}.csv"].append(f"{number},{part}")
            if is_known and sum(parts) == cents:
                self.wanted["paid", str(number), customer, cents] += 1
            elif is_known or parts:
                self.wanted["left", str(number), *((customer, cents) if is_known else (None, 0)), sum(parts)] += 1
        (folder / "payments").mkdir(parents=True)
        for name, some in lines.items():
            random.shuffle(some)
            (folder / name).write_text("".join(f"{line}\n" for line in some))
        self.inputs = {"orders": str(folder / "orders.csv"), "payments": str(folder / "payments")}
        self.words = [word for name, path in self.inputs.items() for word in ("--lines", f"{name}={path}")]
        self.lines = sum(map(len, lines.values()))
