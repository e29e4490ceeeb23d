"""SQLite's words: how the text of a statement is cut, and the one canonical spelling of each piece.

Canonical words are plain strings that cannot be taken for one another. A string literal starts with `'`, a number with
a digit or a point; both stay as they were written. Keywords and identifiers are in lower case, because SQLite compares
both without ASCII case. An identifier is bare where a bare word can mean nothing else, in double quotes where it must be.

Keywords that SQLite also takes as names ("soft" ones, such as `key`) keep their quotes when a statement is cut, so that
a reader of its structure sees which words are syntax. They lose them where an expression or a body is spelled:
there is no pair of valid statements that differ in such quotes alone and in meaning as well. Join words are the exception
(`FROM a left JOIN b` joins, `FROM a "left" JOIN b` names), and so are the words that are values (`true`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase
from typing import Final

_WORD: Final = r"[A-Za-z_\x80-\U0010ffff][A-Za-z0-9_$\x80-\U0010ffff]*+"
# Possessive throughout: no text, however long or odd, is looked at twice. The end is a word too, the empty one.
_TOKEN: Final = re.compile(
    rf"""[ \t\n\f\r]*+(?:(?:--[^\n]*+|/\*(?s:.*?)(?:\*/|\Z))[ \t\n\f\r]*+)*+(
    [xX]'[^']*+'
    |{_WORD}
    |[,();]|\.(?![0-9])
    |'[^']*+(?:''[^']*+)*+'?
    |"[^"]*+(?:""[^"]*+)*+"?
    |`[^`]*+(?:``[^`]*+)*+`?
    |\[[^\]]*+\]?
    |0[xX][0-9a-fA-F]++[A-Za-z0-9_$]*+
    |(?:[0-9][0-9_]*+(?:\.[0-9_]*+)?+|\.[0-9]++)(?:[eE][+-]?[0-9]++)?+[A-Za-z0-9_$]*+
    |->>|->|\|\||<<|>>|<=|>=|==|!=|<>
    |(?s:.)
    |\Z)""".replace("\n    ", ""),
)
_PLAIN: Final = re.compile(r"[a-z_\x80-\U0010ffff][a-z0-9_$\x80-\U0010ffff]*+")
_LOWER: Final = str.maketrans(ascii_uppercase, ascii_lowercase)
_SAME: Final = {"==": "=", "<>": "!="}

_JOINS: Final = frozenset({"cross", "full", "inner", "left", "natural", "outer", "right"})
_VALUES: Final = frozenset({"current_date", "current_time", "current_timestamp", "false", "true"})
_SOFT_WORDS: Final = """
    abort action after always analyze asc attach before begin by cascade cast column conflict current database
    deferred desc detach do each end exclude exclusive explain fail filter first following for generated glob groups if
    ignore immediate indexed initially instead key last like match materialized no nulls of offset others over
    partition plan pragma preceding query raise range recursive regexp reindex release rename replace restrict rollback
    row rows savepoint temp temporary ties trigger unbounded vacuum view virtual window with without
"""
_RESERVED_WORDS: Final = """
    add all alter and as autoincrement between case check collate commit constraint create default deferrable delete
    distinct drop else escape except exists foreign from group having in index insert intersect into is isnull join
    limit not nothing notnull null on or order primary references returning select set table then to transaction union
    unique update using values when where
"""
_SOFT: Final = frozenset(_SOFT_WORDS.split())
_RESERVED: Final = frozenset(_RESERVED_WORDS.split())
_KEYWORDS: Final = _JOINS | _VALUES | _SOFT | _RESERVED

# How a canonical word is spelled in the body of a view or trigger; in an expression without joins; and as a name.
BODY: Final[Mapping[str, str]] = {f'"{word}"': word for word in _SOFT}
EXPRESSION: Final[Mapping[str, str]] = {**BODY, **{word: f'"{word}"' for word in _JOINS}}
_NAME: Final[Mapping[str, str]] = {**EXPRESSION, **{word: f'"{word}"' for word in _VALUES}}

_TIGHT_BEFORE: Final = frozenset({",", ")", ".", ";"})
_TIGHT_AFTER: Final = frozenset({"(", "."})
# A string literal behind one of these is a name, as is one beside a point. (`IS DISTINCT FROM 'x'` compares.)
_BEFORE_NAMES: Final = frozenset({"collate", "from", "into", "join", "update"})
_LONGEST_KEPT: Final = 1024  # characters; a longer text is not held in memory for the sake of its words


class Unreadable(LookupError):  # noqa: N818 - a signal between these two modules, never an error that a caller sees
    """A statement says something that its reader does not know."""


def words(sql: str) -> list[str]:
    """Cut a statement into its words as written, without comments, blanks and final semicolons; the end is `""`."""
    found = _TOKEN.findall(sql)
    while found and found[-1] in {"", ";"}:
        found.pop()
    found.append("")
    return found


def fold(name: str) -> str:
    """Fold the letter case that SQLite does not see: that of ASCII, and no other."""
    return name.lower() if name.isascii() else name.translate(_LOWER)


def _canonical_word(word: str) -> str:
    return _kept(word) if len(word) <= _LONGEST_KEPT else _canonical(word)


def _canonical(word: str) -> str:
    match word[:1]:
        case '"' | "`" | "[":
            return _quoted(fold(unquoted(word)))
        case "'" | "":
            return word
        case first if first.isascii() and not first.isalpha() and first != "_":
            return _SAME.get(word, word)
        case _:
            return word if word[1:2] == "'" else fold(word)


_kept: Final = lru_cache(maxsize=8192)(_canonical)


def _quoted(folded: str) -> str:
    if folded not in _KEYWORDS and _PLAIN.fullmatch(folded):
        return folded
    return '"' + folded.replace('"', '""') + '"'


def unquoted(word: str) -> str:
    """What quotes of any style enclose; a bare word is itself."""
    if word[:1] == "[":
        return word[1:-1]
    if (quote := word[:1]) in {'"', "'", "`"}:
        return word[1:-1].replace(quote * 2, quote)
    return word


def literal(text: str) -> str:
    """A text as a string literal."""
    return "'" + text.replace("'", "''") + "'"


def name_of(word: str) -> str:
    """The canonical spelling of a canonical word that stands where a name must."""
    if word[:1] == "'":
        word = _quoted(fold(unquoted(word)))
    return _NAME.get(word, word)


def as_name(name: str) -> str:
    """The canonical spelling of a name that is given without quotes."""
    return name_of(_quoted(fold(name)))


def spelled(folded: Iterable[str], forms: Mapping[str, str]) -> str:
    """Canonical words as readable text; other words never give the same text."""
    pieces: list[str] = []
    tight = True
    for word in folded:
        if not tight and word not in _TIGHT_BEFORE:
            pieces.append(" ")
        pieces.append(forms.get(word, word))
        tight = word in _TIGHT_AFTER
    return "".join(pieces)


def body(folded: list[str]) -> str:
    """A query or the body of a trigger as text: names are told from strings, and `AS` before a name is dropped."""
    out: list[str] = []
    before = last = ""
    for at, word in enumerate(folded):
        if word == "as" and _is_name(folded[at + 1 : at + 2]):
            pass
        elif last == "as":
            out.append(name_of(word) if _is_name([word]) else word)
        elif word[:1] == "'" and _names(before, last, folded[at + 1 : at + 2]):
            out.append(name_of(word))
        else:
            out.append(word)
        before, last = last, word
    return spelled(out, BODY)


def _is_name(word: list[str]) -> bool:
    return bool(word) and word[0] not in _RESERVED and (word[0][:1] in {"'", '"'} or _PLAIN.match(word[0]) is not None)


def _names(before: str, last: str, following: list[str]) -> bool:
    if last == "." or following == ["."]:
        return True
    return last in _BEFORE_NAMES and not (last == "from" and before == "distinct")


def without_outer_parentheses(folded: list[str]) -> list[str]:
    """Take away the parentheses that enclose an expression as a whole, however many they are."""
    if folded[:1] != ["("]:
        return folded
    first = next((at for at, word in enumerate(folded) if word != "("), len(folded))
    depth = lowest = first
    end = len(folded)
    while end > first and folded[end - 1] == ")":
        end -= 1
    for word in folded[first:end]:
        depth += (word == "(") - (word == ")")
        lowest = min(lowest, depth)
    outer = min(lowest, len(folded) - end)
    # What is left at the end closes as much as the text has opened, outermost last.
    return folded[outer : len(folded) - outer] if depth == len(folded) - end else folded


class Statement:
    """The words of one statement, and how far they have been read."""

    __slots__ = ("_places", "_sql", "at", "folded", "has_comments", "written")

    def __init__(self, sql: str) -> None:
        self.written = words(sql)
        self.folded = list(map(_kept if len(sql) <= _LONGEST_KEPT else _canonical_word, self.written))
        self.at = 0
        self._sql = sql
        self._places: list[tuple[int, int]] = []
        self.has_comments = "--" in sql or "/*" in sql  # or something in a string that looks like one

    def text(self, start: int, end: int) -> str:
        """The text of some of the words, and of what is between them."""
        if not self._places:
            self._places = [found.span(1) for found in _TOKEN.finditer(self._sql)]
        return self._sql[self._places[start][0] : self._places[end - 1][1]]

    def take(self, first: str, *more: str) -> bool:
        """Step over these words, when they are what follows."""
        at = self.at
        if self.folded[at] != first or (more and self.folded[at + 1 : at + 1 + len(more)] != [*more]):
            return False
        self.at = at + 1 + len(more)
        return True

    def expect(self, first: str, *more: str) -> None:
        """Step over these words. Raises Unreadable when something else follows."""
        if not self.take(first, *more):
            raise Unreadable

    def name(self) -> str:
        """Step over one name."""
        word = self.folded[self.at]
        if not (word[:1] == "'" or word[:1] == '"' or _PLAIN.match(word)):
            raise Unreadable
        self.at += 1
        return name_of(word)

    def names(self) -> list[str]:
        """Step over names in parentheses."""
        self.expect("(")
        found = [self.name()]
        while self.take(","):
            found.append(self.name())
        self.expect(")")
        return found

    def header(self, *kind: str) -> None:
        """Step over `CREATE kind name`, with what may stand between."""
        self.expect("create")
        if not self.take("temp"):
            self.take("temporary")
        self.expect(*kind)
        self.take("if", "not", "exists")
        self.qualified_name()

    def qualified_name(self) -> None:
        """Step over a name, and the name of a database before it."""
        self.name()
        if self.take("."):
            self.name()

    def group(self) -> tuple[int, int]:
        """Step over one pair of parentheses; give where its content begins and ends."""
        self.expect("(")
        start, folded, depth, at = self.at, self.folded, 1, self.at
        while depth:
            word = folded[at]
            if word == "(":
                depth += 1
            elif word == ")":
                depth -= 1
            elif not word:
                raise Unreadable
            at += 1
        self.at = at
        return start, at - 1

    def rest(self) -> list[str]:
        """All words that were not read yet."""
        return self.folded[self.at : -1]

    def ends(self) -> bool:
        """Whether all has been read."""
        return not self.folded[self.at]

    def terms(self) -> list[list[str]]:
        """Step over columns or expressions in parentheses, as an index has them."""
        start, end = self.group()
        return list(split(self.folded[start:end]))


def split(folded: list[str], at: str = ",") -> Iterable[list[str]]:
    """Cut words at the commas that are in no parentheses."""
    depth = start = 0
    for index, word in enumerate(folded):
        if word == "(":
            depth += 1
        elif word == ")":
            depth -= 1
        elif word == at and not depth:
            yield folded[start:index]
            start = index + 1
    yield folded[start:]


def term(folded: list[str]) -> str:
    """One column or expression of an index or key; ascending is how it is anyway."""
    if not folded:
        raise Unreadable
    if len(folded) > 1 and folded[-1] == "asc":
        folded = folded[:-1]
    if len(folded) == 1:
        return name_of(folded[0])
    # SQLite takes a string that stands alone, or with a collation, for the name of a column.
    if folded[0][:1] == "'" and folded[1] in {"collate", "desc"}:
        folded = [name_of(folded[0]), *folded[1:]]
    return spelled(folded, EXPRESSION)


def as_strings(words: list[str], folded: list[str], names: Collection[str]) -> list[str]:
    """Spell double-quoted words that name nothing as what SQLite takes them for, which is strings.

    `words` and `folded` are the same words of an expression, as written and canonical; both have one word more at each
    end, what stands around the expression.
    """
    out: list[str] = []
    for at in range(1, len(folded) - 1):
        beside = folded[at - 1] in {".", "as", "collate"} or folded[at + 1] in {".", "("}
        is_string = words[at][:1] == '"' and not beside and name_of(folded[at]) not in names
        out.append(literal(unquoted(words[at])) if is_string else folded[at])
    return out
