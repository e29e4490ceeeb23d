"""A folder of `.sql` files, read into migrations; the only place of this package that touches a file system.

Nothing that looks as if it were meant to be a migration is passed over: it is read, or refused by name with the rule
that it breaks. Of what else lies in the folder, the names are reported. All problems of a folder come in one error.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from journal.errors import Code, JournalError, failure
from journal.identities import MigrationId
from journal.migrations.directives import Problem, read_contents
from journal.migrations.graph import lines_of
from journal.migrations.source import MigrationSource
from journal.migrations.statements import Dialect

MAX_FILE_BYTES: Final = 64 * 2**20
MAX_STEM: Final = 128
_ATTEMPTS: Final = 100


@dataclass(frozen=True, slots=True)
class Ignored:
    """Something in the folder that is no migration, and how that is known."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Folder:
    """The migrations of a folder in the order of their numbers, and what else is in it in the order of names."""

    migrations: tuple[MigrationSource, ...]
    ignored: tuple[Ignored, ...]


def read_folder(folder: Path, app: str, *, dialect: Dialect = Dialect.SQLITE) -> Folder:
    """Read every migration of a folder, as migrations of `app`.

    Raises:
        InvalidContractError: `journal_invalid_folder`: the folder cannot be read, or `details["problems"]` has a `file`,
            `line` (None for the file as a whole) and `rule` for each rule that one of its files breaks;
            `journal_invalid_migration_id`: `app` is no label of an app.
    """
    MigrationId(app, "0")
    names = _sort(_entries(folder))
    problems = [*names.problems, *_repeated_numbers(names.files)]
    migrations: list[MigrationSource] = []
    before: tuple[MigrationId, ...] = ()
    for entry in names.files:
        id = MigrationId(app, entry.name.removesuffix(".sql"))
        try:
            contents = read_contents(_read(entry), app, dialect=dialect)
        except _UnreadableError as unreadable:
            problems.append((entry.name, unreadable.problem))
            continue
        problems.extend((entry.name, problem) for problem in contents.problems)
        dependencies = before if contents.dependencies is None else contents.dependencies
        migrations.append(MigrationSource(id, dependencies, contents.steps, _printable(entry.path)))
        before = (id,)
    if problems:
        raise _refused(folder, problems)
    return Folder(tuple(migrations), tuple(names.ignored))


def new_migration(folder: Path, name: str) -> Path:
    """Make the file of the next migration, with a number after the greatest of the folder, and the folder if need be.

    The file explains the directives; it is no migration before it has a statement. Nothing is ever overwritten, and two
    calls at once never end with one number.

    Raises:
        InvalidContractError: `journal_invalid_folder`: the name breaks the rules, or the file cannot be made.
    """
    _check_new_name(name)
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        for _ in range(_ATTEMPTS):
            path = folder / f"{_next_number(folder):04}_{name}.sql"
            _check_length(path.stem)
            if _claim(path):
                return path
    except OSError as error:
        rule = f"cannot make a migration in {_printable(str(folder))}: {_reason(error)}"
        raise failure(Code.INVALID_FOLDER, rule, folder=_printable(str(folder))) from error
    rule = f"others make migrations in {_printable(str(folder))} at this moment: try again"
    raise failure(Code.INVALID_FOLDER, rule, folder=_printable(str(folder)))


# --- the folder ---------------------------------------------------------------------------------------------------------


class _Names:
    """What is in a folder, by what the names say."""

    def __init__(self) -> None:
        self.files: list[os.DirEntry[str]] = []
        self.ignored: list[Ignored] = []
        self.problems: list[tuple[str, Problem]] = []


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    shown = _printable(str(folder))
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError as error:
        rule = f"there is no folder {shown}: make it, or say with --dir where the migrations are"
        raise failure(Code.INVALID_FOLDER, rule, folder=shown) from error
    except (OSError, ValueError) as error:
        rule = f"the folder {shown} cannot be read ({_reason(error)}): say with --dir where the migrations are"
        raise failure(Code.INVALID_FOLDER, rule, folder=shown) from error


