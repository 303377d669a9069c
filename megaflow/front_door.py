"""Names that a package offers to programs, loaded from their modules on first use."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Any


def offer(
    package: dict[str, Any],
    homes: Mapping[str, Sequence[str]],
    *others: str,
    otherwise: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package; `package` is its `globals()`.

    `homes`: module -> the names that it offers; `others`: names that are already in the package. A name that was loaded
    once is then in the package. `otherwise`: a name that the package does not offer -> what to write instead. These
    names raise ImportError, because `from … import` replaces the message of an AttributeError with its own.
    """
    home_of = {name: module for module, names in homes.items() for name in names}
    offered = sorted([*home_of, *others])

    def load(name: str) -> Any:
        if name in otherwise:
            raise ImportError(f"{package['__name__']} has no {name!r}: {otherwise[name]}.")
        if name not in home_of:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        value = package[name] = getattr(import_module(home_of[name]), name)
        return value

    return load, lambda: offered, offered
