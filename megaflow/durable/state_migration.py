"""State migration: which states in a store go to which operator of a program, and how they are converted on the way.

The decision uses only values: a commit, and the program's terms for its operators.
 1. States go to the operator of the same name, except as `--rename-state OLD=NEW` and `--drop-state NAME` say. All
    states in the store go to exactly one operator each, or the resume is refused.
 2. After a crash, a user or a supervisor may repeat the command when it has already done its work: OLD is gone and NEW
    exists, or NAME is gone and the commit records that it was given up. This is no mistake, and changes nothing. So
    neither OLD nor NAME may be an operator of the program: the second run would treat that operator as the first run
    treated the old one.
 3. A commit has one name, number of bins, hash, version and kind for each operator. If a resume changes any of these,
    or the program has an operator more or less, its first checkpoint follows none: all states are written whole, in
    their new form, and it names no earlier segment beside them. A new operator needs that too: what changes in a bin
    counts only after a whole one. So commits record the version, for all segments alike. Until that commit is durable
    the store is unchanged, and the earlier program can resume from it.
 4. The bin in which a key was written decides which of its pieces are valid (`restored`). So when another hash takes
    over, the hash that placed the keys must be known: `rehash=` gives it. The keys show whether rehashing is still to
    be done: if the first key of each bin's base is where the present hash puts it, it is done, or unnecessary.
 5. States of windows, and of aggregates of a known kind, go to the same kind, or to one that can adapt them (`Form`). A
    store of commit format 2 or earlier does not record what its states are, so nothing is compared then.
 6. `upgrade` receives each key's last state once, but no older ones and no payloads of timers. Objects whose class is
    gone, or has other fields, arrive as old records.

Windows that were open at the checkpoint had records whose states are gone, if states were given up by `--drop-state`,
or by an `upgrade` that returned None; a new operator never had them. Records after the checkpoint make such a window
anew: its result is *partial*.
 7. Let g be the greatest timestamp of all records before the checkpoint. A window that begins after g had none of them.
    So all others may be partial, whichever keys and bounds the windows have now. (Sessions: see `WindowFold`.)
 8. So each operator with windows that begins without states is partial up to g. A commit keeps g for each of them,
    through all restarts. If `upgrade` forgets a key, g stays in the state of that key.
 9. If `upgrade` also changes the windows, a key without a state may have had records in windows that have closed, and
    a longer window may contain them. They are before the watermark. So such an operator is partial up to there, or up
    to g if its states were those of a fold. Upgraded keys are excepted: their states are marked as whole.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from megaflow.durable.commits import Commit, OperatorCut
from megaflow.durable.incarnation import PartialWindows
from megaflow.durable.restored import WINDOWS, Adapt, Restored, StateDescriptor, bare, unchanged
from megaflow.errors import ProgramError, StoreError, similar
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.codec.old_classes import OldRecord


def inherited(
    commit: Commit, descriptors: Iterable[StateDescriptor], renamed: Iterable[tuple[str, str]], dropped: Collection[str]
) -> dict[str, OperatorCut]:
    """Return the cut that each operator of a program inherits, by the operator's name; a new operator has none.

    `renamed`: (old name, new name). Raises StoreError if any states would go to no operator, or do not fit it.
    """
    heir_of = {descriptor.name: descriptor for descriptor in descriptors}
    kept = {cut.name: cut for cut in commit.operators}
    new_names = dict(renamed)
    for old, new in new_names.items():
        _check_renaming(old, new, heir_of, kept)
    for name in dropped:
        if name in heir_of:
            raise StoreError(
                f"--drop-state {name}: the program has an operator {name!r}, whose state would be lost each time "
                "this command runs; to start it without state, give it another name="
            )
        if name not in {*kept, *commit.dropped, *(token.sink for token in commit.tokens)}:
            raise StoreError(f"--drop-state {name}: the store has no operator {name!r}{among(name, sorted(kept))}")
    found = {}
    for name, cut in kept.items():
        if name in dropped:
            continue
        if (new := new_names.get(name, name)) not in heir_of:
            raise StoreError(_without_heir(name, sorted(heir_of.keys() - kept.keys())))
        check_version(heir_of[new], cut)
        adapter_of(heir_of[new], cut)
        found[new] = cut
    return found


def _check_renaming(old: str, new: str, descriptors: Collection[str], kept: Collection[str]) -> None:
    flag = f"--rename-state {old}={new}"
    if new not in descriptors:
        raise StoreError(f"{flag}: the program has no operator {new!r}{among(new, sorted(descriptors))}")
    if old in descriptors:
        raise StoreError(
            f"{flag}: the program still has operator {old!r}, which keeps the state; give that operator another name"
        )
    if old in kept and new in kept:
        raise StoreError(
            f"{flag}: the store already has states of both {old!r} and {new!r}; use --drop-state {old} instead to "
            f"give up those of {old!r}"
        )
    if old not in kept and new not in kept:
        raise StoreError(f"{flag}: the store has no operator {old!r}{among(old, sorted(kept))}")


def _without_heir(name: str, new: Sequence[str]) -> str:
    hint, near = "", similar(name, new)
    if near is not None:
        hint = f"; did you mean {near!r}? Then add --rename-state {name}={near}"
    elif new:
        heir = new[0] if len(new) == 1 else "NEW"
        hint = f"; if it has a new name ({', '.join(map(repr, new))}), add --rename-state {name}={heir}"
    return (
        f"the store has the state of operator {name!r}, but the program has no such operator{hint}; or give an "
        f"operator that name= again, or give up the state with --drop-state {name}"
    )


def among(wrong: str, names: Collection[str], title: str = "Operators") -> str:
    """Return the end of a sentence about a wrong name: the name that was perhaps meant, and all names under a title."""
    near = similar(wrong, names)
    question = f"; did you mean {near!r}?" if near else "."
    return f"{question} {title}: {', '.join(names) or 'none'}"


def check_version(descriptor: StateDescriptor, cut: OperatorCut) -> None:
    """Raise StoreError if an operator cannot read states of the version in the store."""
    version = descriptor.terms.version
    if cut.version > version:
        raise StoreError(
            f"the states of operator {descriptor.name!r} in the store are of version {cut.version}, but the program "
            f"has version {version}: run the newer program, or start with another --state folder"
        )
    if cut.version < version and descriptor.terms.upgrade is None:
        raise StoreError(
            f"the states of operator {descriptor.name!r} in the store are of version {cut.version}, but the program "
            f"has version {version}: give upgrade=f(key, state, version), which returns a state of version {version}"
        )


def adapter_of(descriptor: StateDescriptor, cut: OperatorCut) -> Adapt:
    """Return the function that adapts stored states to the operator. Raises StoreError if they are of another form.

    If the version differs, this adapts nothing: `upgrade` makes the states.
    """
    terms, name = descriptor.terms, descriptor.name
    adapt = terms.form.adapter(cut.form) if cut.form and cut.version == terms.version else unchanged
    if adapt is not None:
        return adapt
    kept, wanted = (text.removeprefix(WINDOWS) for text in (cut.form, terms.form.text() or "a fold"))
    raise StoreError(
        f"The states of operator {name!r} in the store are of {kept}, but the program has {wanted}. Define the "
        "operator as it was. To start it without state, give it another name= and give up the old states with "
        f"--drop-state {cut.name}. To convert the old states, give version={cut.version + 1} and upgrade=f(key, "
        "state, version), which returns None for a key that starts without state."
    )


def has_changed(descriptor: StateDescriptor, cut: OperatorCut) -> bool:
    """Tell whether rule 3 requires writing an operator's states anew, apart from its hash."""
    terms = descriptor.terms
    if cut.form not in ("", terms.form.text()):
        return True
    now = descriptor.name, descriptor.bins, terms.version, terms.kind
    return now != (cut.name, len(cut.bases), cut.version, cut.kind)


