"""Card payments in one file, drawn from a seed, and the alerts that plain Python gives for them."""

from collections import Counter, defaultdict
from pathlib import Path
from random import Random


class Payments:
    """A file of payments, and the expected alerts."""

    def __init__(self, path: Path, payments: int, cards: int = 50, seed: int = 0) -> None:
        random, seconds = Random(seed), 0
        past: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        self.lines = ["id,card,seconds,cents,country"]
        self.wanted: Counter[tuple[str, str, str]] = Counter()
        for number in range(payments):
            seconds += random.randrange(20)
            card = f"card{min(random.randrange(cards), random.randrange(cards))}"
            usual = random.randint(100, 9_999)
            cents = random.choice([random.randint(1, 99), *[usual] * 6, random.randint(10**5, 10**6)])
            country = random.choice(["CH", "CH", "CH", "CH", "DE", "FR"])
            self.lines.append(f"{number},{card},{seconds},{cents},{country}")
            before = past[card]
            for rule, broken in self.rules(before, seconds, cents, country).items():
                if broken:
                    self.wanted[str(number), card, rule] += 1
            before.append((seconds, cents, country))
        path.write_text("".join(f"{line}\n" for line in self.lines))

    @staticmethod
    def rules(before: list[tuple[int, int, str]], seconds: int, cents: int, country: str) -> dict[str, bool]:
        """Return for each rule whether a payment breaks it, computed from all earlier payments of the card."""
        last = before[-1] if before else (float("-inf"), 10**9, country)
        return {
            "burst": sum(seconds - each < 600 for each, _, _ in before) >= 4,
            "large": len(before) >= 3 and cents * len(before) > 10 * sum(each for _, each, _ in before),
            "abroad": country != last[2] and seconds - last[0] < 3600,
            "tested": last[1] < 100 and cents >= 100 * last[1],
        }
