"""What the text of one migration file says: its dependencies and its steps, or everything that is wrong with it.

A file is a list of sections, each a directive (`-- journal: word ...`) and the statements up to the next one; what stands
before the first directive is a section without a word. Sections are then put together to steps: `reverse` and `verify`
belong to the step before them. Every problem is collected, with its line, and reading goes on as if the nearest right
thing had been written.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from journal.errors import JournalError
from journal.identities import MigrationId
from journal.migrations.source import AssertionSource, BackfillSource, SchemaSource, Statement, StepSource
from journal.migrations.statements import IN_NAME, Dialect, Directive, scan

MAX_BATCH: Final = 1_000_000
DEFAULT_BATCH: Final = 1_000
WORDS: Final = ("depends", "assert", "schema", "backfill", "verify", "reverse")

_NO_STEP: Final = "has no statement: write what it does, or `-- journal: schema` when nothing is to change"


@dataclass(frozen=True, slots=True)
class Problem:
    """A rule that a file breaks; `line` is None where the file as a whole does."""

    line: int | None
    rule: str


@dataclass(frozen=True, slots=True)
class Contents:
    """One file, read. `dependencies` is None where the file does not say; with `problems`, the rest is incomplete."""

    dependencies: tuple[MigrationId, ...] | None
    steps: tuple[StepSource, ...]
    problems: tuple[Problem, ...]


def read_contents(text: str, app: str, *, dialect: Dialect = Dialect.SQLITE) -> Contents:
    """Read the text of a file, with LF line endings; names without an app are names of `app`."""
    problems = _Problems()
    sections, whole = _sections(text, dialect, problems)
    dependencies, units = _units(sections, app, problems)
    steps = [_step(unit, problems) for unit in units]
    if not units and not problems.found:
        problems.add(None, _NO_STEP)
    if whole:
        _check_assertions(units, problems)
    return Contents(
        dependencies,
        tuple(step for step in steps if step is not None),
        tuple(sorted(problems.found, key=lambda problem: problem.line or 0)),
    )


class _Problems:
    def __init__(self) -> None:
        self.found: list[Problem] = []

    def add(self, line: int | None, rule: str) -> None:
        self.found.append(Problem(line, rule))


@dataclass(slots=True)
class _Section:
    """A directive and the statements behind it; the word of plain SQL is empty."""

    word: str
    rest: str
    line: int
    statements: list[Statement] = field(default_factory=list[Statement])

    @property
    def title(self) -> str:
        return f"`-- journal: {self.word}`"


@dataclass(slots=True)
class _Unit:
    """The section that makes a step, and those that belong to it."""

    head: _Section
    verify: _Section | None = None
    reverse: _Section | None = None


# --- sections -----------------------------------------------------------------------------------------------------------

_WRITTEN_RIGHT: Final = re.compile(r"--[ \t]+journal:[ \t]+([a-z]+)(?:[ \t]+(.*))?", re.DOTALL)
_WRITTEN: Final = re.compile(r"--[ \t]*journal[ \t]*:[ \t]*([^ \t]*)(.*)", re.IGNORECASE | re.DOTALL)


def _sections(text: str, dialect: Dialect, problems: _Problems) -> tuple[list[_Section], bool]:
    """The sections of a text, and whether it could be split to its end; the section in which it could not is left out."""
    sections = [_Section("", "", 1)]
    try:
        for piece in scan(text, dialect=dialect):
            if isinstance(piece, Statement):
                sections[-1].statements.append(piece)
            else:
                sections.append(_section(piece, problems))
    except JournalError as error:
        problems.add(error.details["line"], error.details["rule"])
        return sections[:-1], False
    return sections, True


def _section(directive: Directive, problems: _Problems) -> _Section:
    text, line = directive.text.rstrip(), directive.line
    right = _WRITTEN_RIGHT.fullmatch(text)
    if right and right[1] in WORDS:
        word, rest = right[1], right[2] or ""
    else:
        word, rest = _mended(text, line, problems)
    if not directive.alone:
        problems.add(line, f"a directive stands on a line of its own: begin a new line with `-- journal: {word}`")
    return _Section(word, rest, line)


def _mended(text: str, line: int, problems: _Problems) -> tuple[str, str]:
    """Say what is wrong with a directive, and read it as what was most likely meant."""
    written = _WRITTEN.match(text)
    wrong, rest = (written[1], written[2].strip()) if written else ("", "")
    near = difflib.get_close_matches(wrong.lower(), WORDS, n=1, cutoff=0.5)
    if wrong in WORDS:
        problems.add(line, f"a directive is written `-- journal: {wrong}`, with these blanks and in lower case")
    elif near:
        problems.add(line, f"there is no directive {_shown(wrong)}; the nearest is `-- journal: {near[0]}`")
    else:
        what = f"there is no directive {_shown(wrong)}" if wrong else "the directive has no word"
        problems.add(line, f"{what}; there are {', '.join(WORDS)}")
        return "schema", ""
    return near[0], rest


def _shown(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:39] + "~")


# --- from sections to steps ---------------------------------------------------------------------------------------------


def _units(
    sections: Iterable[_Section], app: str, problems: _Problems
) -> tuple[tuple[MigrationId, ...] | None, list[_Unit]]:
    dependencies: tuple[MigrationId, ...] | None = None
    units: list[_Unit] = []
    for section in sections:
        match section.word:
            case "":
                pass
            case "depends":
                if units:
                    problems.add(section.line, f"{section.title} stands before the first step")
                elif dependencies is not None:
                    problems.add(section.line, f"{section.title} is given once: name all of them there, with commas")
                dependencies = _dependencies(section, app, problems)
            case "verify" | "reverse":
                _attach(section, units, problems)
                continue
            case _:
                units.append(_Unit(section))
                continue
        if section.statements:
            units.append(_Unit(_Section("", "", section.statements[0].line, section.statements)))
    return dependencies, units


def _attach(section: _Section, units: list[_Unit], problems: _Problems) -> None:
    unit = units[-1] if units else None
    if section.rest:
        problems.add(section.line, f"{section.title} stands alone, without {_shown(section.rest)}")
    if section.word == "verify":
        if unit is None or unit.head.word != "backfill":
            problems.add(section.line, f"{section.title} follows a backfill, and nothing else")
            return
        repeated, unit.verify = unit.verify is not None, section
    else:
        if unit is None or unit.head.word == "assert":
            problems.add(section.line, f"{section.title} follows the schema step or the backfill that it undoes")
            return
        repeated, unit.reverse = unit.reverse is not None, section
    if repeated:
        problems.add(section.line, f"{section.title} is given once a step")


def _check_assertions(units: Iterable[_Unit], problems: _Problems) -> None:
    """Assertions belong to the transaction of the schema step that follows; without one, nothing would check them."""
    waiting: list[_Section] = []
    for unit in units:
        if unit.head.word == "assert":
            waiting.append(unit.head)
        elif unit.head.word == "backfill":
            _orphans(waiting, problems)
            waiting = []
        else:
            waiting = []
    _orphans(waiting, problems)


def _orphans(sections: Iterable[_Section], problems: _Problems) -> None:
    for section in sections:
        problems.add(section.line, "no schema step follows this assertion: put one behind it, if need be an empty one")


def _step(unit: _Unit, problems: _Problems) -> StepSource | None:
    match unit.head.word:
        case "assert":
            return _assertion(unit.head, problems)
        case "backfill":
            return _backfill(unit, problems)
        case _:
            return _schema(unit, problems)


def _schema(unit: _Unit, problems: _Problems) -> SchemaSource:
    options = _options(unit.head, {"transaction": _off}, problems)
    return SchemaSource(
        statements=tuple(unit.head.statements),
        reverse=None if unit.reverse is None else tuple(unit.reverse.statements),
        transactional="transaction" not in options,
        line=unit.head.line,
    )


def _assertion(section: _Section, problems: _Problems) -> AssertionSource | None:
    if not section.rest:
        problems.add(section.line, f"{section.title} is followed by a description of what must hold")
    query = _single(section, problems)
    return None if query is None else AssertionSource(section.rest, query, section.line)


def _backfill(unit: _Unit, problems: _Problems) -> BackfillSource | None:
    options = _options(unit.head, {"table": _table, "key": _key, "batch": _batch}, problems)
    table, key, batch = options.get("table"), options.get("key"), options.get("batch", DEFAULT_BATCH)
    statement = _single(unit.head, problems)
    verify = None if unit.verify is None else _single(unit.verify, problems)
    reverse = None if unit.reverse is None else _single(unit.reverse, problems)
    for name in ("table", "key"):
        if name not in options:
            problems.add(unit.head.line, f"{unit.head.title} needs {name}=..., as in table=orders key=id batch=1000")
    if statement and isinstance(table, str) and isinstance(key, tuple) and isinstance(batch, int):
        return BackfillSource(table, key, batch, statement, verify, reverse, unit.head.line)
    return None


def _single(section: _Section, problems: _Problems) -> Statement | None:
    if not section.statements:
        problems.add(section.line, f"{section.title} is followed by one statement, and there is none")
        return None
    if len(section.statements) > 1:
        rule = f"{section.title} takes one statement, and this is another: what comes next needs a directive of its own"
        problems.add(section.statements[1].line, rule)
    return section.statements[0]


# --- what stands behind the word ----------------------------------------------------------------------------------------

_Value: TypeAlias = str | int | tuple[str, ...]
# A value, or what it should have been.
_Read: TypeAlias = Callable[[str], tuple[_Value | None, str]]

_OPTION: Final = re.compile(r"""([^\s="]+)=((?:"[^"]*"|[^\s"])*)(?!\S)""")
_PLAIN: Final = rf"(?![0-9$]){IN_NAME}+"
_NAME: Final = rf'(?:{_PLAIN}|"(?:[^"]|"")+")'
_NAMES: Final = re.compile(rf"{_NAME}(?:,{_NAME})*")
_EACH_NAME: Final = re.compile(_NAME)
_BATCH: Final = re.compile(r"[1-9][0-9]{0,6}")
_A_NAME: Final = 'a name, or one in double quotes ("...")'


def _options(section: _Section, known: Mapping[str, _Read], problems: _Problems) -> dict[str, _Value | None]:
    """Read `name=value ...`; an option that was given wrongly is there as None."""
    options: dict[str, _Value | None] = {}
    rest, at = section.rest, 0
    while at < len(rest):
        option = _OPTION.match(rest, at)
        if option is None:
            wrong = rest[at:].split(maxsplit=1)[0]
            problems.add(
                section.line, f"{_shown(wrong)} is no option of {section.title}: they are written {_forms(known)}"
            )
            break
        name = _option_name(option[1], section, known, problems)
        if name in options:
            problems.add(section.line, f"{section.title} takes {name}= once")
        elif name is not None:
            options[name], wanted = known[name](option[2])
            if options[name] is None:
                problems.add(section.line, f"{name}= takes {wanted}, not {_shown(option[2])}")
        at = len(rest) - len(rest[option.end() :].lstrip())
    return options


def _forms(known: Iterable[str]) -> str:
    return " ".join(f"{name}=..." for name in known)


def _option_name(name: str, section: _Section, known: Iterable[str], problems: _Problems) -> str | None:
    if name in known:
        return name
    near = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    hint = f"the nearest is {near[0]}" if near else f"there are {', '.join(known)}"
    problems.add(section.line, f"{section.title} has no option {_shown(name)}; {hint}")
    return near[0] if near else None


def _off(text: str) -> tuple[_Value | None, str]:
    return (text if text == "off" else None), "off (without the option, the step is one transaction)"


def _table(text: str) -> tuple[_Value | None, str]:
    names = _names(text)
    return (names[0] if len(names) == 1 else None), _A_NAME


def _key(text: str) -> tuple[_Value | None, str]:
    names = _names(text)
    if len(set(names)) < len(names):
        return None, "each column once"
    if len(names) > 1 and not all(re.fullmatch(_PLAIN, name) for name in names):
        return None, "plain names only when there are several, because parameters are named after them"
    return names or None, f"{_A_NAME}, several with commas and no blanks between"


def _batch(text: str) -> tuple[_Value | None, str]:
    batch = int(text) if _BATCH.fullmatch(text) else 0
    return (batch if 1 <= batch <= MAX_BATCH else None), f"a number of rows from 1 to {MAX_BATCH:_}"


def _names(text: str) -> tuple[str, ...]:
    if not _NAMES.fullmatch(text):
        return ()
    return tuple(name[1:-1].replace('""', '"') if name[0] == '"' else name for name in _EACH_NAME.findall(text))


def _dependencies(section: _Section, app: str, problems: _Problems) -> tuple[MigrationId, ...]:
    names = [name for part in section.rest.split(",") for name in part.split() or [""]]
    if names == ["none"]:
        return ()
    if names == [""]:
        problems.add(section.line, f"{section.title} is followed by the names of migrations, or by none")
        return ()
    found: list[MigrationId] = []
    for name in names:
        rule = _dependency_problem(name, app)
        if rule is None:
            found.append(MigrationId.parse(name) if "/" in name else MigrationId(app, name))
        else:
            problems.add(section.line, rule)
    return tuple(found)


def _dependency_problem(name: str, app: str) -> str | None:
    if not name:
        return "a name is missing beside a comma"
    if name == "none":
        return "`none` stands alone: a migration that depends on others does not depend on none"
    try:
        MigrationId.parse(name if "/" in name else f"{app}/{name}")
    except JournalError:
        example = name.removesuffix(".sql") if name.endswith(".sql") else "0001_initial"
        return f"{_shown(name)} is no name of a migration; they are written {_shown(example)[1:-1]}, or app/name"
    return None