def reshape(restored: Restored, descriptor: StateDescriptor, kind: str) -> None:
    """Convert states of an operator of another kind: add or remove the number since which each state lasts.

    States without such a number, or with one of another kind, last from the next command that the new kind waits for.
    """
    adapt(restored, lambda state: (None, bare(kind, state)) if descriptor.terms.kind else bare(kind, state))


def adapt(restored: Restored, adapter: Adapt) -> None:
    """Adapt all states to the operator's form."""
    for states in restored.states.values():
        for key, state in states.items():
            states[key] = adapter(state)


def _replaced(kind: str, kept: Any, state: Any) -> Any:
    """Return a kept state with `state` in its place."""
    return (kept[0], state) if kind and state is not None else state


def _check_new(state: Any) -> None:
    """Raise an error for a state that cannot be written. It must not be or contain an old record either."""
    if isinstance(state, OldRecord):
        raise TypeError(f"it returned the old record {state!r:.80} instead of a state of the new version")
    encode(state)


def has_other_windows(descriptor: StateDescriptor, cut: OperatorCut) -> bool:
    """Tell whether an `upgrade` makes states of windows from those of other windows, or of a fold: see rule 9."""
    now = descriptor.terms.form.text()
    is_upgraded = now.startswith(WINDOWS) and cut.version < descriptor.terms.version
    return is_upgraded and cut.form.partition(" with ")[0] != now.partition(" with ")[0]


