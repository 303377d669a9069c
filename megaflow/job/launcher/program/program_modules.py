"""The modules that belong to a program, not to libraries, and whether another process can import them."""

import os
import sys
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import cloudpickle

from megaflow.spark.shipping import INSTALLED

MAIN = "__main__"
START_SECONDS = 0.02  # the start is known to 0.01 s, and the program's imports come later than this


def source_of(module: ModuleType) -> str:
    """Return a module's file, or its package's folder; "" for an installed module and one without a file."""
    package = sys.modules.get(module.__name__.partition(".")[0], module)
    folders = getattr(package, "__path__", None)
    found: str | None = next(iter(folders), None) if folders else getattr(module, "__file__", None)
    if found is None or package.__name__ in sys.stdlib_module_names or not INSTALLED.isdisjoint(Path(found).parts):
        return ""
    return os.path.abspath(found)


def is_own(module: ModuleType) -> bool:
    """Return whether a module is the script or belongs to its program, not to a library."""
    top = module.__name__.partition(".")[0]
    return top == MAIN or (top != "megaflow" and bool(source_of(module)))


def is_imported(module: ModuleType) -> bool:
    """Return whether a module belongs to the program but is not the script."""
    return module.__name__ != MAIN and is_own(module)


def own_types(module: ModuleType) -> dict[str, type]:
    """Return the program's own classes in a module, by their names there."""
    homes = {name: sys.modules.get(each.__module__) for name, each in vars(module).items() if isinstance(each, type)}
    own = (name for name, home in homes.items() if home is module or (home is not None and source_of(home)))
    return {name: vars(module)[name] for name in own}


def can_import(module: ModuleType) -> bool:
    """Return whether another process with this sys.path finds the same module under its name."""
    path = None
    names = module.__name__.split(".")
    for length in range(1, len(names) + 1):
        name = ".".join(names[:length])
        found = (finder.find_spec(name, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return spec is not None and (not spec.has_location or spec.origin == getattr(module, "__file__", None))


def is_from_source(module: ModuleType) -> bool:
    """Return whether workers import a module of the program from its source, with Python's own loader.

    Other loaders, such as pytest's, may rewrite what they load.
    """
    if not is_imported(module) or module.__name__ in cloudpickle.list_registry_pickle_by_value():
        return False
    is_plain = type(module.__loader__) is SourceFileLoader and str(module.__file__).endswith(".py")
    return is_plain and can_import(module)


def may_be_edited(file: str) -> bool:
    """Return whether a file may have changed since this process started.

    This looks at the change time (ctime). Copying may set a file's modification time back, but no tool does that with
    the change time. Outside of Linux the time of the start is unknown, so the answer is True.
    """
    started = _process_start()
    return started is None or os.stat(file).st_ctime > started + START_SECONDS


def _process_start() -> float | None:
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])  # ticks since the boot
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return None