def _sort(entries: Iterable[os.DirEntry[str]]) -> _Names:
    names = _Names()
    for entry in entries:
        name = entry.name
        if _MIGRATION.fullmatch(name) and len(name) <= MAX_STEM + 4:
            names.files.append(entry)
        elif leftover := _leftover(name):
            names.ignored.append(Ignored(_printable(name), leftover))
        elif _MEANT.search(name):
            names.problems.append((name, Problem(None, _name_rule(name))))
        elif not name.startswith("."):
            names.ignored.append(Ignored(_printable(name), _foreign(entry)))
    names.files.sort(key=lambda entry: _number(entry.name))
    return names


def _foreign(entry: os.DirEntry[str]) -> str:
    if entry.is_dir(follow_symlinks=False):
        return "a folder: migrations are not looked for there"
    return "no migration: its name does not end in .sql"


def _number(name: str) -> int:
    return int(name[: name.index("_")])


def _repeated_numbers(files: Iterable[os.DirEntry[str]]) -> Iterator[tuple[str, Problem]]:
    first: dict[int, str] = {}
    for entry in files:
        other = first.setdefault(_number(entry.name), entry.name)
        if other != entry.name:
            yield entry.name, Problem(None, f"has the number of {other}: give one of them another")


def _refused(folder: Path, problems: list[tuple[str, Problem]]) -> JournalError:
    problems = sorted(problems, key=lambda item: (item[0], item[1].line or 0))
    lines = [
        f"{_printable(file)}{'' if problem.line is None else f':{problem.line}'}: {problem.rule}"
        for file, problem in problems
    ]
    shown = _printable(str(folder))
    return failure(
        Code.INVALID_FOLDER,
        f"the migrations of {shown} cannot be used:{lines_of(lines)}",
        folder=shown,
        problems=[{"file": _printable(file), "line": problem.line, "rule": problem.rule} for file, problem in problems],
    )


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


# --- names --------------------------------------------------------------------------------------------------------------

_MIGRATION: Final = re.compile(r"(?:[0-9]{4}|[1-9][0-9]{4,})_[a-z0-9_-]+\.sql")
# Names of database files have `.sql` in them too.
_MEANT: Final = re.compile(r"\.sql(?!ite)|\A\d+[_-]", re.IGNORECASE)
_LEFTOVERS: Final = (
    (re.compile(r".+~|\..+\.sw[a-p]|#.+#|\.#.+", re.DOTALL), "left by an editor"),
    (re.compile(r".+\.bak", re.DOTALL | re.IGNORECASE), "a backup"),
    (re.compile(r".+\.(?:orig|rej)", re.DOTALL | re.IGNORECASE), "left by a merge or a patch"),
    (re.compile(r".+\.tmp", re.DOTALL | re.IGNORECASE), "a temporary file"),
)
_COPY: Final = re.compile(r"\Acopy of |\bcopy\b(?: ?\(?\d+\)?)?\.|\(\d+\)", re.IGNORECASE)
_PARTS: Final = re.compile(r"\A(?P<number>[0-9]*)[ _-]*(?P<name>.*?)(?:\.sql.*)?\Z", re.IGNORECASE | re.DOTALL)
_FORM: Final = "NNNN_name.sql"


def _leftover(name: str) -> str | None:
    return next((why for pattern, why in _LEFTOVERS if pattern.fullmatch(name)), None)


def _name_rule(name: str) -> str:
    """The first rule that the name of a file breaks, and a name that breaks none where it can be guessed."""
    if _COPY.search(name):
        return "looks like a copy: remove it, or give it a number and a name of its own"
    parts = _PARTS.match(name)
    number, rest = (parts["number"], parts["name"]) if parts else ("", name)
    stem = f"{number.lstrip('0').zfill(4)}_{_slug(rest)}"
    rule = _broken_rule(name, number, rest)
    hint = f"; rename it to {stem}.sql" if number and _slug(rest) and len(stem) <= MAX_STEM else ""
    return f"{rule}{hint}"


def _broken_rule(name: str, number: str, rest: str) -> str:
    if not number:
        return f"has no number: a migration is named {_FORM}, with a number of four digits or more in front"
    if not name.endswith(".sql"):
        return "does not end in .sql, in lower case"
    if len(number) < 4:
        return "its number is not padded to four digits"
    if len(number) > 4 and number[0] == "0":
        return "its number has more zeros in front than four digits need"
    if name[len(number)] != "_" or not rest:
        return f"has no _ and name behind its number, as {_FORM} has"
    if len(name) > MAX_STEM + 4:
        return f"is {len(name) - 4} characters long without .sql, and {MAX_STEM} are the most"
    if rest != rest.lower():
        return "its name is not in lower case"
    return "its name has something else than a-z 0-9 _ -"


