"""Inheritance: which states of a store each operator of a program goes on with, and what becomes of them on the way.

Decided by values alone, from a commit and what the program says of its operators.
 1. By name, but for what `--rename-state OLD=NEW` and `--drop-state NAME` say. All that the store has goes to one
    operator each, or the resume is refused.
 2. The same command is given again after a crash, perhaps by a supervisor, when it has done its work: OLD is gone and
    NEW is there, NAME is gone and the commit says that it was given up. That is no mistake, and changes nothing. So
    neither OLD nor NAME may be an operator of the program: the second run would do to that what the first has done.
 3. A commit has of each operator one name, one number of bins, one hash, one version and one kind. Whatever a resume
    changes of these, its first checkpoint follows none: all states are written whole, as they are then, and no segment
    from before is named beside them. So the version stands in commits, for all segments alike; and until that commit is
    durable the store is what it was: the program as it was before goes on with it.
 4. Where a key was, is what counts for which of its pieces are valid (`restored`), so the hash that placed it must be
    known when another takes its place: `rehash=` gives it. Whether that is still to be done is seen by the keys: if
    the first of each bin's base is where the present hash puts it, it has been done, or need not be.
 5. States of windows and of aggregates whose kind is known go to the same kind, or to one that can adapt them (`Form`).
    A store of commit format 2 or before does not say of what they are: then nothing is compared.
 6. `upgrade` sees each key's last state once, no older ones, and no payloads of timers. Objects whose class is gone, or
    has other fields, come as old records.
"""

import difflib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from megaflow.durable.commits import Commit, OperatorCut
from megaflow.durable.restored import WINDOWS, Adapt, Heir, Restored, bare, unchanged
from megaflow.errors import ProgramError, StoreError
from megaflow.timely.communication.codec.encode import encode
from megaflow.timely.communication.codec.old_classes import OldRecord


def inherited(
    commit: Commit, heirs: Iterable[Heir], renamed: Iterable[tuple[str, str]] = (), dropped: Collection[str] = ()
) -> dict[str, OperatorCut]:
    """Return what each operator of a program finds in a commit, by the operator's name; nothing for one that is new.

    `renamed`: (old name, new name). Raises StoreError if anything would go to none, or cannot.
    """
    heir_of = {heir.name: heir for heir in heirs}
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
            raise StoreError(f"--drop-state {name}: the store has no operator {name!r}{_among(name, kept)}")
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


def _check_renaming(old: str, new: str, heirs: Collection[str], kept: Collection[str]) -> None:
    flag = f"--rename-state {old}={new}"
    if new not in heirs:
        raise StoreError(f"{flag}: the program has no operator {new!r}{_among(new, heirs)}")
    if old in heirs:
        raise StoreError(
            f"{flag}: the program still has operator {old!r}, which keeps the state; give that operator another name"
        )
    if old in kept and new in kept:
        raise StoreError(
            f"{flag}: the store already has states of both {old!r} and {new!r}; use --drop-state {old} instead to "
            f"give up those of {old!r}"
        )
    if old not in kept and new not in kept:
        raise StoreError(f"{flag}: the store has no operator {old!r}{_among(old, kept)}")


def _without_heir(name: str, new: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, new, n=1, cutoff=0.0 if len(new) == 1 else 0.6)
    hint = f"; did you mean {near[0]!r}? Then add --rename-state {name}={near[0]}" if near else ""
    hint = hint or (f"; if it has a new name ({', '.join(map(repr, new))}), add --rename-state "
                    f"{name}=NEW" if new else "")
    return (
        f"the store has the state of operator {name!r}, but the program has no such operator{hint}; or give an "
        f"operator that name= again, or give up the state with --drop-state {name}"
    )


def _among(wrong: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(wrong, sorted(names), n=1)
    question = f"; did you mean {near[0]!r}?" if near else "."
    return f"{question} Operators: {', '.join(sorted(names)) or 'none'}"


def check_version(heir: Heir, cut: OperatorCut) -> None:
    """Raise StoreError if an operator cannot read states of the version that it finds."""
    version = heir.terms.version
    if cut.version > version:
        raise StoreError(
            f"the states of operator {heir.name!r} in the store are of version {cut.version}, but the program has "
            f"version {version}: run the newer program, or start with another --state folder"
        )
    if cut.version < version and heir.terms.upgrade is None:
        raise StoreError(
            f"the states of operator {heir.name!r} in the store are of version {cut.version}, but the program has "
            f"version {version}: give upgrade=f(key, state, version), which returns a state of version {version}"
        )


def adapter_of(heir: Heir, cut: OperatorCut) -> Adapt:
    """Return what makes the operator's states of those that it finds. Raises StoreError if they are of another form.

    An `upgrade` to another version makes of them what it wants.
    """
    terms, name = heir.terms, heir.name
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


def has_changed(heir: Heir, cut: OperatorCut) -> bool:
    """Tell whether an operator's states are to be written anew because of rule 3, its hash aside."""
    terms = heir.terms
    if cut.form not in ("", terms.form.text()):
        return True
    return (heir.name, heir.bins, terms.version, terms.kind) != (cut.name, len(cut.bases), cut.version, cut.kind)


def reshape(restored: Restored, heir: Heir, kind: str) -> None:
    """Have states as the operator keeps them, which one of another kind has kept: with since when they last, or not.

    Those that did not last, or by another time, last since the next command of the kind that they wait for.
    """
    for states in restored.states.values():
        for key, state in states.items():
            states[key] = (None, bare(kind, state)) if heir.terms.kind else bare(kind, state)


def adapt(restored: Restored, adapter: Adapt) -> None:
    """Have states as an operator of this form keeps them."""
    for states in restored.states.values():
        for key, state in states.items():
            states[key] = adapter(state)


def _replaced(kind: str, kept: Any, state: Any) -> Any:
    """Return what is kept with another state in it."""
    return (kept[0], state) if kind and state is not None else state


def _check_new(state: Any) -> None:
    """Raise an error for a state that could not be written; nor may it be, or have, an old record."""
    if isinstance(state, OldRecord):
        raise TypeError(f"it returned the old record {state!r:.80} instead of a state of the new version")
    encode(state)


def upgrade(restored: Restored, heir: Heir, version: int) -> None:
    """Replace states of an earlier version. Raises ProgramError, with its cause, where the program's `upgrade` does."""
    function = heir.terms.upgrade
    assert function is not None, "the version was checked"
    tried: set[type] = set()
    for bin, states in restored.states.items():
        upgraded = {}
        for key, state in states.items():
            try:
                new = function(key, bare(heir.terms.kind, state), version)
                if type(new) not in tried:
                    _check_new(new)
                    tried.add(type(new))
                upgraded[key] = _replaced(heir.terms.kind, state, new)
            except Exception as error:
                raise ProgramError(
                    f"operator {heir.name!r}: upgrade(key, state, version) raised {type(error).__name__}: {error}, for "
                    f"key {key!r:.80} and a state of version {version}; the store still has all states of that version"
                ) from error
        restored.states[bin] = {key: state for key, state in upgraded.items() if state is not None}
