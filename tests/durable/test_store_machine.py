"""Launchers, a disk and the power in any order: acknowledged checkpoints are recovered, and valid ones are complete."""

from functools import partial

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.durable.launchers import Scene


class StoreMachine(RuleBasedStateMachine):
    """The oracle is `History`. Each launcher and each crash consults it."""

    scene: Scene

    @initialize(seed=st.integers(0, 1000), kept=st.integers(1, 3))
    def make(self, seed: int, kept: int) -> None:
        self.scene = Scene(seed, kept)
        self.scene.begin()

    @rule()
    def begin(self) -> None:
        self.scene.begin()

    @rule(which=st.integers(-3, -1), whole=st.booleans())
    def checkpoint(self, which: int, whole: bool) -> None:
        if self.scene.launchers:
            self.scene.checkpoint(self.scene.launchers[max(which, -len(self.scene.launchers))], whole)

    @rule()
    def lose_power(self) -> None:
        self.scene.lose_power()

    @rule(steps=st.integers(1, 60), fault=st.sampled_from(["crash", "EIO", "ENOSPC", "done-EIO"]))
    def fail_soon(self, steps: int, fault: str) -> None:
        self.scene.disk.happenings[len(self.scene.disk.steps) + steps] = fault

    @rule(steps=st.integers(1, 60), checkpoints=st.integers(0, 4), and_cut=st.booleans())
    def be_overtaken_soon(self, steps: int, checkpoints: int, and_cut: bool) -> None:
        overtake = partial(self.scene.overtake, checkpoints, and_cut)
        self.scene.disk.happenings[len(self.scene.disk.steps) + steps] = overtake

    @rule(steps=st.integers(1, 60))
    def lose_power_soon(self, steps: int) -> None:
        self.scene.disk.happenings[len(self.scene.disk.steps) + steps] = self.scene.lose_power

    @rule(room=st.none() | st.integers(0, 3000))
    def fill_the_disk(self, room: int | None) -> None:
        self.scene.disk.capacity = None if room is None else self.scene.disk.used() + room

    @invariant()
    def what_counts_is_whole(self) -> None:
        self.scene.check()

    def teardown(self) -> None:
        if hasattr(self, "scene"):
            self.scene.check_end()


StoreMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestStoreMachine = StoreMachine.TestCase
