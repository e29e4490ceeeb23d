"""Folders of migration files: names, encodings, directives, every problem with its place, and making the next file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from hypothesis import given, strategies as st

from journal.errors import Code, InvalidContractError
from journal.identities import MigrationId
from journal.migrations.directives import WORDS, read_contents
from journal.migrations.files import MAX_FILE_BYTES, Folder, Ignored, new_migration, read_folder
from journal.migrations.source import AssertionSource, BackfillSource, MigrationSource, SchemaSource, Statement
from journal.migrations.statements import Dialect
from tests.strategies import DETERMINISTIC

SQL = "SELECT 1;\n"
EXAMPLE = """\
-- journal: depends 0001_initial
-- Totals are kept in cents.
-- journal: assert every order has a customer
SELECT NOT EXISTS (SELECT 1 FROM orders WHERE customer_id IS NULL);
-- journal: schema
ALTER TABLE orders ADD COLUMN total_cents INTEGER;
-- journal: reverse
ALTER TABLE orders DROP COLUMN total_cents;
-- journal: backfill table=orders key=id batch=500
UPDATE orders SET total_cents = round(total * 100) WHERE id > :after AND id <= :upto AND total_cents IS NULL;
-- journal: verify
SELECT NOT EXISTS (SELECT 1 FROM orders WHERE id <= :upto AND total_cents IS NULL);
-- journal: reverse
UPDATE orders SET total_cents = NULL WHERE id > :after AND id <= :upto;
"""


def put(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def read(folder: Path, files: Mapping[str, str | bytes]) -> Folder:
    return read_folder(put(folder, files), "shop")


def one(folder: Path, content: str | bytes) -> MigrationSource:
    (migration,) = read(folder, {"0001_x.sql": content}).migrations
    return migration


def refused(folder: Path, files: Mapping[str, str | bytes] | None = None) -> list[tuple[str, int | None, str]]:
    """File, line and rule of every problem."""
    with pytest.raises(InvalidContractError) as caught:
        read(folder, files or {})
    assert caught.value.code is Code.INVALID_FOLDER
    problems: list[dict[str, Any]] = caught.value.details["problems"]
    return [(problem["file"], problem["line"], problem["rule"]) for problem in problems]


def problems_of(text: str) -> list[tuple[int | None, str]]:
    return [(problem.line, problem.rule) for problem in read_contents(text, "shop").problems]


def only_problem(text: str) -> tuple[int | None, str]:
    ((line, rule),) = problems_of(text)
    return line, rule


# --- what a file says ---------------------------------------------------------------------------------------------------


def test_plain_sql_is_one_schema_step(tmp_path: Path) -> None:
    migration = one(tmp_path, "-- Orders.\n\nCREATE TABLE orders (id INTEGER);\nCREATE INDEX o ON orders (id)\n")
    assert migration == MigrationSource(
        id=MigrationId("shop", "0001_x"),
        dependencies=(),
        steps=(
            SchemaSource(
                statements=(
                    Statement("CREATE TABLE orders (id INTEGER)", 3),
                    Statement("CREATE INDEX o ON orders (id)", 4),
                ),
                reverse=None,
                transactional=True,
                line=3,
            ),
        ),
        path=str(tmp_path / "0001_x.sql"),
    )


def test_the_example_of_the_design_is_three_steps(tmp_path: Path) -> None:
    _, migration = read(tmp_path, {"0001_initial.sql": SQL, "0002_totals.sql": EXAMPLE}).migrations
    assertion, schema, backfill = migration.steps
    assert migration.dependencies == (MigrationId("shop", "0001_initial"),)
    assert isinstance(assertion, AssertionSource)
    assert (assertion.description, assertion.line, assertion.query.line) == ("every order has a customer", 3, 4)
    assert schema == SchemaSource(
        statements=(Statement("ALTER TABLE orders ADD COLUMN total_cents INTEGER", 6),),
        reverse=(Statement("ALTER TABLE orders DROP COLUMN total_cents", 8),),
        transactional=True,
        line=5,
    )
    assert isinstance(backfill, BackfillSource)
    assert (backfill.table, backfill.key, backfill.batch, backfill.line) == ("orders", ("id",), 500, 9)
    assert (backfill.statement.line, backfill.verify and backfill.verify.line) == (10, 12)
    assert backfill.reverse == Statement("UPDATE orders SET total_cents = NULL WHERE id > :after AND id <= :upto", 14)


def test_the_last_statement_of_each_section_may_lack_its_semicolon(tmp_path: Path) -> None:
    without = one(tmp_path, EXAMPLE.replace(";\n", "\n"))
    assert without.digest == one(tmp_path, EXAMPLE).digest


def test_a_schema_step_may_have_no_statement(tmp_path: Path) -> None:
    migration = one(tmp_path, "-- journal: schema\n-- journal: reverse\n")
    assert migration.steps == (SchemaSource(statements=(), reverse=(), transactional=True, line=1),)


def test_a_step_that_cannot_be_in_a_transaction_says_so(tmp_path: Path) -> None:
    migration = one(tmp_path, "-- journal: schema transaction=off\nVACUUM;\n-- journal: schema\nSELECT 1;")
    assert [step.transactional for step in migration.steps if isinstance(step, SchemaSource)] == [False, True]


def test_plain_sql_has_a_reverse_too(tmp_path: Path) -> None:
    (step,) = one(tmp_path, "CREATE TABLE a (n);\n-- journal: reverse\nDROP TABLE a;\nSELECT 2").steps
    assert isinstance(step, SchemaSource)
    assert step.reverse == (Statement("DROP TABLE a", 3), Statement("SELECT 2", 4))


def test_plain_sql_may_follow_the_dependencies(tmp_path: Path) -> None:
    (step,) = one(tmp_path, "-- journal: depends none\nCREATE TABLE a (n);\n").steps
    assert step == SchemaSource((Statement("CREATE TABLE a (n)", 2),), None, transactional=True, line=2)


def test_the_reverse_of_a_backfill_may_stand_before_its_verification(tmp_path: Path) -> None:
    head = "-- journal: backfill table=a key=n\nUPDATE a SET m = 1;\n"
    verify, reverse = "-- journal: verify\nSELECT 1;\n", "-- journal: reverse\nUPDATE a SET m = 0;\n"
    either, other = one(tmp_path, head + verify + reverse), one(tmp_path, head + reverse + verify)
    assert either.digest == other.digest
    (step,) = either.steps
    assert isinstance(step, BackfillSource)
    assert (step.batch, step.verify, step.reverse) == (
        1000,
        Statement("SELECT 1", 4),
        Statement("UPDATE a SET m = 0", 6),
    )


def test_a_trigger_in_a_file_is_one_statement(tmp_path: Path) -> None:
    trigger = "CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT CASE 1 WHEN 1 THEN 2 END; SELECT 2; END"
    (step,) = one(tmp_path, f"{trigger};\nSELECT 1;").steps
    assert isinstance(step, SchemaSource)
    assert [statement.text for statement in step.statements] == [trigger, "SELECT 1"]


def test_the_dialect_decides_what_a_dollar_is(tmp_path: Path) -> None:
    put(tmp_path, {"0001_x.sql": "SELECT $$;$$;"})
    counts = []
    for dialect in Dialect:
        (step,) = read_folder(tmp_path, "shop", dialect=dialect).migrations[0].steps
        assert isinstance(step, SchemaSource)
        counts.append(len(step.statements))
    assert counts == [2, 1]


def test_what_looks_like_a_directive_in_a_literal_is_none(tmp_path: Path) -> None:
    (step,) = one(tmp_path, "INSERT INTO a VALUES ('\n-- journal: reverse\n');\n/*\n-- journal: reverse\n*/").steps
    assert isinstance(step, SchemaSource)
    assert (len(step.statements), step.reverse) == (1, None)


def test_blanks_around_a_directive_do_not_matter(tmp_path: Path) -> None:
    loose = (
        EXAMPLE.replace("-- journal: ", " \t--  journal: \t").replace(" key=", " \t key=").replace("500\n", "500 \n")
    )
    assert one(tmp_path, loose).digest == one(tmp_path, EXAMPLE).digest


@pytest.mark.parametrize(
    ("options", "table", "key", "batch"),
    [
        ("table=orders key=id", "orders", ("id",), 1000),
        ("batch=1 key=id,day table=Orders_2", "Orders_2", ("id", "day"), 1),
        ('table="my ""orders"", all" key="the id" batch=1000000', 'my "orders", all', ("the id",), 1_000_000),
        ('table=größe key="a",b', "größe", ("a", "b"), 1000),
        ('table="a.b" key="x,y"', "a.b", ("x,y",), 1000),
        ('table="batch=5" key=id', "batch=5", ("id",), 1000),
    ],
)
def test_the_options_of_a_backfill(tmp_path: Path, options: str, table: str, key: tuple[str, ...], batch: int) -> None:
    (step,) = one(tmp_path, f"-- journal: backfill {options}\nSELECT 1;").steps
    assert isinstance(step, BackfillSource)
    assert (step.table, step.key, step.batch) == (table, key, batch)


# --- dependencies -------------------------------------------------------------------------------------------------------


def test_a_file_depends_on_the_one_before_it_unless_it_says_otherwise(tmp_path: Path) -> None:
    folder = read(
        tmp_path,
        {
            "0001_a.sql": SQL,
            "0005_b.sql": SQL,
            "0006_c.sql": "-- journal: depends none\n" + SQL,
            "0007_d.sql": "-- journal: depends 0005_b,0006_c ,  auth/0001_users 0001_a\n" + SQL,
            "0008_e.sql": SQL,
        },
    )
    names = [[str(id).removeprefix("shop/") for id in migration.dependencies] for migration in folder.migrations]
    assert names == [[], ["0001_a"], [], ["0005_b", "0006_c", "auth/0001_users", "0001_a"], ["0007_d"]]


def test_files_are_ordered_by_number(tmp_path: Path) -> None:
    names = ["0002_z", "9999_a", "10000_b", "12345678901234567890_c"]
    folder = read(tmp_path, {f"{name}.sql": SQL for name in reversed(names)})
    assert [migration.id.name for migration in folder.migrations] == names
    assert folder.migrations[2].dependencies == (MigrationId("shop", "9999_a"),)


def test_a_repeated_or_own_dependency_is_left_to_the_graph(tmp_path: Path) -> None:
    migration = one(tmp_path, "-- journal: depends 0001_x, 0001_x, 0009_gone\n" + SQL)
    assert [id.name for id in migration.dependencies] == ["0001_x", "0001_x", "0009_gone"]


@pytest.mark.parametrize(
    ("rest", "word"),
    [
        ("", "or by none"),
        ("none, 0001_a", "`none` stands alone"),
        ("0001_a,,0002_b", "beside a comma"),
        ("0001_a,", "beside a comma"),
        ("0001_a.sql", "they are written 0001_a,"),
        ("0001_A", "is no name of a migration"),
        ("Shop/0001_a", "is no name of a migration"),
        ("a/b/c", "is no name of a migration"),
        ("é", "'\\xe9' is no name"),
    ],
)
def test_a_wrong_dependency_is_told(rest: str, word: str) -> None:
    line, rule = only_problem(f"\n-- journal: depends {rest}\n{SQL}")
    assert (line, word in rule) == (2, True), rule


def test_dependencies_are_given_once_and_first() -> None:
    depends = "-- journal: depends none\n"
    assert [line for line, _ in problems_of(depends + depends + SQL)] == [2]
    assert [line for line, _ in problems_of(SQL + depends)] == [2]
    assert [line for line, _ in problems_of("-- journal: schema\n" + depends)] == [2]


# --- directives that are wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("directive", "word"),
    [
        ("-- journal: shema", "there is no directive 'shema'; the nearest is `-- journal: schema`"),
        ("-- journal:shema", "the nearest is `-- journal: schema`"),
        ("-- journal: schema;", "the nearest is `-- journal: schema`"),
        ("--journal: schema", "a directive is written `-- journal: schema`"),
        ("-- journal:schema", "a directive is written `-- journal: schema`"),
        ("-- journal : schema", "a directive is written `-- journal: schema`"),
        ("-- JOURNAL: schema", "a directive is written `-- journal: schema`"),
        ("-- journal: Schema", "the nearest is `-- journal: schema`"),
        ("-- journal: bakfill table=a key=b", "the nearest is `-- journal: backfill`"),
        ("-- journal: where the orders are", "there is no directive 'where'; there are depends, assert"),
        ("-- journal:", "the directive has no word; there are depends, assert"),
        ("-- journal: 💥", "there is no directive '\\U0001f4a5'"),
        ("/* a */ -- journal: schema", "a directive stands on a line of its own"),
        ("SELECT 1; -- journal: schema", "a directive stands on a line of its own"),
        ("SELECT 1 -- journal: schema", "a directive stands on a line of its own"),
    ],
)
def test_a_misspelt_directive_is_told_with_the_nearest(directive: str, word: str) -> None:
    line, rule = only_problem(f"\n{directive}\nSELECT 1;")
    assert (line, word in rule) == (2, True), rule


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("table=a key=b batch=0", "batch= takes a number of rows from 1 to 1_000_000, not '0'"),
        ("table=a key=b batch=1000001", "batch= takes a number"),
        ("table=a key=b batch=1_000", "batch= takes a number"),
        ("table=a key=b batch=-1", "batch= takes a number"),
        ("table=a key=b batch=\uff11", "batch= takes a number"),
        ("table=a key=b batch=", "batch= takes a number"),
        ("table=a key=b batch", "'batch' is no option"),
        ("table=a key=b batch = 5", "'batch' is no option"),
        ("table=a key=b size=5", "has no option 'size'; there are table, key, batch"),
        ("table=a key=b btach=5", "has no option 'btach'; the nearest is batch"),
        ("table=a key=b table=c", "takes table= once"),
        ("key=b", "needs table=..."),
        ("table=a", "needs key=..."),
        ("table= key=b", "table= takes a name"),
        ("table=a,b key=c", "table= takes a name"),
        ("table=a.b key=c", "table= takes a name"),
        ("table=1a key=c", "table= takes a name"),
        ('table="" key=c', "table= takes a name"),
        ('table="a key=c', "'table=\"a' is no option"),
        ("table=a key=b,", "key= takes a name"),
        ("table=a key=b, c", "key= takes a name"),
        ("table=a key=b,b", "key= takes each column once"),
        ('table=a key=b,"b"', "key= takes each column once"),
        ('table=a key=b,"c d"', "key= takes plain names only"),
    ],
)
def test_a_wrong_option_of_a_backfill_is_told(options: str, word: str) -> None:
    found = problems_of(f"-- journal: backfill {options}\nSELECT 1;")
    assert {line for line, _ in found} == {1}
    assert any(word in rule for _, rule in found), found


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("transaction=on", "transaction= takes off"),
        ("transaction=off;", "transaction= takes off"),
        ("transaction", "'transaction' is no option"),
        ("transactions=off", "the nearest is transaction"),
        ("transaction=off transaction=off", "takes transaction= once"),
        ("table=a", "has no option 'table'"),
    ],
)
def test_a_wrong_option_of_a_schema_step_is_told(options: str, word: str) -> None:
    line, rule = only_problem(f"-- journal: schema {options}\nSELECT 1;")
    assert (line, word in rule) == (1, True), rule


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("-- journal: reverse\nSELECT 1;", 1, "follows the schema step or the backfill"),
        ("-- journal: verify\nSELECT 1;", 1, "follows a backfill"),
        ("SELECT 1;\n-- journal: verify\nSELECT 1;", 2, "follows a backfill"),
        ("SELECT 1;\n-- journal: reverse\n-- journal: reverse\n", 3, "once a step"),
        ("SELECT 1;\n-- journal: reverse all\n", 2, "stands alone"),
        (
            "-- journal: assert a\nSELECT 1;\n-- journal: reverse\nSELECT 2;\n-- journal: schema",
            3,
            "follows the schema",
        ),
        ("-- journal: assert\nSELECT 1;\n-- journal: schema", 1, "a description"),
        ("-- journal: assert a\n-- journal: schema", 1, "one statement, and there is none"),
        ("-- journal: assert a\nSELECT 1;\nSELECT 2;\n-- journal: schema", 3, "this is another"),
        ("-- journal: backfill table=a key=b\n", 1, "one statement, and there is none"),
        ("-- journal: backfill table=a key=b\nSELECT 1;\n\nSELECT 2;", 4, "this is another"),
        ("-- journal: backfill table=a key=b\nSELECT 1;\n-- journal: verify\n", 3, "there is none"),
        ("-- journal: backfill table=a key=b\nSELECT 1;\n-- journal: verify\nSELECT 1; SELECT 2", 4, "another"),
        ("-- journal: backfill table=a key=b\nSELECT 1;\n-- journal: reverse\n", 3, "there is none"),
        ("SELECT 1;\n-- journal: assert a\nSELECT 1;", 2, "no schema step follows this assertion"),
        (
            "-- journal: assert a\nSELECT 1;\n-- journal: backfill table=a key=b\nSELECT 1;\n-- journal: schema",
            1,
            "no sch",
        ),
        ("SELECT 1;\n\nSELECT 'a\n", 3, "quote ' that opens here is not closed"),
        ("/* a", 1, "comment /* that opens here is not closed"),
        (
            "SELECT 1;\nCREATE TRIGGER t AFTER INSERT ON a BEGIN\n-- journal: reverse\nSELECT 1; END;",
            2,
            "is not closed",
        ),
    ],
)
def test_a_rule_that_is_broken_is_told_with_its_line(text: str, line: int, word: str) -> None:
    found, rule = only_problem(text)
    assert (found, word in rule) == (line, True), rule


def test_each_assertion_that_no_schema_step_follows_is_told() -> None:
    assertion = "-- journal: assert a\nSELECT 1;\n"
    text = (
        assertion
        + "-- journal: schema\n"
        + assertion * 2
        + "-- journal: backfill table=a key=b\nSELECT 1;\n"
        + assertion
    )
    assert [line for line, _ in problems_of(text)] == [4, 6, 10]


@pytest.mark.parametrize("text", ["", "\n", "-- a comment\n", "/* a */", ";;", "-- journal: depends none\n"])
def test_a_file_without_a_step_is_refused(tmp_path: Path, text: str) -> None:
    ((file, line, rule),) = refused(tmp_path, {"0001_x.sql": text})
    assert (file, line) == ("0001_x.sql", None)
    assert "`-- journal: schema` when nothing is to change" in rule


def test_a_quote_that_is_not_closed_is_not_blamed_for_what_it_hides() -> None:
    text = "-- journal: shema\n-- journal: assert a\nSELECT 1;\n-- journal: assert b\nSELECT 'a;\n-- journal: schema\n"
    assert [line for line, _ in problems_of(text)] == [1, 5]


def test_every_problem_of_a_file_is_told_in_the_order_of_lines() -> None:
    text = "-- journal: verify\n-- journal: shema\nSELECT 1;\n-- journal: backfill table=a\nSELECT 1;\n-- journal: schema\nSELECT 'a"
    assert [line for line, _ in problems_of(text)] == [1, 2, 4, 7]


# --- encodings and line endings -----------------------------------------------------------------------------------------

UNUSUAL = "-- ä\nINSERT INTO t VALUES ('a\n\n🦆;');\n-- journal: reverse\nDELETE\nFROM t -- c\nWHERE 1;\n"


@pytest.mark.parametrize("end", ["\r\n", "\r", "\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_endings_and_the_encoding_mark_change_nothing(tmp_path: Path, end: str, mark: str) -> None:
    assert one(tmp_path, mark + UNUSUAL.replace("\n", end)) == one(tmp_path, UNUSUAL)


def test_only_one_encoding_mark_is_dropped(tmp_path: Path) -> None:
    assert one(tmp_path, "\ufeff\ufeff" + SQL).digest != one(tmp_path, SQL).digest


@DETERMINISTIC
@given(
    lines=st.lists(
        st.sampled_from(["SELECT 1;", "SELECT '", "'", ";", "-- c", "/* d", "*/", "", " x", *EXAMPLE.split("\n")])
    ),
    end=st.sampled_from(["\r\n", "\r"]),
)
def test_any_file_reads_the_same_with_other_line_endings(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: str
) -> None:
    outcomes = []
    for content in ("\n".join(lines), "\ufeff" + end.join(lines)):
        folder = tmp_path_factory.mktemp("folder")
        try:
            outcomes.append([migration.digest for migration in read(folder, {"0001_x.sql": content}).migrations])
        except InvalidContractError as error:
            outcomes.append(error.details["problems"])
    assert outcomes[0] == outcomes[1]


def test_digests_depend_on_neither_the_folder_nor_comments_between_statements(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    first = one(here, "CREATE TABLE a (n);\nSELECT 1;")
    second = one(there, "-- A.\n\n  CREATE TABLE a (n) -- why\n; ;\n/* more */ SELECT 1")
    assert first.digest == second.digest
    assert first.path != second.path


def test_a_comment_inside_a_statement_is_a_part_of_it(tmp_path: Path) -> None:
    assert one(tmp_path, "SELECT /* a */ 1").digest != one(tmp_path, "SELECT 1").digest


def test_identical_files_have_digests_of_their_own(tmp_path: Path) -> None:
    first, second = read(tmp_path, {"0001_a.sql": SQL, "0002_b.sql": SQL}).migrations
    assert first.steps == second.steps
    assert first.digest != second.digest


@pytest.mark.parametrize(
    ("content", "line", "word"),
    [
        (b"SELECT 1;\r\n-- \xff\r\n", 2, "is not UTF-8 here"),
        (b"SELECT 1;\r\r\xc3", 3, "is not UTF-8 here"),
        ("SELECT 1;".encode("utf-16"), 1, "NUL"),
        (b"\xff\xfe", 1, "is not UTF-8 here"),
        (b"SELECT 1;\nSELECT '\0';", 2, "NUL"),
        (b"\xed\xa0\x80", 1, "is not UTF-8 here"),
    ],
)
def test_bytes_that_are_no_text_are_told_with_their_line(tmp_path: Path, content: bytes, line: int, word: str) -> None:
    ((file, found, rule),) = refused(tmp_path, {"0001_x.sql": content})
    assert (file, found, word in rule) == ("0001_x.sql", line, True), rule


def test_a_file_of_twenty_megabytes_in_one_line_is_read(tmp_path: Path) -> None:
    literal = "x;" * 10_000_000
    (step,) = one(tmp_path, f"INSERT INTO a VALUES ('{literal}'); SELECT 2").steps
    assert isinstance(step, SchemaSource)
    assert [len(statement.text) for statement in step.statements] == [len(literal) + 25, 8]


def test_a_file_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    put(tmp_path, {"0001_x.sql": b""})
    os.truncate(tmp_path / "0001_x.sql", MAX_FILE_BYTES + 1)
    ((_, _, rule),) = refused(tmp_path)
    assert str(MAX_FILE_BYTES) in rule


# --- names --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("0001_x.SQL", "does not end in .sql, in lower case; rename it to 0001_x.sql"),
        ("0001_x.Sql", "in lower case"),
        ("0001_Add.sql", "is not in lower case; rename it to 0001_add.sql"),
        ("0001_x (1).sql", "looks like a copy"),
        ("0001_x copy.sql", "looks like a copy"),
        ("0001_x copy 2.sql", "looks like a copy"),
        ("0001_x - Copy (2).sql", "looks like a copy"),
        ("Copy of 0001_x.sql", "looks like a copy"),
        ("1_x.sql", "is not padded to four digits; rename it to 0001_x.sql"),
        ("012_x.sql", "is not padded to four digits; rename it to 0012_x.sql"),
        ("00001_x.sql", "more zeros in front than four digits need; rename it to 0001_x.sql"),
        ("0001 x.sql", "has no _ and name behind its number, as NNNN_name.sql has; rename it to 0001_x.sql"),
        ("0001-x.sql", "has no _ and name"),
        ("0001_.sql", "has no _ and name"),
        ("0001.sql", "has no _ and name"),
        ("0001_it's.sql", "something else than a-z 0-9 _ -; rename it to 0001_it_s.sql"),
        ('0001_"x".sql', "something else"),
        ("0001_x y.sql", "something else"),
        ("0001_x.y.sql", "something else"),
        ("0001_🦆.sql", "something else"),
        ("0001_größe.sql", "something else"),
        (f"0001_{'x' * 200}.sql", "is 205 characters long without .sql, and 128 are the most"),
        (f"0001_{'x' * 124}.sql", "is 129 characters long"),
        ("initial.sql", "has no number"),
        ("\u0660\u0660\u0660\u0661_x.sql", "has no number"),
        (".sql", "has no number"),
        (".0001_x.sql", "has no number"),
        ("0001_x", "does not end in .sql"),
        ("0001_x.sql.txt", "does not end in .sql, in lower case; rename it to 0001_x.sql"),
        ("0001_x.py", "does not end in .sql"),
        ("0001_x.sql ", "does not end in .sql"),
        ("1-x", "does not end in .sql"),
    ],
)
def test_a_name_that_breaks_a_rule_is_refused_by_name(tmp_path: Path, name: str, word: str) -> None:
    ((file, line, rule),) = refused(tmp_path, {name: SQL, "0007_good.sql": SQL})
    assert (file, line) == (name, None)
    assert word in rule, rule


@pytest.mark.parametrize("name", ["0000_a.sql", f"0001_{'x' * 123}.sql", "0001_-_.sql", "10000_x.sql", "0001_copy.sql"])
def test_names_at_the_edge_of_the_rules_are_read(tmp_path: Path, name: str) -> None:
    assert [f"{migration.id.name}.sql" for migration in read(tmp_path, {name: SQL}).migrations] == [name]


def test_two_files_with_one_number_are_refused(tmp_path: Path) -> None:
    problems = refused(tmp_path, {"0001_a.sql": SQL, "0002_b.sql": SQL, "0001_c.sql": SQL, "0001_b.sql": SQL})
    assert [(file, line) for file, line, _ in problems] == [("0001_b.sql", None), ("0001_c.sql", None)]
    assert all("has the number of 0001_a.sql" in rule for _, _, rule in problems)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("0001_x.sql~", "left by an editor"),
        (".0001_x.sql.swp", "left by an editor"),
        ("#0001_x.sql#", "left by an editor"),
        (".#0001_x.sql", "left by an editor"),
        ("0001_x.sql.bak", "a backup"),
        ("0001_x.sql.orig", "left by a merge or a patch"),
        ("0001_x.sql.rej", "left by a merge or a patch"),
        ("0001_x.sql.tmp", "a temporary file"),
        ("README.md", "no migration: its name does not end in .sql"),
        ("journal.toml", "no migration: its name does not end in .sql"),
        ("shop.sqlite3", "no migration: its name does not end in .sql"),
        ("2024.txt", "no migration: its name does not end in .sql"),
    ],
)
def test_what_is_no_migration_is_reported_with_the_reason(tmp_path: Path, name: str, why: str) -> None:
    folder = read(tmp_path, {name: b"\0", "0001_a.sql": SQL})
    assert len(folder.migrations) == 1
    assert folder.ignored == (Ignored(name, why),)


def test_folders_are_reported_and_not_entered(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "old").mkdir()
    put(tmp_path / "old", {"0001_a.sql": SQL})
    folder = read(tmp_path, {})
    assert folder.migrations == ()
    assert [item.name for item in folder.ignored] == ["__pycache__", "old"]
    assert all("a folder" in item.why for item in folder.ignored)


def test_hidden_files_that_have_nothing_of_a_migration_are_not_worth_a_word(tmp_path: Path) -> None:
    assert read(tmp_path, {".gitignore": "", ".DS_Store": b"\0"}) == Folder((), ())


def test_names_are_shown_with_what_cannot_be_printed_escaped(tmp_path: Path) -> None:
    put(tmp_path, {"a\x1b[31m\n.txt": ""})
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/b\xff.txt")).write_bytes(b"")
    assert [item.name for item in read(tmp_path, {}).ignored] == ["a\\x1b[31m\\n.txt", "b\\udcff.txt"]
    ((file, _, _),) = refused(tmp_path, {"0001_\u202e.sql": SQL})
    assert file == "0001_\\u202e.sql"


# --- what is no file ----------------------------------------------------------------------------------------------------


def test_links_are_followed(tmp_path: Path) -> None:
    put(tmp_path, {"elsewhere.txt": SQL})
    (tmp_path / "0001_x.sql").symlink_to(tmp_path / "elsewhere.txt")
    (migration,) = read(tmp_path, {}).migrations
    assert migration.id.name == "0001_x"


def test_what_is_no_readable_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "0001_folder.sql").mkdir()
    (tmp_path / "0002_broken.sql").symlink_to(tmp_path / "gone")
    (tmp_path / "0003_loop.sql").symlink_to(tmp_path / "0003_loop.sql")
    os.mkfifo(tmp_path / "0004_pipe.sql")
    problems = refused(tmp_path)
    words = [
        "is a folder",
        "is a link to something that is not there",
        "cannot be read",
        "is neither a file nor a link",
    ]
    assert [file[:4] for file, _, _ in problems] == ["0001", "0002", "0003", "0004"]
    assert all(word in rule for word, (_, _, rule) in zip(words, problems, strict=True)), problems


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidContractError, match="make it, or say with --dir") as caught:
        read_folder(tmp_path / "gone", "shop")
    assert caught.value.code is Code.INVALID_FOLDER


def test_a_file_in_place_of_the_folder_is_told(tmp_path: Path) -> None:
    put(tmp_path, {"file": ""})
    with pytest.raises(InvalidContractError, match="cannot be read") as caught:
        read_folder(tmp_path / "file", "shop")
    assert caught.value.code is Code.INVALID_FOLDER


def test_the_label_of_the_app_is_checked_even_for_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidContractError) as caught:
        read_folder(tmp_path, "My App")
    assert caught.value.code is Code.INVALID_MIGRATION_ID


# --- all problems at once -----------------------------------------------------------------------------------------------


def test_all_problems_of_a_folder_come_in_one_error_with_file_and_line(tmp_path: Path) -> None:
    files: dict[str, str | bytes] = {
        "0001_a.sql": "\n-- journal: shema\n",
        "0002_b.SQL": SQL,
        "0003_c.sql": b"SELECT 1;\n\xff",
        "0004_d.sql": "SELECT 1;\nSELECT 'a",
        "0004_e.sql": "-- journal: verify\n",
    }
    places = [(file, line) for file, line, _ in refused(tmp_path, files)]
    assert places == [
        ("0001_a.sql", 2),
        ("0002_b.SQL", None),
        ("0003_c.sql", 2),
        ("0004_d.sql", 2),
        ("0004_e.sql", None),
        ("0004_e.sql", 1),
    ]
    with pytest.raises(InvalidContractError) as caught:
        read_folder(tmp_path, "shop")
    lines = [line.strip() for line in caught.value.message.split("\n")]
    assert str(tmp_path) in lines[0]
    assert [line.split(" ")[0] for line in lines[1:]] == [
        "0001_a.sql:2:",
        "0002_b.SQL:",
        "0003_c.sql:2:",
        "0004_d.sql:2:",
        "0004_e.sql:",
        "0004_e.sql:1:",
    ]


def test_a_message_shows_twenty_problems_and_counts_the_others(tmp_path: Path) -> None:
    put(tmp_path, {f"{number:04}_x.sql": "" for number in range(1, 31)})
    with pytest.raises(InvalidContractError) as caught:
        read_folder(tmp_path, "shop")
    lines = caught.value.message.split("\n")
    assert (len(lines), lines[-1].strip()) == (22, "and 10 more")
    assert len(caught.value.details["problems"]) == 30


_DIRECTIVES = st.sampled_from([*WORDS, "shema", "", "REVERSE"]).flatmap(
    lambda word: st.sampled_from(["", " none", " table=a key=b", ' key="', " transaction=off", " a"]).map(
        lambda rest: f"-- journal: {word}{rest}"
    )
)


@DETERMINISTIC
@given(lines=st.lists(_DIRECTIVES | st.sampled_from(["SELECT 1;", "SELECT 2", "'", "/*", "*/", "-- c"]), max_size=12))
def test_whatever_a_file_says_it_is_read_or_told_with_lines_of_its_own(lines: list[str]) -> None:
    contents = read_contents("\n".join(lines), "shop")
    assert contents.steps or contents.problems
    assert all(problem.line is None or 1 <= problem.line <= len(lines) for problem in contents.problems)
    if not contents.problems:
        kinds = [type(step) for step in contents.steps]
        assert all(after is not BackfillSource for kind, after in pairwise(kinds) if kind is AssertionSource)
        assert kinds[-1] is not AssertionSource


# --- a new file ---------------------------------------------------------------------------------------------------------


def test_a_new_migration_has_the_next_number(tmp_path: Path) -> None:
    put(tmp_path, {"0001_a.sql": SQL, "0009_b.sql": SQL, "notes.md": ""})
    path = new_migration(tmp_path, "add_total")
    assert path == tmp_path / "0010_add_total.sql"
    assert new_migration(tmp_path, "add_total").name == "0011_add_total.sql"


@pytest.mark.parametrize("name", ["0012_x.SQL", "12_x.sql", "0012-x"])
def test_a_number_in_a_name_that_is_refused_is_not_given_again(tmp_path: Path, name: str) -> None:
    put(tmp_path, {name: SQL})
    assert new_migration(tmp_path, "x").name == "0013_x.sql"


def test_numbers_go_on_past_four_digits(tmp_path: Path) -> None:
    put(tmp_path, {"9999_a.sql": SQL})
    path = new_migration(tmp_path, "b")
    path.write_text(SQL)
    assert [migration.id.name for migration in read(tmp_path, {}).migrations] == ["9999_a", "10000_b"]


def test_an_unedited_new_migration_has_no_statement_and_an_edited_one_is_read(tmp_path: Path) -> None:
    path = new_migration(tmp_path, "first")
    ((file, _, rule),) = refused(tmp_path)
    assert (file, "has no statement" in rule) == (path.name, True)
    assert all(f"-- journal: {word}" in path.read_text() for word in WORDS)
    path.write_text(path.read_text() + SQL)
    assert len(read(tmp_path, {}).migrations) == 1


def test_the_folder_is_made_but_not_those_above_it(tmp_path: Path) -> None:
    assert new_migration(tmp_path / "migrations", "a").is_file()
    with pytest.raises(InvalidContractError, match="cannot make a migration") as caught:
        new_migration(tmp_path / "no" / "migrations", "a")
    assert caught.value.code is Code.INVALID_FOLDER


def test_a_file_in_place_of_the_folder_is_left_alone(tmp_path: Path) -> None:
    put(tmp_path, {"migrations": "x"})
    with pytest.raises(InvalidContractError, match="cannot be read"):
        new_migration(tmp_path / "migrations", "a")
    assert (tmp_path / "migrations").read_text() == "x"


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("Add Total", "add_total"),
        ("add total.sql", "add_total"),
        ("it's", "it_s"),
        ("a/../b", "a_b"),
        ("größe", "gr_e"),
        ("", None),
        ("🦆", None),
        ("..", None),
    ],
)
def test_a_name_that_breaks_the_rule_is_refused_with_the_nearest(
    tmp_path: Path, name: str, suggestion: str | None
) -> None:
    with pytest.raises(InvalidContractError, match="only a-z 0-9 _ -") as caught:
        new_migration(tmp_path, name)
    assert caught.value.details["suggestion"] == suggestion
    assert suggestion is None or suggestion in caught.value.message
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidContractError, match="at most 128 characters, and this has 129"):
        new_migration(tmp_path, "x" * 124)
    assert new_migration(tmp_path, "x" * 123).is_file()


def test_many_at_once_get_a_number_each(tmp_path: Path) -> None:
    barrier = Barrier(8)

    def make(number: int) -> list[Path]:
        barrier.wait(10)
        return [new_migration(tmp_path, f"from_{number}" if round % 2 else "same") for round in range(5)]

    with ThreadPoolExecutor(8) as pool:
        paths = [path for made in pool.map(make, range(8)) for path in made]
    assert len({path.name.partition("_")[0] for path in paths}) == 40
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in paths}
