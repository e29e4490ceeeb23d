"""Where one SQL statement ends and the next begins.

A splitter, not a parser: it knows quotes, comments and the bodies that hold semicolons of their own, and leaves all else
to the database. It looks at no character twice and jumps from one opening mark to the next, so that its time grows with
the text alone.

A body is told by the two places that its grammar leaves no doubt about. It can only be in a statement that starts as one
that has a body (`CREATE TRIGGER` in SQLite, `CREATE FUNCTION` in PostgreSQL), where it opens with `BEGIN` (`BEGIN ATOMIC`);
and it ends with the `END` that stands where a statement of the body would start, so behind a semicolon. Counting `CASE`
against `END` would not do: both databases take `end` for a name in some places.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Final, NamedTuple

from journal.errors import Code, JournalError, failure
from journal.migrations.source import Statement


class Dialect(Enum):
    """Whose quotes, comments and bodies are meant."""

    SQLITE = "sqlite"
    POSTGRES = "postgres"


@dataclass(frozen=True, slots=True)
class Directive:
    """A comment that is addressed to the journal: all of it up to the end of its line.

    `alone`: nothing but blanks stands before it on its line.
    """

    text: str
    line: int
    alone: bool


def split(text: str, *, line: int = 1, dialect: Dialect = Dialect.SQLITE) -> list[Statement]:
    """Split a text with LF line endings whose first line has the number `line`.

    A statement is what stands between its first and its last token; blanks and comments around it are dropped, those
    inside are kept, and so is the absence of a semicolon at the end of the text. An empty statement is nothing.

    Raises:
        InvalidContractError: `journal_invalid_folder`, with `details["line"]` and `details["rule"]`: a quote, a comment
            or a body that is not closed.
    """
    pieces = _Scanner(text, line, dialect, directives=False).pieces()
    return [piece for piece in pieces if isinstance(piece, Statement)]


def scan(text: str, *, dialect: Dialect = Dialect.SQLITE) -> Iterator[Statement | Directive]:
    """Split a text as `split` does, and give the directives among the statements; one ends the statement before it.

    Raises:
        InvalidContractError: as `split`, or a directive inside a body; what stands before was given already.
    """
    return _Scanner(text, 1, dialect, directives=True).pieces()


# Letters, digits, `_` and `$`; both databases take every character past ASCII for a letter. Said by what is not in a name:
# compiling a class of a million characters that ignores case takes a tenth of a second.
IN_NAME: Final = r"[^\x00-#%-/:-@\[-^`{-\x7f]"
_IN_TAG: Final = r"[^\x00-/:-@\[-^`{-\x7f]"
_SPACE: Final = r"(?:[ \t\n\f\r]|--[^\n]*\n|/\*[^*]*(?:\*(?!/)[^*]*)*\*/)+"
_BLANKS: Final = " \t\n\f\r"
_COMMENTS: Final = ("--", "/*")
_CLOSERS: Final = {"'": "'", '"': '"', "`": "`", "[": "]"}


class _Rules(NamedTuple):
    marks: re.Pattern[str]
    # The statements that may have a body, and the marks together with what opens one.
    has_body: re.Pattern[str]
    marks_and_opening: re.Pattern[str]
    empty_body: bool
    nested_comments: bool
    escapes: bool


def _pattern(source: str) -> re.Pattern[str]:
    return re.compile(source, re.ASCII | re.IGNORECASE)


def _word(source: str) -> str:
    return rf"(?<!{IN_NAME}){source}(?!{IN_NAME})"


@cache
def _rules(dialect: Dialect) -> _Rules:
    # A pattern that is a choice between plain characters is searched for at the speed of a scan for them.
    if dialect is Dialect.SQLITE:
        marks = r""";|'|"|`|\[|--|/\*"""
        has_body = _word(rf"CREATE{_SPACE}(?:TEMP(?:ORARY)?{_SPACE})?TRIGGER")
        opening = _word("BEGIN")
    else:
        # Behind a name, `$` is a part of it; the tag of a dollar quote is a name without `$`.
        marks = rf""";|'|"|--|/\*|\$(?<!{IN_NAME}\$)(?:(?![0-9]){_IN_TAG}+)?\$"""
        has_body = _word(rf"CREATE{_SPACE}(?:OR{_SPACE}REPLACE{_SPACE})?(?:FUNCTION|PROCEDURE)")
        opening = _word(rf"BEGIN{_SPACE}ATOMIC")
    return _Rules(
        marks=re.compile(marks),
        has_body=_pattern(has_body),
        marks_and_opening=_pattern(f"{marks}|{opening}"),
        empty_body=dialect is Dialect.POSTGRES,
        nested_comments=dialect is Dialect.POSTGRES,
        escapes=dialect is Dialect.POSTGRES,
    )


_TOKEN: Final = re.compile(r"[^ \t\n\f\r;]")
_END: Final = _pattern(_word("END"))
_DIRECTIVE: Final = _pattern(r"--[ \t]*journal[ \t]*:")
_COMMENT_EDGE: Final = re.compile(r"/\*|\*/")
# Inside E'...': an escape, a doubled quote, a literal that goes on in the next line, or the end.
_ESCAPE_OR_END: Final = re.compile(r"\\.|'(?:[ \t\f\r]*\n[ \t\n\f\r]*)?'|'", re.DOTALL)
_ESCAPING: Final = _pattern(rf"(?<!{IN_NAME})E'")


