"""Parser for columns in Spark's DDL, such as `word string, n long`; it does not need Spark.

It returns types as in Spark's JSON, the form that all other modules here use (see `megaflow.rows.packed_rows`).
"""

import json
import re
from typing import Any, Final

from megaflow.errors import UsageError
from megaflow.rows.packed_rows import Column, columns_of

TYPES: Final = {
    name: kind
    for kind, names in {
        "boolean": "boolean", "byte": "byte tinyint", "short": "short smallint", "integer": "int integer",
        "long": "long bigint", "float": "float real", "double": "double", "string": "string", "binary": "binary",
        "date": "date", "timestamp": "timestamp timestamp_ltz", "timestamp_ntz": "timestamp_ntz",
    }.items()
    for name in names.split()
}  # fmt: skip
DECIMAL: Final = ["decimal", "dec", "numeric"]
EXAMPLE: Final = "word string, n long"
_DIGITS_MAX: Final = 38  # that a decimal can have
_TOKEN: Final = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+)|([<>(),:]))")


def parse_ddl(text: str) -> tuple[Column, ...]:
    """Return the columns that a DDL text names. Raises UsageError.

    >>> parse_ddl("word string, `a b` array<decimal(5, 2)>")[1]
    Column(name='a b', kind={'type': 'array', 'elementType': 'decimal(5,2)', 'containsNull': True})
    >>> parse_ddl("n text")
    Traceback (most recent call last):
        ...
    megaflow.errors.UsageError: schema=n text: results have no type 'text'; name columns as in 'word string, n long'
    """
    words = _Words(text)
    fields = _fields(words, None)
    names = [field["name"].lower() for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                f"schema={text}: the column {name!r} is named twice; Spark does not distinguish upper and lower case"
            )
    return tuple(Column(field["name"], field["type"]) for field in fields)


def schema_json(columns: tuple[Column, ...]) -> str:
    """Return columns in the form of `StructType.json`."""
    return json.dumps({"type": "struct", "fields": [_field(*column) for column in columns]})


def type_text(kind: Any) -> str:
    """Return a type in DDL.

    >>> type_text(parse_ddl("a map<string, struct<n: int>>")[0].kind)
    'map<string, struct<n: integer>>'
    """
    if isinstance(kind, str):
        return kind
    match kind["type"]:
        case "array":
            return f"array<{type_text(kind['elementType'])}>"
        case "map":
            return f"map<{type_text(kind['keyType'])}, {type_text(kind['valueType'])}>"
        case "struct":
            fields = ", ".join(f"{quoted(field['name'])}: {type_text(field['type'])}" for field in kind["fields"])
            return f"struct<{fields}>"
    return str(kind["type"])  # of a library


def schema_text(schema: Any, argument: str = "schema") -> str:
    """Return the columns of results in DDL. A program gives them so, or as a StructType of Spark.

    Raises UsageError for other values; `parse_ddl` checks the columns.
    """
    if isinstance(schema, str):
        return schema
    if type(schema).__name__ != "StructType":
        raise UsageError(
            f"{argument} must be a StructType, or name columns in SQL, as in 'word STRING, n LONG', not {schema!r:.80}."
        )
    return ", ".join(f"{quoted(name)} {type_text(kind)}" for name, kind in columns_of(schema.json()))


def quoted(name: str) -> str:
    """Return the name of a column as SQL has it."""
    return name if re.fullmatch(r"\w+", name) else "`" + name.replace("`", "``") + "`"


class _Words:
    """Tokens of a text, in order."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._found: list[tuple[str, bool]] = []  # in reverse order; (token, whether it can only be a name)
        at = 0
        while at < len(text.rstrip()):
            token = _TOKEN.match(text, at)
            if token is None:
                raise self.wrong(f"cannot parse {text[at:].strip():.20}")
            quoted, word, sign = token.groups()
            self._found.insert(0, (quoted.replace("``", "`") if quoted else word or sign, bool(quoted or word)))
            at = token.end()

    def wrong(self, why: str) -> UsageError:
        """Return an error about this text."""
        return UsageError(f"schema={self.text}: {why}; name columns as in {EXAMPLE!r}")

    def take(self, sign: str) -> bool:
        """Take `sign` if it is the next token; return whether it was."""
        if self._found and self._found[-1] == (sign, False):
            self._found.pop()
            return True
        return False

    def expect(self, sign: str) -> None:
        """Take `sign`. Raises UsageError if another token is next."""
        if not self.take(sign):
            raise self.wrong(f"{sign!r} is missing{f' before {self._found[-1][0]!r}' if self._found else ''}")

    def word(self, what: str) -> str:
        """Take a name or a number. Raises UsageError if there is none; `what` names it."""
        if not self._found or not self._found[-1][1]:
            raise self.wrong(f"a {what} is missing{f' before {self._found[-1][0]!r}' if self._found else ''}")
        return self._found.pop()[0]

    @property
    def is_done(self) -> bool:
        """Whether all tokens are taken."""
        return not self._found


def _field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def _fields(words: _Words, end: str | None) -> list[dict[str, Any]]:
    """Read columns up to the sign `end`; None: up to the end of the text."""
    fields = []
    while True:
        name = words.word("column")
        words.take(":")
        fields.append(_field(name, _kind(words)))
        if words.take(","):
            continue
        if end is not None:
            words.expect(end)
        elif not words.is_done:
            words.expect(",")
        return fields


def _kind(words: _Words) -> Any:
    name = words.word("type").lower()
    if name in DECIMAL:
        return _decimal(words)
    if name in TYPES:
        return TYPES[name]
    if name not in ("array", "map", "struct"):
        raise words.wrong(f"results have no type {name!r}")
    words.expect("<")
    if name == "struct":
        return {"type": "struct", "fields": _fields(words, ">")}
    first = _kind(words)
    if name == "array":
        words.expect(">")
        return {"type": "array", "elementType": first, "containsNull": True}
    words.expect(",")
    second = _kind(words)
    words.expect(">")
    return {"type": "map", "keyType": first, "valueType": second, "valueContainsNull": True}


def _decimal(words: _Words) -> str:
    digits, after = "10", "0"
    if words.take("("):
        digits = words.word("number")
        if words.take(","):
            after = words.word("number")
        words.expect(")")
    if not (digits.isdecimal() and after.isdecimal() and 0 < int(digits) <= _DIGITS_MAX and int(after) <= int(digits)):
        raise words.wrong(
            f"decimal({digits}, {after}) must have 1 to {_DIGITS_MAX} digits, and at most as many decimals"
        )
    return f"decimal({int(digits)},{int(after)})"
