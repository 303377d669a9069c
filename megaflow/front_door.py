"""Names that a package offers to programs, loaded from their modules when they are first used."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def offer(
    package: dict[str, Any], homes: Mapping[str, Sequence[str]], *others: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package; `package` is its `globals()`.

    `homes`: module -> the names that it offers; `others` are in the package without that. The second use of a name
    finds it in the package.
    """
    home_of = {name: module for module, names in homes.items() for name in names}
    offered = sorted([*home_of, *others])

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        value = package[name] = getattr(import_module(home_of[name]), name)
        return value

    return load, lambda: offered, offered
