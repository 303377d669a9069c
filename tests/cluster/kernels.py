"""Real Jupyter kernel, where a test runs cells like a notebook; needs ipykernel and nbclient."""

import os
from pathlib import Path
from typing import Any, Final, NamedTuple

CELL_SECONDS: Final = 120.0
NO_KERNEL: Final = "needs a Jupyter kernel: pip install ipykernel nbclient"


class Ran(NamedTuple):
    """The outputs of a cell."""

    out: str
    err: str
    result: str  # "" if there was none
    error: str  # the name of an exception
    said: str  # its text
    traceback: str


class Kernel:
    """Kernel in a separate folder, which also holds the files of its jobs and settings."""

    def __init__(self, folder: Path) -> None:
        from jupyter_client.manager import start_new_kernel

        self._manager, self._client = start_new_kernel(kernel_name="python3", cwd=str(folder), env=surroundings(folder))

    def run(self, cell: str, press_stop_at: str = "") -> Ran:
        """Run a cell. With `press_stop_at`, press the stop button when this text is printed."""
        streams = {"stdout": "", "stderr": ""}
        result, error = "", ("", "", "")

        def note(message: Any) -> None:
            nonlocal result, error
            content, before = message["content"], streams["stdout"]
            match message["msg_type"]:
                case "stream":
                    streams[content["name"]] += content["text"]
                case "execute_result":
                    result = content["data"]["text/plain"]
                case "error":
                    error = content["ename"], content["evalue"], "\n".join(content["traceback"])
            if press_stop_at and press_stop_at not in before and press_stop_at in streams["stdout"]:
                self._manager.interrupt_kernel()

        self._client.execute_interactive(cell, timeout=CELL_SECONDS, output_hook=note)
        return Ran(streams["stdout"], streams["stderr"], result, *error)

    def restart(self) -> None:
        """Press the restart button."""
        self._manager.restart_kernel()
        self._client.wait_for_ready(CELL_SECONDS)

    def kill(self) -> None:
        """Kill the kernel's process, as a system without free memory does."""
        self._manager.signal_kernel(9)

    def close(self) -> None:
        """End the kernel."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)


def surroundings(folder: Path) -> dict[str, str]:
    """Return the environment of a kernel; the job files and the user's settings are in this folder."""
    homes = {name: folder / name.lower() for name in ("XDG_RUNTIME_DIR", "IPYTHONDIR", "JUPYTER_CONFIG_DIR")}
    for home in homes.values():
        home.mkdir(mode=0o700, exist_ok=True)
    given = {name: str(home) for name, home in homes.items()}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MEGAFLOW_")}
    return {**kept, **given, "PYTHONHASHSEED": "random", "JUPYTER_PLATFORM_DIRS": "1"}


def executed(notebook: Any, folder: Path) -> Any:
    """Run all cells of a notebook in a new kernel, in a folder; return the notebook with their outputs."""
    from nbclient import NotebookClient

    settings = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=CELL_SECONDS, kernel_name="python3", resources=settings)
    client.execute(env=surroundings(folder))
    return notebook
