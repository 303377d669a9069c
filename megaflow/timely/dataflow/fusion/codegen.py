"""Text of an operator, alone or fused: one Python function that does the work of all members of a group on a batch.

    def make(f0, f1, output0):
        def fused(time, batch):
            out0 = []
            append0 = out0.append
            for r in batch:
                r0 = f0(r)  # Map (wordcount.py:7)
                if not f1(r0):  # Filter (wordcount.py:8)
                    continue
                append0(r0)
            ship(output0, time, out0, batch)
        return fused

Operation n is the n-th in the group. `fn` is its user function and `rn` the record that it makes. Each branch of the
tree ends in an exit, a list that is shipped at the end. Behind a `flat_map`, a list is also shipped when it has grown.
The function is then a generator that yields while an output is full.

Speed decides the form. A lone `map`, `filter` or `plain` is a list comprehension. A lone `branch_when` sends the whole
batch to one side. A group that only looks at records, or changes them in place, does so member by member and passes the
batch on. Every other group is one loop with local variables, in which a record passes all members before the next
record begins.

On streams with stamps (`operators.stamped`), the stamp is a second variable beside the record: `for s, r in batch`, or
`sn = to_stampn(…)` where it is made. A pair is made at an exit, and where a member takes pairs as records. `stamp`
keeps the greatest stamp so far in `greatestn` and reports it to the stamper at the end of the batch. For a stamp below
the greatest, `belown` returns the stamp to use instead.

For notes on errors, a table maps each line that calls user code to the member and to the variable that has the record.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from megaflow.quick_dataclass import dataclass
from megaflow.timely.dataflow.error_notes import CallSite
from megaflow.timely.dataflow.fusion.stage import NO_STAMPS, Kind, Stamps

_KEEPING: Final = ("same", "inspect", "inspect_time", "inspect_batch", "map_in_place")  # kinds that pass the batch on

_CALLS: Final[Mapping[Kind, str]] = {  # statements; only map's replaces the record
    "map": "r{n} = f{n}({r})",
    "inspect": "f{n}({r})",
    "inspect_time": "f{n}(time, {r})",
    "map_in_place": "f{n}({r})",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """A stage of the tree."""

    kind: Kind
    name: str
    where: str  # file:line of the user's declaration
    follow: tuple[int, ...]  # output -> member that reads it, or -1 - k for exit k
    stamps: Stamps = NO_STAMPS


def _is_brief(member: Operation) -> bool:
    """Return whether a comprehension can do the member's work.

    It cannot if the records carry stamps: a note on an error would show the pair instead of the record.
    """
    return member.kind == "plain" or (member.kind in ("map", "filter") and not member.stamps.come)


class FusedFunction:
    """Generated module of a group whose first member is the head. `exits` tells for each exit whether it is read."""

    def __init__(self, members: Sequence[Operation], exits: Sequence[bool]) -> None:
        self.call_sites: dict[int, CallSite] = {}  # line number -> the member that calls there
        self.pauses = False  # it is a generator
        self._lines: list[str] = []
        self._members = members
        self._exits = exits
        self._lists = [number for number, is_read in enumerate(exits) if is_read]
        functions = [f"f{n}" for n in range(len(members))]
        outputs = [f"output{k}" for k in range(len(exits))]
        self._put(0, f"def make({', '.join(functions + outputs)}):")
        self._put(1, "def fused(time, batch):")
        if members[0].kind == "inspect_batch":
            self._put(2, "f0(time, list(batch))", 0, None)
        working = [n for n, member in enumerate(members) if member.kind not in ("same", "inspect_batch")]
        if all(member.kind in _KEEPING for member in members):
            self._write_looking(working)
        elif len(working) == 1 and _is_brief(members[working[0]]):
            self._write_comprehension(working[0])
        elif len(members) == 1 and members[0].kind == "branch_when":
            self._put(2, "side = output1 if f0(time) else output0", 0, None)
            self._put(2, "ship(side, time, batch, batch)")
        else:
            self._write_loop()
        self._fill(2)
        self._put(1, "return fused")

    def __str__(self) -> str:
        return "\n".join(self._lines) + "\n"

    def _fill(self, depth: int) -> None:
        """Write `pass` if the block is empty because nothing reads its results."""
        if not self._lines[-1].startswith("    " * depth):
            self._put(depth, "pass")

    def _put(self, depth: int, code: str, member: int | None = None, record: str | None = None) -> None:
        """Write a line. `member` is the operator whose user code the line calls, with the variable `record`."""
        if member is not None:
            who = self._members[member]
            place = ascii(who.where.rsplit("/", 1)[-1])[1:-1]
            code = f"{code}  # {who.name} ({place})"
            self.call_sites[len(self._lines) + 1] = CallSite(who.name, who.where, record)
        self._lines.append("    " * depth + code)

    def _variables(self, n: int) -> str:
        """Return the loop variables for a record of a batch that member `n` takes."""
        return "s, r" if self._members[n].stamps.come else "r"

    # Forms ------------------------------------------------------------------------------

    def _write_looking(self, working: Collection[int]) -> None:
        for n in working:
            self._put(2, f"for {self._variables(n)} in batch:")
            self._put(3, _CALLS[self._members[n].kind].format(n=n, r="r"), n, "r")
        if self._exits[0]:
            self._put(2, "ship(output0, time, batch, batch)")

    def _write_comprehension(self, n: int) -> None:
        self._put(2, "left = iter(batch)")
        code = {"map": f"[f{n}(r) for r in left]", "filter": f"[r for r in left if f{n}(r)]"}
        self._put(2, f"out0 = {code.get(self._members[n].kind, '[r for _, r in left]')}", n, "r")
        if self._exits[0]:
            self._put(2, "ship(output0, time, out0, batch)")

    def _write_loop(self) -> None:
        for n, member in enumerate(self._members):
            if member.kind == "branch_when":
                self._put(2, f"when{n} = None")
            elif member.kind == "partition":
                self._put(2, f"parts{n} = {{number: [] for number in range({len(member.follow)})}}")
            elif member.kind == "stamp":
                self._put(2, f"timestamp{n}, s{n} = f{n}.timestamp, None")
                self._put(2, f"to_stamp{n}, greatest{n}, below{n} = f{n}.begin(batch)")
        split = {-1 - k for member in self._members if member.kind == "partition" for k in member.follow}
        for k in self._lists:
            if k not in split:
                self._put(2, f"out{k} = []")
                self._put(2, f"append{k} = out{k}.append")
        self._put(2, f"for {self._variables(0)} in batch:")
        self._write_member(0, "r", "s" if self._members[0].stamps.come else "", 3)
        self._fill(3)
        for n, member in enumerate(self._members):
            if member.kind == "stamp":
                self._put(2, f"f{n}.end(time, batch, greatest{n}, s{n} is not None)")
            elif member.kind == "partition":
                numbered = "".join(f"output{-1 - k}, " for k in member.follow)
                self._put(2, f"for output, part in zip(({numbered}), parts{n}.values()):")
                self._put(3, "ship(output, time, part, batch)")
        for k in self._lists:
            if k not in split:
                self._put(2, f"ship(output{k}, time, out{k}, batch)")

    # Members ----------------------------------------------------------------------------

    def _write_next(self, step: int, r: str, s: str, depth: int) -> None:
        """Write the next step for a record and its stamp ("" if it has none): the next member, or an exit."""
        if step >= 0:
            self._write_member(step, r, s, depth)
        elif self._exits[-1 - step]:
            self._put(depth, f"append{-1 - step}(({s}, {r}))" if s else f"append{-1 - step}({r})")

    def _write_member(self, n: int, r: str, s: str, depth: int) -> None:
        member = self._members[n]
        kind, follow = member.kind, member.follow
        if member.stamps.come and not s:
            self._put(depth, f"s{n}, q{n} = {r}")
            s, r = f"s{n}", f"q{n}"
        elif s and not member.stamps.come:
            self._put(depth, f"q{n} = {s}, {r}")
            s, r = "", f"q{n}"
        if kind == "filter":
            self._put(depth, f"if not f{n}({r}):", n, r)
            self._put(depth + 1, "continue")
            self._write_next(follow[0], r, s, depth)
        elif kind == "flat_map":
            self._write_flat_map(n, r, s, depth)
        elif kind == "branch":
            self._put(depth, f"if f{n}(time, {r}):", n, r)
            self._write_sides(n, follow[::-1], (r, r), s, "else:", depth)
        elif kind == "branch_when":
            self._put(depth, f"if when{n} is None:")
            self._put(depth + 1, f"when{n} = bool(f{n}(time))", n, None)
            self._put(depth, f"if when{n}:")
            self._write_sides(n, follow[::-1], (r, r), s, "else:", depth)
        elif kind == "ok_err":
            self._put(depth, f"result{n} = f{n}({r})", n, r)
            self._put(depth, f"if isinstance(result{n}, Ok):")
            values = f"result{n}.value", f"result{n}.error"
            self._write_sides(n, follow, values, s, f"elif isinstance(result{n}, Err):", depth)
            self._put(depth, "else:")
            self._put(depth + 1, f"raise neither(result{n}, {r})", n, r)
        elif kind == "partition":
            self._put(depth, "try:")
            self._put(depth + 1, f"number, r{n} = f{n}({r})", n, r)
            self._put(depth + 1, f"parts{n}[number].append(r{n})", n, r)
            self._put(depth, "except (KeyError, TypeError, ValueError) as error:")
            self._put(depth + 1, f"check_partition(error, {r}, {len(follow)})", n, r)
            self._put(depth + 1, "raise")
        elif kind == "stamp":
            self._put(depth, f"s{n} = to_stamp{n}(timestamp{n}({r}), {r})", n, r)
            self._put(depth, f"if s{n} >= greatest{n}:")
            self._put(depth + 1, f"greatest{n} = s{n}")
            self._put(depth, "else:")
            self._put(depth + 1, f"s{n} = below{n}(s{n}, greatest{n})")
            self._write_next(follow[0], r, f"s{n}", depth)
        else:
            if kind in _CALLS:
                self._put(depth, _CALLS[kind].format(n=n, r=r), n, r)
            self._write_next(follow[0], f"r{n}" if kind == "map" else r, "" if kind == "plain" else s, depth)

    def _write_sides(
        self, n: int, sides: tuple[int, ...], records: tuple[str, str], s: str, between: str, depth: int
    ) -> None:
        """Write the two bodies of an `if`."""
        for number, (step, record) in enumerate(zip(sides, records, strict=True)):
            if number:
                self._put(depth, between)
            if "." in record and step >= 0:  # the note on an error needs it in a variable
                self._put(depth + 1, f"r{n} = {record}")
                record = f"r{n}"
            self._write_next(step, record, s, depth + 1)
            self._fill(depth + 1)

    def _write_flat_map(self, n: int, r: str, s: str, depth: int) -> None:
        step = self._members[n].follow[0]
        while step >= 0 and self._members[step].kind == "plain":  # so that a portion is appended as a whole
            step, s = self._members[step].follow[0], ""
        self._put(depth, f"made{n} = f{n}({r})", n, r)
        is_brief = f"type(made{n}) is list and len(made{n}) <= BATCH_RECORDS"
        if step < 0:  # the test comes first, because it saves a fifth in the usual case
            self._put(depth, f"if {is_brief}:")
            self._write_portion(n, step, f"made{n}", s, depth + 1)
            self._put(depth, "else:")
            self._put(depth + 1, f"for portion{n} in portions(made{n}):", n, r)
            self._write_portion(n, step, f"portion{n}", s, depth + 2)
        else:
            self._put(depth, f"for portion{n} in (made{n},) if {is_brief} else portions(made{n}):", n, r)
            self._put(depth + 1, f"for r{n} in portion{n}:")
            self._write_member(step, f"r{n}", s, depth + 2)
            self._fill(depth + 2)
            self._write_pauses(n, depth + 1)

    def _write_portion(self, n: int, step: int, records: str, s: str, depth: int) -> None:
        made = f"[({s}, x) for x in {records}]" if s else records
        self._put(depth, f"out{-1 - step} += {made}" if self._exits[-1 - step] else "pass")
        self._write_pauses(n, depth)

    def _write_pauses(self, n: int, depth: int) -> None:
        for k in self._behind(n):
            self.pauses = True
            self._put(depth, f"if len(out{k}) > LARGEST_BATCH_RECORDS:")
            self._put(depth + 1, f"ship_full(output{k}, time, out{k}, batch)")
            self._put(depth + 1, f"while output{k}.is_full():")
            self._put(depth + 2, "yield")

    def _behind(self, n: int) -> list[int]:
        """Return the exits behind a member that are read, in order."""
        found: list[int] = []
        for step in self._members[n].follow:
            if step >= 0:
                found += self._behind(step)
            elif self._exits[-1 - step]:
                found.append(-1 - step)
        return sorted(found)
