"""The sink sends outputs to the launcher, and a slow launcher holds the dataflow back."""

from typing import Any, cast

import pytest

from megaflow.control.launcher_messages import OutputBatch, OutputClosed
from megaflow.errors import BuildError
from megaflow.job.spec import Form
from megaflow.job.worker.control.connection_handlers import LauncherDoor
from megaflow.job.worker.writing.output import JobOutputs, NamedOutputs
from megaflow.program import Worker
from megaflow.scope import Scope
from megaflow.stream import Stream
from megaflow.timely.communication.local import LocalFabric
from megaflow.timely.dataflow.graph import Port, ScopeRef
from megaflow.timely.dataflow.input_handle import InputHandle
from megaflow.timely.dataflow.operators import linear, stamped
from megaflow.timely.dataflow.probe import ProbeHandle
from megaflow.timely.membership import founding
from tests.job.by_hand import Clock, lone_worker, settle


class Launcher:
    """A connection that notes what it is sent."""

    def __init__(self) -> None:
        self.has_room = True
        self.messages: list[object] = []

    def send(self, message: object) -> None:
        self.messages.append(message)


class Bench:
    """A sink on a lone worker."""

    def __init__(self, launcher: Launcher | None) -> None:
        self.clock = Clock()
        self.worker = lone_worker(self.clock)
        self.handle: InputHandle[Any] = InputHandle()
        self.probe = ProbeHandle()
        with self.worker.dataflow() as scope:
            port = scope.input_from(self.handle).port
            form: Form = "nothing" if launcher is None else "records"
            door = cast(LauncherDoor, launcher)
            self.output = JobOutputs({"": port}, door, {"": form})
            Stream(self.output.sent).probe_with(self.probe)

    def send(self, record: Any, then: int | None) -> None:
        self.handle.send(record)
        if then is None:
            self.handle.close()
        else:
            self.handle.advance_to(then)
        settle(self.worker)


def test_a_durable_job_that_wants_no_records_is_told_of_closed_epochs() -> None:
    launcher, worker = Launcher(), lone_worker(Clock())
    handle: InputHandle[Any] = InputHandle()
    with worker.dataflow() as scope:
        JobOutputs({"": scope.input_from(handle).port}, cast(LauncherDoor, launcher), {"": "nothing"}, durable=True)
    handle.send("a record")
    handle.advance_to(2)
    handle.send("another")
    handle.send("a third")
    handle.advance_to(5)
    settle(worker)
    assert launcher.messages == [OutputClosed(0, 5, ((0, 1), (2, 2)))]


def test_records_come_with_their_epochs_and_epochs_are_closed_in_order() -> None:
    launcher = Launcher()
    bench = Bench(launcher)
    bench.send("a", then=3)
    bench.send("b", then=None)
    assert launcher.messages == [
        OutputBatch(0, 0, ["a"]),
        OutputClosed(0, 3),
        OutputBatch(0, 3, ["b"]),
        OutputClosed(0, None),
    ]
    assert bench.output.records == 2
    assert bench.worker.installed_dataflows == {}


def test_a_slow_launcher_keeps_epochs_open_until_it_has_room() -> None:
    launcher = Launcher()
    bench = Bench(launcher)
    launcher.has_room = False
    bench.send("a", then=1)
    bench.send("b", then=2)
    assert launcher.messages == []
    assert list(bench.probe.frontier.elements) == [0], "what is not sent is not done"
    launcher.has_room = True
    bench.clock.now += 1
    settle(bench.worker)
    assert launcher.messages == [OutputBatch(0, 0, ["a"]), OutputBatch(0, 1, ["b"]), OutputClosed(0, 2)]
    assert list(bench.probe.frontier.elements) == [2]


def test_what_is_kept_leaves_before_what_comes_later() -> None:
    launcher = Launcher()
    bench = Bench(launcher)
    launcher.has_room = False
    bench.send("a", then=1)
    launcher.has_room = True
    bench.send("b", then=None)
    assert [message.records for message in launcher.messages if isinstance(message, OutputBatch)] == [["a"], ["b"]]
    assert launcher.messages[-1] == OutputClosed(0, None)