class _Scanner:
    def __init__(self, text: str, line: int, dialect: Dialect, *, directives: bool) -> None:
        self._text = text
        self._line, self._counted = line, 0
        self._rules = _rules(dialect)
        self._directives = directives

    def pieces(self) -> Iterator[Statement | Directive]:
        text, at = self._text, self._skip(0)
        while at < len(text):
            if text.startswith("--", at):
                start, at = at, self._line_end(at)
                alone = not text[text.rfind("\n", 0, start) + 1 : start].strip(_BLANKS)
                yield Directive(text[start:at], self._line_of(start), alone)
            else:
                start = at
                end, at = self._statement(start)
                yield Statement(text[start:end], self._line_of(start))
            at = self._skip(at)

    def _statement(self, start: int) -> tuple[int, int]:
        """Where the last token of the statement ends that starts here, and where to go on."""
        text, rules = self._text, self._rules
        may_have_body = rules.has_body.match(text, start)
        marks = rules.marks_and_opening if may_have_body else rules.marks
        in_body = False
        end = behind_comment = at = start
        while found := marks.search(text, at):
            mark, (begin, at) = found.group(), found.span()
            if mark == ";":
                if not in_body:
                    return self._last_token(behind_comment, begin, end), at
                in_body, at = self._leave_body(at, start)
            elif mark in _CLOSERS:
                at = self._quote_end(begin, mark)
            elif mark in _COMMENTS:
                end = self._last_token(behind_comment, begin, end)
                if self._is_directive(begin):
                    if in_body:
                        raise self._unfinished_body(start)
                    return end, begin
                behind_comment = at = self._comment_end(begin)
            elif mark[0] == "$":
                at = self._closed(begin, text.find(mark, at), mark)
            else:
                marks = rules.marks
                in_body, at = self._leave_body(at, start) if rules.empty_body else (True, at)
        if in_body:
            raise self._unfinished_body(start)
        return self._last_token(behind_comment, len(text), end), len(text)

    def _last_token(self, behind_comment: int, stop: int, before: int) -> int:
        """Where the last token before `stop` ends, when none behind the last comment: where `before` it did."""
        tokens = len(self._text[behind_comment:stop].rstrip(_BLANKS))
        return behind_comment + tokens if tokens else before

    def _leave_body(self, at: int, start: int) -> tuple[bool, int]:
        """Whether the body goes on behind a semicolon, and where."""
        at = self._skip(at)
        if self._is_directive(at):
            raise self._unfinished_body(start)
        end = _END.match(self._text, at)
        return (False, end.end()) if end else (True, at)

    def _skip(self, at: int) -> int:
        """The next token or directive: past blanks, comments and semicolons."""
        text = self._text
        while found := _TOKEN.search(text, at):
            at = found.start()
            if not text.startswith(_COMMENTS, at) or self._is_directive(at):
                return at
            at = self._comment_end(at)
        return len(text)

    def _is_directive(self, at: int) -> bool:
        return self._directives and _DIRECTIVE.match(self._text, at) is not None

    def _line_end(self, at: int) -> int:
        end = self._text.find("\n", at)
        return len(self._text) if end < 0 else end

    def _comment_end(self, begin: int) -> int:
        if self._text.startswith("--", begin):
            return self._line_end(begin)
        if not self._rules.nested_comments:
            return self._closed(begin, self._text.find("*/", begin + 2), "*/")
        depth, at = 1, begin + 2
        while depth and (edge := _COMMENT_EDGE.search(self._text, at)):
            depth, at = depth + (1 if edge.group() == "/*" else -1), edge.end()
        return self._closed(begin, at - 2 if not depth else -1, "*/")

    def _quote_end(self, begin: int, mark: str) -> int:
        # A doubled quote needs no care: one literal ends there and the next begins.
        if self._rules.escapes and begin and mark == "'" and _ESCAPING.match(self._text, begin - 1):
            return self._escaped_end(begin)
        end = self._text.find(_CLOSERS[mark], begin + 1) + 1
        if not end:
            raise self._unfinished(self._opening(begin, mark), f"the quote {mark} that opens here is not closed")
        return end

    def _opening(self, begin: int, mark: str) -> int:
        """Where the literal opened whose last doubled quote is at `begin`."""
        while self._text.endswith(mark, 0, begin):
            begin = self._text.rindex(mark, 0, begin - 1)
        return begin

    def _escaped_end(self, begin: int) -> int:
        at = begin + 1
        while found := _ESCAPE_OR_END.search(self._text, at):
            at = found.end()
            if found.group() == "'":
                return at
        raise self._unfinished(begin, "the quote ' that opens here is not closed")

    def _closed(self, begin: int, close: int, closer: str) -> int:
        if close < 0:
            what = "comment /*" if closer == "*/" else f"quote {closer}"
            raise self._unfinished(begin, f"the {what} that opens here is not closed")
        return close + len(closer)

    def _unfinished_body(self, start: int) -> JournalError:
        return self._unfinished(start, "the body of this statement is not closed: it needs END; behind its last ;")

    def _unfinished(self, at: int, rule: str) -> JournalError:
        line = self._line_of(at)
        return failure(Code.INVALID_FOLDER, f"line {line}: {rule}", line=line, rule=rule)

    def _line_of(self, at: int) -> int:
        # Asked for growing places only, so that no line is counted twice.
        self._line += self._text.count("\n", self._counted, at)
        self._counted = at
        return self._line
