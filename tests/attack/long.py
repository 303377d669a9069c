"""The attacks by hand: `python -m tests.attack --minutes 60` plays them on random seeds until one finds something.

Each attack is a function of a `random.Random`. It counts its actions in `tests.attack.tally.COUNTS`, and raises an
exception for a finding. One attack plays at a time, in a separate process.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.attack import (
    hostile,
    leaks,
    schedules,
    test_fuzz_bytes,
    test_fuzz_command_line,
    test_fuzz_control,
    test_fuzz_job_files,
)
from tests.attack.tally import COUNTS

SMALL_ATTACKS = 500  # in a row, of those that take milliseconds each


def many(attack: Callable[[random.Random], None]) -> Callable[[random.Random], None]:
    """Return an attack that plays a small attack many times."""

    def play_many(rng: random.Random) -> None:
        for _ in range(SMALL_ATTACKS):
            COUNTS["small attacks"] += 1
            attack(rng)

    return play_many


ATTACKS: dict[str, Callable[[random.Random], None]] = {
    "schedule": schedules.attack,
    "killed": schedules.attack_to_death,
    "joins": leaks.attack_with_joins,
    "clients": leaks.attack_with_clients,
    "hostile": hostile.attack,
    "requests": test_fuzz_control.attack,
    "values": test_fuzz_bytes.attack_values,
    "frames": many(test_fuzz_bytes.attack_frames),
    "memory": many(test_fuzz_bytes.attack_memory),
    "job files": many(test_fuzz_job_files.attack_folder),
    "command lines": many(test_fuzz_command_line.attack_command_line),
}

SECONDS_OF_A_REPORT = 60.0
ATTACK_SECONDS_MAX = 1800.0  # more than any attack needs; a longer one hangs
ROOT = Path(__file__).resolve().parent.parent.parent


def main() -> None:
    """Attack for some minutes, or until an attack finds something."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, metavar="N", help="how long (60)")
    parser.add_argument("--seed", type=int, help="of the first attack; with --once that of a finding")
    parser.add_argument("--only", choices=ATTACKS, help="play no other attack")
    parser.add_argument("--once", action="store_true", help="play one attack, the one of --only and --seed")
    words = parser.parse_args()
    first = random.SystemRandom().randrange(2**32) if words.seed is None else words.seed
    if words.once:
        if words.only is None:
            parser.error("--once plays the attack that --only names")
        ATTACKS[words.only](random.Random(first))
        print(json.dumps(COUNTS))
    else:
        attack(random.Random(first), list(ATTACKS) if words.only is None else [words.only], words.minutes * 60)


def attack(rng: random.Random, names: list[str], seconds: float) -> None:
    """Play these attacks in turns for `seconds`; print each minute what was done."""
    done: Counter[str] = Counter()
    begun = time.monotonic()
    told = begun
    while (now := time.monotonic()) - begun < seconds:
        if now - told >= SECONDS_OF_A_REPORT:
            tell(now - begun, done)
            told = now
        play(names[done["attacks"] % len(names)], rng.randrange(2**32), done)
        done["attacks"] += 1
    tell(time.monotonic() - begun, done)
    print("nothing was found")


def play(name: str, seed: int, done: Counter[str]) -> None:
    """Play one attack. If it finds something, exit with everything known about it."""
    again = [sys.executable, "-m", "tests.attack", "--only", name, "--seed", str(seed), "--once"]
    options: Any = {"cwd": ROOT, "stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    try:
        ended = subprocess.run(again, timeout=ATTACK_SECONDS_MAX, check=True, **options)
    except subprocess.SubprocessError as found:  # it failed or does not end
        sys.exit(f"{found.stdout}{found.stderr}\n{found}\nagain: {' '.join(['python', *again[1:]])}")
    done.update(json.loads(ended.stdout.splitlines()[-1]))


def tell(seconds: float, done: Counter[str]) -> None:
    """Print the counts in a line."""
    counted = ", ".join(f"{number} {name}" for name, number in sorted(done.items()))
    print(f"{seconds / 60:5.1f} min: {counted}", flush=True)