def test_no_worker_closes_an_epoch_at_which_another_keeps_something() -> None:
    clock, fabric, launchers = Clock(), LocalFabric([0, 1]), [Launcher(), Launcher()]
    workers = [Worker(fabric.allocator(each), founding([0, 1]), Scope, (clock, clock)) for each in (0, 1)]
    handles: list[InputHandle[Any]] = [InputHandle(), InputHandle()]
    for worker, handle, launcher in zip(workers, handles, launchers):
        with worker.dataflow() as scope:
            JobOutputs({"": scope.input_from(handle).port}, cast(LauncherDoor, launcher), {"": "records"})
    launchers[1].has_room = False  # as if worker 1 had just joined, before its launcher connects
    handles[1].send("a")
    for handle in handles:
        handle.advance_to(5)

    def settle_both() -> None:
        for _ in range(20):
            for worker in workers:
                settle(worker)

    settle_both()
    assert [launcher.messages for launcher in launchers] == [[], []]
    launchers[1].has_room = True
    clock.now += 1
    settle_both()
    assert launchers[0].messages == [OutputClosed(0, 5)]
    assert launchers[1].messages == [OutputBatch(1, 0, ["a"]), OutputClosed(1, 5)]


def test_without_a_launcher_records_are_only_counted() -> None:
    bench = Bench(None)
    bench.send("a", then=1)
    assert list(bench.probe.frontier.elements) == [1]
    bench.send("b", then=None)
    assert bench.output.records == 2
    assert bench.probe.done()


def test_an_output_of_a_stream_with_timestamps_names_the_operator_before() -> None:
    worker = Bench(Launcher()).worker
    handle: InputHandle[Any] = InputHandle()
    with worker.dataflow() as scope:
        pairs = linear.stateless(scope.input_from(handle).port, "filter", bool)
        line = scope.ref.graph.nodes[pairs.node].where
        JobOutputs({"": stamped.plain(pairs)}, cast(LauncherDoor, Launcher()), {"": "records"})
        [output] = [node for node in scope.ref.graph.nodes if node.name == "Output"]
    assert output.where == f"the output of 'Filter', {line}"


def test_an_output_of_an_inner_scope_is_refused() -> None:
    worker = lone_worker(Clock())
    with pytest.raises(BuildError, match="leave"), worker.dataflow() as scope:
        inner: Port[str] = Port(ScopeRef(scope.ref.graph, rounds=1), 0, 0)
        JobOutputs({"": inner}, LauncherDoor(), {"": "nothing"})


def test_outputs_by_name_are_sent_each_as_it_is_wanted_and_an_epoch_is_closed_for_all_at_once() -> None:
    launcher, worker = Launcher(), lone_worker(Clock())
    main, late = InputHandle[Any](), InputHandle[Any]()
    with worker.dataflow() as scope:
        ports = {"": scope.input_from(main).port, "late": scope.input_from(late).port}
        forms = {"": "records", "late": "jsonl"}
        output = JobOutputs(ports, cast(LauncherDoor, launcher), forms)
    main.send("a")
    late.send("b")
    main.advance_to(5)
    late.advance_to(3)
    settle(worker)
    sent = [OutputBatch(0, 0, ["a"], ""), OutputBatch(0, 0, ['{"time": 0, "record": "b"}'], "late"), OutputClosed(0, 3)]
    assert sorted(launcher.messages, key=str) == sorted(sent, key=str) and launcher.messages[-1] == sent[-1]
    late.close()
    settle(worker)
    assert launcher.messages[-1] == OutputClosed(0, 5) and output.records == 2
    assert output.by_name() == {"": 1, "late": 1}


def test_what_is_given_out_and_what_the_job_was_given_places_for_have_the_same_names() -> None:
    port = cast(Port[Any], None)
    with pytest.raises(BuildError, match=r"flow.output\('9', …\): The name must be an identifier"):
        NamedOutputs().write("9", port)
    outputs = NamedOutputs(["late", "bad"])
    with pytest.raises(
        BuildError,
        match=r"writes the output 'lost', but the job was given the outputs 'late' and 'bad'\. .*--output lost=jsonl:",
    ):
        outputs.write("lost", port)
    with pytest.raises(BuildError, match="writes the output 'lost', but the job was given no named output"):
        NamedOutputs([]).write("lost", port)
    with pytest.raises(BuildError, match=r"outputs 'late' and 'bad', but the dataflow does not call flow\.output"):
        outputs.check_written()
    outputs.write("late", port)
    with pytest.raises(BuildError, match=r"flow.output\('late', …\) is called twice\. Concatenate the streams"):
        outputs.write("late", port)
    with pytest.raises(BuildError, match="given the outputs 'bad', but the dataflow writes only 'late'"):
        outputs.check_written()
    outputs.write("bad", port)
    outputs.check_written()
    unknown = NamedOutputs()
    unknown.write("any", port)
    unknown.check_written()