def upgrade(
    restored: Restored, descriptor: StateDescriptor, version: int, furthest: int | None = None,
    has_other_windows: bool = False,
) -> int:  # fmt: skip
    """Replace states of an earlier version; return how many keys the program's `upgrade` has forgotten.

    For `furthest` and `has_other_windows` see `Form.upgrading`. Raises ProgramError, with its cause, if `upgrade`
    raises.
    """
    own = descriptor.terms.upgrade
    assert own is not None, "the version was checked"
    forgotten = 0

    def counted(key: Any, state: Any, version: int) -> Any:
        nonlocal forgotten
        new = own(key, state, version)
        forgotten += new is None
        return new

    function = descriptor.terms.form.upgrading(counted, furthest, has_other_windows)
    tried: set[type] = set()
    for bin, states in restored.states.items():
        upgraded = {}
        for key, state in states.items():
            try:
                new = function(key, bare(descriptor.terms.kind, state), version)
                if type(new) not in tried:
                    _check_new(new)
                    tried.add(type(new))
                upgraded[key] = _replaced(descriptor.terms.kind, state, new)
            except Exception as error:
                raise ProgramError(
                    f"operator {descriptor.name!r}: upgrade(key, state, version) raised {type(error).__name__}: "
                    f"{error}, for key {key!r:.80} and a state of version {version}; the store still has all states of "
                    "that version"
                ) from error
        restored.states[bin] = {key: state for key, state in upgraded.items() if state is not None}
    return forgotten


def partial_windows(
    commit: Commit, renamed: Iterable[tuple[str, str]], dropped: Collection[str], are_emitted: bool,
    rewindowed: Collection[str] = (),
) -> PartialWindows:  # fmt: skip
    """Return the limits of a job that resumes from a commit without the states of the dropped operators: rule 8.

    `rewindowed`: operators of rule 9, by their present names.
    """
    names, furthest, limits = dict(renamed), furthest_of(commit), dict[str, int | None]()
    closed = None if commit.watermark is None or furthest is None else min(commit.watermark - 1, furthest)
    for cut in commit.operators:
        if cut.name not in dropped:
            limits[name := names.get(cut.name, cut.name)] = cut.partial
            new = (closed if cut.form.startswith(WINDOWS) else furthest) if name in rewindowed else None
            if new is not None:
                limits[name] = new if cut.partial is None else max(new, cut.partial)
    return PartialWindows(tuple(limits.items()), furthest, are_emitted)


def furthest_of(commit: Commit) -> int | None:
    """Return the greatest timestamp before a commit; None if there was none.

    Commits of earlier versions have only the greatest bound, which is less by `out_of_order`.
    """
    return commit.bound if commit.furthest is None else commit.furthest
