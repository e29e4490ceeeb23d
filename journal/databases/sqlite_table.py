"""What a `CREATE TABLE` of SQLite means: its columns in their order, everything else in one canonical order.

A constraint of one column is spelled as the table's constraint, wherever it was written; what SQLite ignores or assumes
anyway (names of constraints, `NO ACTION`, `ON CONFLICT ABORT`, `COLLATE BINARY`, `VIRTUAL`) is left out. One thing must be
kept apart: `INTEGER PRIMARY KEY DESC` at a column is no alias of the rowid, `PRIMARY KEY (id DESC)` at the table is one.

SQLite keeps a comment between the words of a declared type as a part of it, and looks into it for the column's affinity:
`REAL /* in points */ GENERATED ALWAYS AS (...)` is an integer. Only where it does that is a comment a part of the meaning.
"""

from __future__ import annotations

import re
from typing import Final

from journal.databases.sqlite_tokens import (
    EXPRESSION,
    Statement,
    Unreadable,
    as_strings,
    fold,
    literal,
    name_of,
    spelled,
    split,
    term,
    unquoted,
    without_outer_parentheses,
)

_TABLE_CONSTRAINTS: Final = frozenset({"constraint", "primary", "unique", "check", "foreign"})
_AFTER_TYPE: Final = frozenset(
    {"constraint", "primary", "unique", "check", "not", "null", "default", "collate", "references", "as", "deferrable"}
    | {"(", ",", ")", ""}
)
_CONSTANTS: Final = frozenset({"null", "true", "false", "current_date", "current_time", "current_timestamp"})
_CONFLICTS: Final = frozenset({"rollback", "abort", "fail", "ignore", "replace"})
_ACTIONS: Final = (("set", "null"), ("set", "default"), ("cascade",), ("restrict",), ("no", "action"))
_AFFINITIES: Final = (
    ("integer", ("int",)),
    ("text", ("char", "clob", "text")),
    ("blob", ("blob",)),
    ("real", ("real", "floa", "doub")),
)
_COMMENT: Final = re.compile(r"--|/\*")
_ROWID: Final = frozenset({"rowid", "oid", "_rowid_"})


def _affinity(declared: str) -> str:
    """What SQLite makes of a declared type, by the pieces of it (https://www.sqlite.org/datatype3.html, 3.1)."""
    for affinity, pieces in _AFFINITIES:
        if any(piece in declared for piece in pieces):
            return affinity
    return "numeric" if declared else "blob"


class _Column:
    """One column, as far as it is read."""

    __slots__ = ("collation", "default", "generated", "name", "not_null", "type")

    def __init__(self, name: str, declared: str) -> None:
        self.name = name
        self.type = declared
        self.generated = self.default = self.collation = self.not_null = ""

    def definition(self) -> str:
        parts = (self.name, self.type, self.generated, self.default, self.collation, self.not_null)
        return " ".join(filter(None, parts))


