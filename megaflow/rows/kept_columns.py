"""Columns of rows in a store: those from which its keys and states were made.

A program reads the values of a row by place or by name. The launcher does not know which, so both must stay. The store
has the columns of each input of rows that has sent a batch, and they are compared when a job resumes.

1. New columns may follow the others, because the places, names and values of the others stay. A column that is gone,
   renamed or moved is refused.
2. A column may get a wider type only if its values are the same in Python: another integer, or a decimal of the same
   scale. FLOAT must stay, because 0.1 as FLOAT is not 0.1 as DOUBLE. A narrower type may turn values into None.
3. Whether a column is nullable does not matter, because any value may be None.
4. Stores of earlier versions lack the columns. Such a store gets them with its next checkpoint.
5. The query of a stateful frame has one DataFrame, without a name, and no dataflow function. So an error about that
   DataFrame names the query's checkpoint and calls of PySpark, instead of an input, `--state` and `version=`.
"""

import re
from typing import Final, TypeAlias

from megaflow.errors import StoreUnfit
from megaflow.rows.ddl import quoted, type_text
from megaflow.rows.packed_rows import columns_of

KeptColumns: TypeAlias = tuple[tuple[str, str], ...]
"""Pairs (column, type in DDL) of an input, in order."""

INTEGERS: Final = ("byte", "short", "integer", "long")  # by width
DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
OVER: Final = (
    "or start over with a new --state folder. If no key has these values, a dataflow function can also convert the "
    "states: give each operator the next version= and upgrade=f(key, state, version)."
)

QUERY_OVER: Final = (
    "or start over with a new checkpointLocation, with a new folder of state= if you name one, and with a new output."
)


def kept_columns(schema: str) -> KeptColumns:
    """Return the columns of a schema, in the form of `StructType.json`, as a store has them.

    >>> kept_columns('{"fields": [{"name": "k", "type": "long", "nullable": false}, {"name": "v", "type": "string"}]}')
    (('k', 'long'), ('v', 'string'))
    """
    return tuple((name, type_text(kind)) for name, kind in columns_of(schema))


def has_its_values(before: str, now: str) -> bool:
    """Tell whether a type has the values of an earlier one, and they are the same in Python: see rule 2.

    >>> has_its_values("integer", "long"), has_its_values("long", "integer"), has_its_values("float", "double")
    (True, False, False)
    >>> has_its_values("decimal(5,2)", "decimal(9,2)"), has_its_values("decimal(5,2)", "decimal(9,4)")
    (True, False)
    """
    if before in INTEGERS and now in INTEGERS:
        return INTEGERS.index(before) <= INTEGERS.index(now)
    old, new = DECIMAL.fullmatch(before), DECIMAL.fullmatch(now)
    if old is not None and new is not None:
        return old[2] == new[2] and int(old[1]) <= int(new[1])
    return before == now


def check_kept_columns(input: str, before: KeptColumns, now: KeptColumns, is_of_a_query: bool = False) -> None:
    """Raise StoreUnfit if the rows of an input no longer have the columns that the store has: see rules 1 and 2.

    `is_of_a_query`: the input is the DataFrame of a query, see rule 5.
    """
    for place, (name, kind) in enumerate(before):
        found, found_kind = now[place] if place < len(now) else ("", "")
        if found == name and has_its_values(kind, found_kind):
            continue
        change = f"whose column {place + 1} was {name!r} of type {kind}, "
        if found == name:
            change += f"but now its type is {found_kind}. Old and new values would not match."
        else:
            change += f"but now it is {found!r} of type {found_kind}." if found else "and now there is none."
        names = [each for each, _ in before]
        if is_of_a_query:
            cast = f"Cast it back, as in frame.withColumn({name!r}, frame[{name!r}].cast({kind!r}))"
            columns = ", ".join(map(repr, names))
            order = f"Give it these columns again, before all new ones, as in frame.select({columns})"
            made, over = "The states in the query's checkpoint were made from a DataFrame", QUERY_OVER
        else:
            cast = f"Cast it back, as in CAST({quoted(name)} AS {kind}) AS {quoted(name)}"
            order = (
                f"Give the rows the columns {', '.join(map(quoted, names))} again, by these names, in this order and "
                "before all new ones"
            )
            made, over = f"The keys and states in the store were made from the rows {input!r}", OVER
        raise StoreUnfit(f"{made}, {change} {cast if found == name else order}, {over}")