def _slug(text: str) -> str:
    """The nearest name that breaks no rule; empty when nothing is left."""
    return re.sub(r"[^a-z0-9_-]+", "_", text.lower(), flags=re.ASCII).strip("_-")


# --- one file -----------------------------------------------------------------------------------------------------------

_BOM: Final = b"\xef\xbb\xbf"


class _UnreadableError(Exception):
    def __init__(self, line: int | None, rule: str) -> None:
        super().__init__(rule)
        self.problem = Problem(line, rule)


def _read(entry: os.DirEntry[str]) -> str:
    """The text of a file: without the mark of its encoding, and with LF line endings."""
    try:
        data = _bytes(entry)
    except OSError as error:
        raise _UnreadableError(None, f"cannot be read: {_reason(error)}") from error
    data = data.removeprefix(_BOM)
    if b"\0" in data:
        what = "has a NUL byte here: it is no text in UTF-8"
        raise _UnreadableError(_line(data, data.index(b"\0")), what)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        rule = f"is not UTF-8 here ({error.reason}): save it in that encoding"
        raise _UnreadableError(_line(data, error.start), rule) from error
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _bytes(entry: os.DirEntry[str]) -> bytes:
    if not entry.is_file():
        raise _UnreadableError(None, _no_file(entry))
    with io.FileIO(entry.path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_FILE_BYTES:
            rule = f"has {size} bytes, and {MAX_FILE_BYTES} are the most: load data by other means, or split it"
            raise _UnreadableError(None, rule)
        return file.readall()


def _no_file(entry: os.DirEntry[str]) -> str:
    if entry.is_dir():
        return "is a folder, not a file: rename it or move it away"
    if entry.is_symlink():
        return "is a link to something that is not there"
    return "is neither a file nor a link to one"


def _line(data: bytes, at: int) -> int:
    before = data[:at].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return before.count(b"\n") + 1


# --- a new file ---------------------------------------------------------------------------------------------------------

_NEW_NAME: Final = re.compile(r"[a-z0-9_-]+")
_LEADING_NUMBER: Final = re.compile(r"([0-9]+)[_-]")
_TEMPLATE: Final = """\
-- Plain SQL is one schema step: one transaction, whole or not at all.
--
-- Lines like these, without the leading dashes and blanks, say more (what stands in brackets may be left out):
--
--     -- journal: depends 0001_first, 0002_second        (default: the file before this one; or: none)
--     -- journal: assert every order has a customer      (then one query that must give one true value)
--     -- journal: schema [transaction=off]               (then statements, or none)
--     -- journal: reverse                                (then what undoes the step above)
--     -- journal: backfill table=orders key=id batch=1000
--                                                        (then one statement over :after < id <= :upto)
--     -- journal: verify                                 (then one query that must be true when it is done)
"""


def _check_new_name(name: str) -> None:
    if _NEW_NAME.fullmatch(name):
        return
    slug = _slug(name.removesuffix(".sql"))
    hint = f"; the nearest is {slug}" if slug else ""
    rule = f"the name of a migration has only a-z 0-9 _ -, not {name!a}{hint}"
    raise failure(Code.INVALID_FOLDER, rule, name=_printable(name), suggestion=slug or None)


def _check_length(stem: str) -> None:
    if len(stem) > MAX_STEM:
        rule = f"with its number, the name of a migration has at most {MAX_STEM} characters, and this has {len(stem)}"
        raise failure(Code.INVALID_FOLDER, rule, name=stem)


def _next_number(folder: Path) -> int:
    numbers = (_LEADING_NUMBER.match(name) for name in _names(folder))
    return max((int(number[1]) for number in numbers if number), default=0) + 1


def _names(folder: Path) -> list[str]:
    return [entry.name for entry in _entries(folder)]


def _claim(path: Path) -> bool:
    """Make the file, unless another has or gets its number at the same moment.

    Everyone looks around after making a file, so of two with one number the later maker sees the other's for certain;
    who sees another's gives way. Both may, and then both try again.
    """
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(_TEMPLATE)
    except FileExistsError:
        return False
    prefix = path.name[: path.name.index("_") + 1]
    if any(name.startswith(prefix) and name != path.name for name in _names(path.parent)):
        path.unlink(missing_ok=True)
        return False
    return True
