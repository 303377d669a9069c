"""The kernel's counters reveal a kill for lack of memory, in both versions of control groups."""

from pathlib import Path

import pytest

from megaflow.job.memory_limit import memory_limit, watch_kills

V1 = "36 32 0:33 {root} {mount} rw,relatime - cgroup cgroup rw,memory\n"
V2 = "29 23 0:26 {root} {mount} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
OTHER = "30 23 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"


class Kernel:
    """A `/proc` with a mount of control groups."""

    def __init__(self, folder: Path, mounts: str, groups: str, root: str = "/") -> None:
        self.proc, self.mount = folder / "proc", folder / "cgroup"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self" / "mountinfo").write_text(OTHER + mounts.format(root=root, mount=self.mount))
        (self.proc / "self" / "cgroup").write_text(groups)

    def write(self, path: str, text: str) -> None:
        (self.mount / path).parent.mkdir(parents=True, exist_ok=True)
        (self.mount / path).write_text(text)


def test_version_2_names_the_tightest_limit_around(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, V2, "0::/system.slice/job.service\n")
    kernel.write("system.slice/job.service/memory.events", "low 0\nmax 7\noom 1\noom_kill 1\n")
    kernel.write("system.slice/job.service/memory.max", "max\n")
    kernel.write("system.slice/memory.max", f"{512 << 20}\n")
    watch = watch_kills(kernel.proc)
    assert watch() == ""
    kernel.write("system.slice/job.service/memory.events", "low 0\nmax 9\noom 2\noom_kill 2\n")
    assert watch().startswith("because the memory limit of its control group, 512 MiB, was exhausted (raise the limit")


def test_version_1_has_its_own_files(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, V1, "5:cpu,cpuacct:/other\n4:memory:/job\n0::/\n")
    kernel.write("job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    kernel.write("job/memory.limit_in_bytes", f"{3 << 30}\n")
    watch = watch_kills(kernel.proc)
    kernel.write("job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert "3 GiB" in watch()


def test_a_container_sees_its_own_group_as_the_mount(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, V1, "4:memory:/docker/1a2b\n", root="/docker/1a2b")
    kernel.write("memory.oom_control", "oom_kill 4\n")
    kernel.write("memory.limit_in_bytes", "9223372036854771712\n")
    limit = memory_limit(kernel.proc)
    assert limit.kills() == 4 and "the machine, or a control group around this one, had no memory" in limit.text()


@pytest.mark.parametrize("groups", ["0::/\n", ""])
def test_without_counts_of_a_group_those_of_the_machine_count(tmp_path: Path, groups: str) -> None:
    kernel = Kernel(tmp_path, V2, groups)
    (kernel.proc / "vmstat").write_text("nr_free_pages 1\noom_kill 2\n")
    watch = watch_kills(kernel.proc)
    (kernel.proc / "vmstat").write_text("nr_free_pages 1\noom_kill 3\n")
    assert watch().startswith("because the machine had no memory left")


def test_a_system_that_tells_nothing_says_nothing(tmp_path: Path) -> None:
    assert memory_limit(tmp_path).kills() is None and watch_kills(tmp_path)() == ""