class TableReader:
    """Reads the part of a statement that comes after the table's name."""

    def __init__(self, statement: Statement) -> None:
        self._statement = statement
        self._folded = statement.folded
        self._body = statement.at
        self._columns: list[_Column] = []
        self._constraints: set[str] = set()
        self._key: list[str] = []
        self._key_suffix = ""
        self._key_is_of_table = False
        self._names: frozenset[str] | None = None

    def definition(self) -> str:
        """The canonical definition. Raises LookupError where it says what this reader does not know."""
        statement, folded = self._statement, self._folded
        statement.expect("(")
        while folded[statement.at] not in _TABLE_CONSTRAINTS:
            self._column()
            if folded[statement.at] == ")":
                break
            statement.expect(",")
        while not statement.take(")"):
            self._table_constraint()
            statement.take(",")
        options = self._options()
        columns = [column.definition() for column in self._columns]
        text = ", ".join(columns + self._primary_key(options) + sorted(self._constraints))
        return f"({text}) {', '.join(options)}" if options else f"({text})"

    def _options(self) -> list[str]:
        options: set[str] = set()
        while not self._statement.ends():
            if self._statement.take("strict"):
                options.add("strict")
            else:
                self._statement.expect("without", "rowid")
                options.add("without rowid")
            if not self._statement.ends():
                self._statement.expect(",")
        return sorted(options)

    def _primary_key(self, options: list[str]) -> list[str]:
        terms = self._key
        if not terms:
            return []
        if self._key_is_of_table and len(terms) == 1 and "without rowid" not in options:
            # An alias of the rowid has no direction of its own.
            name = terms[0].removesuffix(" desc")
            if any(column.name == name and column.type == "integer" for column in self._columns):
                terms = [name]
        return [f"primary key ({', '.join(terms)}{self._key_suffix}"]

    def _column(self) -> None:
        statement, folded = self._statement, self._folded
        name = statement.name()
        column = _Column(name, self._type())
        while (word := folded[statement.at]) not in {",", ")"}:
            statement.at += 1
            self._column_constraint(column, word)
        self._columns.append(column)

    def _type(self) -> str:
        """The declared type; `GENERATED ALWAYS`, which looks like the end of one, is stepped over."""
        statement, folded = self._statement, self._folded
        start = at = statement.at
        while folded[at] not in _AFTER_TYPE:
            at += 1
        statement.at = at
        if at == start:
            return ""
        size = ""
        if folded[at] == "(":
            first, last = statement.group()
            size = f"({spelled(folded[first:last], {})})"
        elif at == start + 1:
            return name_of(folded[start])
        if folded[at] == "as" and folded[at - 2 : at] == ["generated", "always"] and at - 2 >= start:
            at -= 2
        if at == start + 1 and not size:
            declared = name_of(folded[start])
        else:
            # SQLite reads a quoted word as the whole type and forgets what follows, so its quotes are no noise here.
            written = statement.written
            declared = " ".join(written[i] if written[i][0] in "\"'`[" else folded[i] for i in range(start, at)) + size
        return self._commented(start, declared) if statement.has_comments else declared

    def _commented(self, start: int, declared: str) -> str:
        text = fold(self._statement.text(start, self._statement.at))
        if _COMMENT.search(text) and _affinity(text) != _affinity(declared):
            return literal(" ".join(text.split()))
        return declared

    def _column_constraint(self, column: _Column, word: str) -> None:
        statement = self._statement
        match word:
            case "not":
                statement.expect("null")
                column.not_null = "not null" + self._conflict()
            case "default":
                column.default = f"default {self._default()}"
            case "primary":
                self._column_key(column.name)
            case "references":
                self._references(column.name)
            case "unique":
                self._constraints.add(f"unique ({column.name}){self._conflict()}")
            case "check":
                self._constraints.add(f"check ({self._expression()})")
            case "collate":
                collation = statement.name()
                column.collation = "" if collation == "binary" else f"collate {collation}"
            case "generated":
                statement.expect("always", "as")
                column.generated = self._generated()
            case "as":
                column.generated = self._generated()
            case "constraint":
                statement.name()
            case "null":
                self._conflict()
            case _:
                raise Unreadable

    def _table_constraint(self) -> None:
        statement = self._statement
        word = self._folded[statement.at]
        statement.at += 1
        match word:
            case "constraint":
                statement.name()
            case "primary":
                self._table_key()
            case "unique":
                columns = ", ".join(map(term, statement.terms()))
                self._constraints.add(f"unique ({columns}){self._conflict()}")
            case "check":
                self._constraints.add(f"check ({self._expression()})")
                self._conflict()  # SQLite reads it and forgets it
            case "foreign":
                statement.expect("key")
                columns = ", ".join(statement.names())
                statement.expect("references")
                self._references(columns)
            case _:
                raise Unreadable

    def _column_key(self, column: str) -> None:
        statement = self._statement
        statement.expect("key")
        descending = statement.take("desc")
        statement.take("asc")
        conflict = self._conflict()
        self._key = [f"{column} desc" if descending else column]
        self._key_suffix = (" autoincrement)" if statement.take("autoincrement") else ")") + conflict

    def _table_key(self) -> None:
        self._statement.expect("key")
        terms = self._statement.terms()
        counts = len(terms[-1]) > 1 and terms[-1][-1] == "autoincrement"
        if counts:
            terms[-1].pop()
        self._key = list(map(term, terms))
        self._key_suffix = (" autoincrement)" if counts else ")") + self._conflict()
        self._key_is_of_table = True

    def _conflict(self) -> str:
        if not self._statement.take("on", "conflict"):
            return ""
        word = self._folded[self._statement.at]
        if word not in _CONFLICTS:
            raise Unreadable
        self._statement.at += 1
        return "" if word == "abort" else f" on conflict {word}"

    def _generated(self) -> str:
        text = f"as ({self._expression()})"
        if self._statement.take("stored"):
            return f"{text} stored"
        self._statement.take("virtual")
        return text

    def _default(self) -> str:
        """A default; a word without quotes, or in those of names, is a string for SQLite here."""
        statement, at = self._statement, self._statement.at
        word, written = self._folded[at], statement.written[at]
        if word == "(":
            return self._default_expression()
        statement.at += 1
        if word in {"+", "-"}:
            statement.at += 1
            return word + self._folded[at + 1]
        if written[:1] in {'"', "`", "["} or (word not in _CONSTANTS and (written[0].isalpha() or written[0] == "_")):
            return written if written[1:2] == "'" else literal(unquoted(written))
        return word

    def _default_expression(self) -> str:
        start, end = self._statement.group()
        found = without_outer_parentheses(self._with_strings(start, end))
        signed = len(found) == 2 and found[0] in {"+", "-"}
        if len(found) == 1 or signed:
            return "".join(found)
        return f"({spelled(found, EXPRESSION)})"

    def _expression(self) -> str:
        start, end = self._statement.group()
        return spelled(without_outer_parentheses(self._with_strings(start, end)), EXPRESSION)

    def _with_strings(self, start: int, end: int) -> list[str]:
        written = self._statement.written
        if not any(word[:1] == '"' for word in written[start:end]):
            return self._folded[start:end]
        if self._names is None:
            self._names = self._column_names()
        return as_strings(written[start - 1 : end + 1], self._folded[start - 1 : end + 1], self._names)

    def _column_names(self) -> frozenset[str]:
        """The names of all columns, read ahead."""
        statement, here = self._statement, self._statement.at
        statement.at = self._body
        start, end = statement.group()
        statement.at = here
        return _ROWID.union(name_of(element[0]) for element in split(self._folded[start:end]) if element)

    def _references(self, columns: str) -> None:
        statement = self._statement
        parent = statement.name()
        if self._folded[statement.at] == "(":
            parent += f" ({', '.join(statement.names())})"
        rules = {"delete": "", "update": "", "match": "", "deferrable": ""}
        while self._rule(rules):
            pass
        self._constraints.add(f"foreign key ({columns}) references {parent}{''.join(rules.values())}")

    def _rule(self, rules: dict[str, str]) -> bool:
        """Read one rule of a foreign key, of which the last one of a kind holds; False when there is none."""
        statement = self._statement
        if statement.take("on"):
            self._action(rules)
        elif statement.take("match"):
            kind = statement.name()
            rules["match"] = "" if kind == "simple" else f" match {kind}"
        elif statement.take("deferrable"):
            rules["deferrable"] = " deferrable initially deferred" if self._deferred() else ""
        elif statement.take("not", "deferrable"):
            self._deferred()
            rules["deferrable"] = ""
        else:
            return False
        return True

    def _action(self, rules: dict[str, str]) -> None:
        event = self._folded[self._statement.at]
        self._statement.at += 1
        action = next((" ".join(action) for action in _ACTIONS if self._statement.take(*action)), None)
        if action is None or event not in {"delete", "update", "insert"}:
            raise Unreadable
        if event != "insert":  # SQLite reads it and forgets it
            rules[event] = "" if action == "no action" else f" on {event} {action}"

    def _deferred(self) -> bool:
        if not self._statement.take("initially"):
            return False
        if self._statement.take("immediate"):
            return False
        self._statement.expect("deferred")
        return True
