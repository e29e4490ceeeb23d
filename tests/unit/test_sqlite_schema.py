"""Canonical semantics of a SQLite schema, checked against what SQLite itself makes of the same statements."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings, strategies as st

from journal.databases.sqlite_schema import SchemaRow, Semantics, canonical, describe
from tests.strategies import DETERMINISTIC

CUSTOMERS = "CREATE TABLE customers (id INTEGER PRIMARY KEY, code TEXT UNIQUE)"
ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER, code TEXT)"


def rows_of(*statements: str) -> list[SchemaRow]:
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in statements:
            connection.execute(statement)
        return [SchemaRow(*row) for row in connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master")]


def described(*statements: str) -> dict[str, str]:
    return describe(rows_of(*statements))


def table(sql: str) -> str:
    """The definition of the one table that a statement makes; SQLite must accept it."""
    (definition,) = described(sql).values()
    return definition


# Spellings of one meaning, and pairs of meanings


@pytest.mark.parametrize(
    "spellings",
    [
        (
            "CREATE TABLE t (a, b)",
            "create table T(A,B)",
            'CREATE TABLE "t" ([a], `b`)',
            "CREATE TABLE 't' ('a', \"B\")",
        ),
        ("CREATE TABLE t (a, b)", "CREATE TABLE t /* ) */ (a -- ,\n, b);", "CREATE TABLE IF NOT EXISTS main.t (a, b);"),
        ("CREATE TABLE t (a VARCHAR(10))", "CREATE TABLE t (a varchar ( 10 ))", "CREATE TABLE t (a varchar(10)\n)"),
        ("CREATE TABLE t (a DOUBLE PRECISION)", "CREATE TABLE t (a double  precision)"),
        (
            "CREATE TABLE t (a, b DOUBLE /* a  x */ PRECISION)",
            "CREATE TABLE t (a, b DOUBLE PRECISION)",
            "CREATE TABLE t (a /* none */, b\n--first\nDOUBLE /* A X */\tPRECISION --last\n)",
        ),
        ("CREATE TABLE t (a 'int')", 'CREATE TABLE t (a "INT")', "CREATE TABLE t (a INT)"),
        ("CREATE TABLE t (a INTEGER PRIMARY KEY)", "CREATE TABLE t (a INTEGER, PRIMARY KEY (a))"),
        ("CREATE TABLE t (a INTEGER PRIMARY KEY)", "CREATE TABLE t (a INTEGER, CONSTRAINT pk PRIMARY KEY (a DESC))"),
        ("CREATE TABLE t (a TEXT PRIMARY KEY DESC)", "CREATE TABLE t (a TEXT, PRIMARY KEY ('a' DESC))"),
        (
            "CREATE TABLE t (a INTEGER PRIMARY KEY AUTOINCREMENT)",
            "CREATE TABLE t (a INTEGER, PRIMARY KEY (a AUTOINCREMENT))",
        ),
        (
            "CREATE TABLE t (a TEXT UNIQUE, b TEXT)",
            "CREATE TABLE t (a TEXT, b TEXT, UNIQUE (a ASC))",
            "CREATE TABLE t (a TEXT UNIQUE, b TEXT, UNIQUE (a), CONSTRAINT again UNIQUE ([A]))",
        ),
        (
            "CREATE TABLE t (a CHECK (a > 0), b)",
            "CREATE TABLE t (a, b, CHECK ((a > 0)))",
            'CREATE TABLE t (a, b CONSTRAINT positive CHECK ((("A">0))))',
            "CREATE TABLE t (a, b, CHECK (a > 0) ON CONFLICT IGNORE)",
        ),
        (
            "CREATE TABLE t (a UNIQUE, b CHECK (b), CHECK (a), UNIQUE (a, b))",
            "CREATE TABLE t (a, b, UNIQUE (a, b) CONSTRAINT x CHECK (b) CHECK (a) UNIQUE (a) CONSTRAINT y)",
        ),
        (
            "CREATE TABLE t (a REFERENCES p (id))",
            "CREATE TABLE t (a, FOREIGN KEY (a) REFERENCES p (id))",
            "CREATE TABLE t (a REFERENCES 'P' (\"ID\") ON DELETE NO ACTION ON UPDATE NO ACTION MATCH SIMPLE)",
            "CREATE TABLE t (a REFERENCES p (id) NOT DEFERRABLE INITIALLY IMMEDIATE)",
            "CREATE TABLE t (a REFERENCES p (id) ON DELETE CASCADE ON DELETE NO ACTION DEFERRABLE)",
        ),
        (
            "CREATE TABLE t (a REFERENCES p ON UPDATE SET NULL ON DELETE CASCADE)",
            "CREATE TABLE t (a REFERENCES p ON DELETE CASCADE ON UPDATE SET NULL)",
        ),
        ("CREATE TABLE t (a NOT NULL DEFAULT 1)", "CREATE TABLE t (a DEFAULT (1) CONSTRAINT n NOT NULL)"),
        ("CREATE TABLE t (a DEFAULT -1)", "CREATE TABLE t (a DEFAULT (- 1))", "CREATE TABLE t (a DEFAULT ((-1)))"),
        ("CREATE TABLE t (a DEFAULT 'x')", "CREATE TABLE t (a DEFAULT x)", 'CREATE TABLE t (a DEFAULT "x")'),
        ("CREATE TABLE t (a DEFAULT TRUE)", "CREATE TABLE t (a DEFAULT (true))"),
        ("CREATE TABLE t (a DEFAULT CURRENT_DATE)", "CREATE TABLE t (a DEFAULT (current_date))"),
        ("CREATE TABLE t (a NULL COLLATE BINARY)", "CREATE TABLE t (a)"),
        ("CREATE TABLE t (a NOT NULL ON CONFLICT ABORT)", "CREATE TABLE t (a NOT NULL)"),
        (
            "CREATE TABLE t (a, b AS (a + 1))",
            "CREATE TABLE t (a, b GENERATED ALWAYS AS ((a+1)) VIRTUAL)",
        ),
        (
            "CREATE TABLE t (a, b INT GENERATED ALWAYS AS (a + 1) STORED)",
            "CREATE TABLE t (a, b int as (a + 1) stored)",
        ),
        (
            "CREATE TABLE t (a INT PRIMARY KEY) STRICT, WITHOUT ROWID",
            "CREATE TABLE t (a INT PRIMARY KEY)without rowid,strict",
        ),
        ("CREATE TABLE t (a CHECK (a IN ('A', \"B\")))", "CREATE TABLE t (a CHECK (a IN ('A', 'B')))"),
        ("CREATE TABLE t (a CHECK (a == 1 AND a <> 2))", "CREATE TABLE t (a CHECK (a = 1 AND a != 2))"),
        ("CREATE TABLE t (left, CHECK (left > 0))", 'CREATE TABLE t ("left", CHECK ("left" > 0))'),
    ],
)
def test_spellings_of_one_table_are_equal(spellings):
    assert len({tuple(described(sql).items()) for sql in spellings}) == 1


@pytest.mark.parametrize(
    "meanings",
    [
        ("CREATE TABLE t (a, b)", "CREATE TABLE t (b, a)", "CREATE TABLE t (a)", "CREATE TABLE t (a, b, c)"),
        ("CREATE TABLE t (a INT)", "CREATE TABLE t (a INTEGER)", "CREATE TABLE t (a)", "CREATE TABLE t (a TEXT)"),
        ("CREATE TABLE t (a VARCHAR(10))", "CREATE TABLE t (a VARCHAR(11))", "CREATE TABLE t (a VARCHAR)"),
        (
            "CREATE TABLE t (a, b REAL AS (a))",
            "CREATE TABLE t (a, b REAL /* in points */ GENERATED ALWAYS AS (a))",
            "CREATE TABLE t (a, b REAL -- text\n GENERATED ALWAYS AS (a))",
            "CREATE TABLE t (a, b GENERATED /* always */ ALWAYS AS (a))",
        ),
        ('CREATE TABLE t (a "x" int)', "CREATE TABLE t (a x int)"),
        (
            "CREATE TABLE t (a INTEGER PRIMARY KEY)",
            "CREATE TABLE t (a INTEGER PRIMARY KEY DESC)",
            "CREATE TABLE t (a INTEGER)",
        ),
        (
            "CREATE TABLE t (a INTEGER PRIMARY KEY)",
            "CREATE TABLE t (a INT PRIMARY KEY)",
            "CREATE TABLE t (a INT UNIQUE)",
        ),
        ("CREATE TABLE t (a INTEGER PRIMARY KEY)", "CREATE TABLE t (a INTEGER PRIMARY KEY AUTOINCREMENT)"),
        ("CREATE TABLE t (a, b, PRIMARY KEY (a, b))", "CREATE TABLE t (a, b, PRIMARY KEY (b, a))"),
        (
            "CREATE TABLE t (a UNIQUE)",
            "CREATE TABLE t (a UNIQUE ON CONFLICT REPLACE)",
            "CREATE TABLE t (a, UNIQUE (a COLLATE NOCASE))",
            "CREATE TABLE t (a, UNIQUE (a DESC))",
        ),
        (
            "CREATE TABLE t (a, b, UNIQUE (a, b))",
            "CREATE TABLE t (a UNIQUE, b UNIQUE)",
            "CREATE TABLE t (a, b, UNIQUE (b, a))",
        ),
        ("CREATE TABLE t (a NOT NULL)", "CREATE TABLE t (a NOT NULL ON CONFLICT IGNORE)", "CREATE TABLE t (a)"),
        (
            "CREATE TABLE t (a DEFAULT 1)",
            "CREATE TABLE t (a DEFAULT '1')",
            "CREATE TABLE t (a DEFAULT 1.0)",
            "CREATE TABLE t (a DEFAULT -1)",
            "CREATE TABLE t (a)",
        ),
        ("CREATE TABLE t (a DEFAULT 'x')", "CREATE TABLE t (a DEFAULT 'X')", "CREATE TABLE t (a DEFAULT ' x')"),
        ("CREATE TABLE t (a DEFAULT x)", "CREATE TABLE t (a DEFAULT X)"),
        ("CREATE TABLE t (a DEFAULT true)", 'CREATE TABLE t (a DEFAULT "true")', "CREATE TABLE t (a DEFAULT false)"),
        ("CREATE TABLE t (a DEFAULT current_date)", 'CREATE TABLE t (a DEFAULT "current_date")'),
        ("CREATE TABLE t (a DEFAULT x'61')", "CREATE TABLE t (a DEFAULT 'a')", "CREATE TABLE t (a DEFAULT x'62')"),
        (
            "CREATE TABLE t (a DEFAULT (1 + 1))",
            "CREATE TABLE t (a DEFAULT (1 - 1))",
            "CREATE TABLE t (a DEFAULT ('1 + 1'))",
        ),
        ("CREATE TABLE t (a COLLATE NOCASE)", "CREATE TABLE t (a COLLATE RTRIM)", "CREATE TABLE t (a)"),
        ("CREATE TABLE t (a, b AS (a))", "CREATE TABLE t (a, b AS (a) STORED)", "CREATE TABLE t (a, b AS (a + 1))"),
        ("CREATE TABLE t (a CHECK (a > 0))", "CREATE TABLE t (a CHECK (a > 1))", "CREATE TABLE t (a CHECK (a > '0'))"),
        (
            "CREATE TABLE t (a CHECK ((a + 1) * 2))",
            "CREATE TABLE t (a CHECK (a + (1 * 2)))",
            "CREATE TABLE t (a CHECK (a + 1 * 2))",
        ),
        (
            "CREATE TABLE t (a CHECK (a = 'b , c'))",
            "CREATE TABLE t (a CHECK (a = 'b, c'))",
            "CREATE TABLE t (a CHECK (a = 'b,c'))",
        ),
        (
            'CREATE TABLE t (a CHECK (a = "Open"))',
            'CREATE TABLE t (a CHECK (a = "open"))',
            "CREATE TABLE t (a CHECK (a = a))",
        ),
        ('CREATE TABLE t (a CHECK (a = "true"))', "CREATE TABLE t (a CHECK (a = true))"),
        (
            "CREATE TABLE t (a REFERENCES p)",
            "CREATE TABLE t (a REFERENCES p (id))",
            "CREATE TABLE t (a REFERENCES q)",
            "CREATE TABLE t (a REFERENCES p ON DELETE CASCADE)",
            "CREATE TABLE t (a REFERENCES p ON DELETE SET NULL)",
            "CREATE TABLE t (a REFERENCES p ON DELETE SET DEFAULT)",
            "CREATE TABLE t (a REFERENCES p ON DELETE RESTRICT)",
            "CREATE TABLE t (a REFERENCES p ON UPDATE CASCADE)",
            "CREATE TABLE t (a REFERENCES p DEFERRABLE INITIALLY DEFERRED)",
            "CREATE TABLE t (a REFERENCES p MATCH FULL)",
        ),
        (
            "CREATE TABLE t (a, b, FOREIGN KEY (a, b) REFERENCES p (c, d))",
            "CREATE TABLE t (a, b, FOREIGN KEY (a, b) REFERENCES p (d, c))",
            "CREATE TABLE t (a REFERENCES p (c), b REFERENCES p (d))",
        ),
        (
            "CREATE TABLE t (a INT PRIMARY KEY)",
            "CREATE TABLE t (a INT PRIMARY KEY) STRICT",
            "CREATE TABLE t (a INT PRIMARY KEY) WITHOUT ROWID",
            "CREATE TABLE t (a INT PRIMARY KEY) STRICT, WITHOUT ROWID",
        ),
        ("CREATE TABLE t (é)", "CREATE TABLE t (É)"),
        ('CREATE TABLE t ("a b")', 'CREATE TABLE t ("a  b")', "CREATE TABLE t (a b)"),
    ],
)
def test_different_tables_have_different_definitions(meanings):
    assert len({tuple(described(sql).items()) for sql in meanings}) == len(meanings)


@pytest.mark.parametrize(
    "spellings",
    [
        (
            "CREATE INDEX i ON orders (code)",
            'create index if not exists I on "ORDERS"("code" ASC)',
            "CREATE INDEX i ON orders ('code')",
        ),
        ("CREATE UNIQUE INDEX i ON orders (code, id DESC)", "CREATE UNIQUE  INDEX [i] ON orders (code asc,id desc);"),
        ("CREATE INDEX i ON orders (code COLLATE nocase)", 'CREATE INDEX i ON orders ("Code" COLLATE "NOCASE" ASC)'),
        ("CREATE INDEX i ON orders (lower(code))", "CREATE INDEX i ON orders (LOWER ( code ))"),
        ("CREATE INDEX i ON orders (code) WHERE id > 1", "CREATE INDEX i ON orders (code) WHERE (ID>1)"),
        ("CREATE VIEW v AS SELECT id AS n FROM orders AS o", 'CREATE VIEW V as select ID N from "orders" o ;'),
        ("CREATE VIEW v (n) AS SELECT id FROM orders", 'CREATE VIEW v ("N") AS SELECT id FROM orders'),
        ("CREATE VIEW v AS SELECT id AS total FROM orders", "CREATE VIEW v AS SELECT id AS 'Total' FROM orders"),
        ("CREATE VIEW v AS SELECT orders.id FROM orders", "CREATE VIEW v AS SELECT 'orders'.[id] FROM 'orders'"),
        ("CREATE VIEW v AS WITH x AS (SELECT 1) SELECT * FROM x", "CREATE VIEW v AS WITH\nx AS(select 1)select*from x"),
        (
            "CREATE TRIGGER g BEFORE UPDATE OF id, code ON orders FOR EACH ROW BEGIN SELECT 1; END",
            'create trigger if not exists G update of Code,"id" on ORDERS begin select 1;end;',
        ),
        (
            "CREATE TRIGGER g AFTER INSERT ON orders WHEN new.id > 1 BEGIN DELETE FROM customers; SELECT 'A'; END",
            'CREATE TRIGGER g AFTER INSERT ON "orders" WHEN NEW . ID > 1 BEGIN delete from "customers" ; select \'A\' ; end',
        ),
    ],
)
def test_spellings_of_one_index_view_or_trigger_are_equal(spellings):
    assert len({tuple(described(CUSTOMERS, ORDERS, sql).items()) for sql in spellings}) == 1


@pytest.mark.parametrize(
    "meanings",
    [
        (
            "CREATE INDEX i ON orders (code)",
            "CREATE UNIQUE INDEX i ON orders (code)",
            "CREATE INDEX i ON customers (code)",
            "CREATE INDEX i ON orders (code DESC)",
            "CREATE INDEX i ON orders (code COLLATE NOCASE)",
            "CREATE INDEX i ON orders (code, id)",
            "CREATE INDEX i ON orders (id, code)",
            "CREATE INDEX i ON orders (lower(code))",
            "CREATE INDEX i ON orders (code) WHERE id > 1",
            "CREATE INDEX i ON orders (code) WHERE id > 2",
            "CREATE INDEX j ON orders (code)",
        ),
        (
            "CREATE VIEW v AS SELECT id FROM orders",
            "CREATE VIEW v (id) AS SELECT id FROM orders",
            "CREATE VIEW v AS SELECT 'id' FROM orders",
            "CREATE VIEW v AS SELECT 'ID' FROM orders",
            "CREATE VIEW v AS SELECT id FROM customers",
            "CREATE VIEW v AS SELECT id, code FROM orders",
        ),
        (
            "CREATE VIEW v AS SELECT 1 FROM orders LEFT JOIN customers",
            'CREATE VIEW v AS SELECT 1 FROM orders "left" JOIN customers',
            "CREATE VIEW v AS SELECT 1 FROM orders JOIN customers",
        ),
        (
            "CREATE VIEW v AS SELECT 1 FROM orders AS left JOIN customers",
            "CREATE VIEW v AS SELECT 1 FROM orders LEFT JOIN customers",
        ),
        (
            "CREATE VIEW v AS SELECT NULL",
            'CREATE VIEW v AS SELECT "null" FROM (SELECT 1 AS "null")',
            "CREATE VIEW v AS SELECT 'null'",
        ),
        (
            "CREATE VIEW v AS SELECT id IS DISTINCT FROM 'a' FROM orders",
            "CREATE VIEW v AS SELECT id IS DISTINCT FROM 'A' FROM orders",
        ),
        ("CREATE VIEW v AS SELECT 1 - - 1", "CREATE VIEW v AS SELECT 1 -- 1"),
        (
            "CREATE TRIGGER g BEFORE UPDATE ON orders BEGIN SELECT 1; END",
            "CREATE TRIGGER g AFTER UPDATE ON orders BEGIN SELECT 1; END",
            "CREATE TRIGGER g BEFORE UPDATE OF id ON orders BEGIN SELECT 1; END",
            "CREATE TRIGGER g BEFORE UPDATE OF code ON orders BEGIN SELECT 1; END",
            "CREATE TRIGGER g BEFORE INSERT ON orders BEGIN SELECT 1; END",
            "CREATE TRIGGER g BEFORE DELETE ON orders BEGIN SELECT 1; END",
            "CREATE TRIGGER g BEFORE UPDATE ON customers BEGIN SELECT 1; END",
            "CREATE TRIGGER g BEFORE UPDATE ON orders WHEN new.id BEGIN SELECT 1; END",
            "CREATE TRIGGER g BEFORE UPDATE ON orders BEGIN SELECT 2; END",
            "CREATE TRIGGER g BEFORE UPDATE ON orders BEGIN SELECT '1'; END",
            "CREATE TRIGGER g BEFORE UPDATE ON orders BEGIN SELECT 1; SELECT 1; END",
        ),
    ],
)
def test_different_indexes_views_and_triggers_have_different_definitions(meanings):
    assert len({tuple(described(CUSTOMERS, ORDERS, sql).items()) for sql in meanings}) == len(meanings)


def virtual(sql: str) -> str:
    found = canonical(SchemaRow("table", "docs", "docs", sql))
    assert found is not None
    return found[1]


def test_arguments_of_a_virtual_table_stay_as_they_were_written_but_for_what_is_around_them():
    sql = "CREATE VIRTUAL TABLE docs USING FTS5( Title ,body/* x */, tokenize = 'Porter  (a, b)' , f(a , B) )"
    assert virtual(sql) == "using fts5(Title, body, tokenize = 'Porter  (a, b)', f(a , B))"
    assert virtual("CREATE VIRTUAL TABLE docs USING m") == virtual("CREATE VIRTUAL TABLE 'docs' USING M ( )")
    assert virtual("CREATE VIRTUAL TABLE docs USING m(a, b)") != virtual("CREATE VIRTUAL TABLE docs USING m(a, B)")
    assert virtual("CREATE VIRTUAL TABLE docs USING m(a, b)") != virtual("CREATE VIRTUAL TABLE docs USING n(a, b)")


def test_a_definition_is_one_line_that_a_person_can_read():
    sql = """CREATE TABLE "Orders" (
        id INTEGER PRIMARY KEY AUTOINCREMENT, -- the number
        customer_id INT NOT NULL REFERENCES customers (id) ON DELETE CASCADE,
        state TEXT NOT NULL DEFAULT 'New' CHECK (length(state) > 0),
        total NUMERIC(10,2) GENERATED ALWAYS AS (a.b * -1) STORED
    ) STRICT"""
    assert canonical(SchemaRow("table", "Orders", "Orders", sql)) == (
        "table orders",
        (
            "(id integer, customer_id int not null, state text default 'New' not null, "
            "total numeric(10, 2) as (a.b * - 1) stored, primary key (id autoincrement), check (length (state) > 0), "
            "foreign key (customer_id) references customers (id) on delete cascade) strict"
        ),
    )


# ALTER TABLE rewrites the text


@pytest.mark.parametrize(
    ("steps", "direct"),
    [
        (
            ["CREATE TABLE t (a INT)", "ALTER TABLE t ADD COLUMN b TEXT NOT NULL DEFAULT 'x'"],
            ["CREATE TABLE t (a INT, b TEXT NOT NULL DEFAULT 'x')"],
        ),
        (
            ["CREATE TABLE t (a INT, UNIQUE (a)) STRICT", "ALTER TABLE t ADD b TEXT REFERENCES p (id);"],
            ["CREATE TABLE t (a INT UNIQUE, b TEXT REFERENCES p (id)) STRICT"],
        ),
        (
            ["CREATE TABLE t (a INT -- first\n)", "ALTER TABLE t ADD COLUMN b CHECK (b > a)"],
            ["CREATE TABLE t (a INT, b, CHECK (b > a))"],
        ),
        (
            ["CREATE TABLE t (a, b, CHECK (a < b))", "CREATE INDEX i ON t (a)", "ALTER TABLE t RENAME COLUMN a TO Key"],
            ["CREATE TABLE t (key, b, CHECK (key < b))", "CREATE INDEX i ON t (key)"],
        ),
        (
            [
                CUSTOMERS,
                "CREATE TABLE o (c REFERENCES customers (id))",
                "CREATE VIEW v AS SELECT c.id FROM customers AS c",
                "CREATE TRIGGER g AFTER INSERT ON customers BEGIN UPDATE customers SET code = upper(new.code); END",
                "CREATE INDEX i ON customers (code) WHERE id > 3",
                "ALTER TABLE customers RENAME TO Clients",
                "ALTER TABLE clients RENAME COLUMN id TO number",
            ],
            [
                "CREATE TABLE clients (number INTEGER PRIMARY KEY, code TEXT UNIQUE)",
                "CREATE TABLE o (c REFERENCES clients (number))",
                "CREATE VIEW v AS SELECT c.number FROM clients c",
                "CREATE TRIGGER g AFTER INSERT ON clients BEGIN UPDATE clients SET code = upper(new.code); END",
                "CREATE INDEX i ON clients (code) WHERE number > 3",
            ],
        ),
        (
            ["CREATE TABLE t (a INT, b TEXT DEFAULT ('x'), c REAL)", "ALTER TABLE t DROP COLUMN b"],
            ["CREATE TABLE t (a INT, c REAL)"],
        ),
        (
            ["CREATE TABLE t (a INT, b TEXT, c REAL, UNIQUE (a))", "ALTER TABLE t DROP COLUMN c"],
            ["CREATE TABLE t (a INT, b TEXT, UNIQUE (a))"],
        ),
        (
            ['CREATE TABLE t (a CHECK (a != "Open"), b)', "ALTER TABLE t RENAME b TO c"],
            ['CREATE TABLE t (a CHECK (a != "Open"), c)'],
        ),
        (
            [
                ORDERS,
                "CREATE TABLE n (id INTEGER PRIMARY KEY, code)",
                "DROP TABLE orders",
                "ALTER TABLE n RENAME TO orders",
            ],
            ["CREATE TABLE orders (id INTEGER PRIMARY KEY, code)"],
        ),
        (
            ["CREATE TABLE t AS SELECT 1 AS a, 'x' AS \"b c\""],
            ['CREATE TABLE t (a, "b c")'],
        ),
    ],
)
def test_an_altered_table_equals_the_same_table_made_directly(steps, direct):
    assert described(*steps) == described(*direct)


# Names and keywords

KEYWORDS = """
    abort action add after all alter always analyze and as asc attach autoincrement before begin between by
cascade case cast check collate column commit conflict constraint create cross current current_date current_time
current_timestamp database default deferrable deferred delete desc detach distinct do drop each else end escape except
exclude exclusive exists explain fail false filter first following for foreign from full generated glob group groups
having if ignore immediate in index indexed initially inner insert instead intersect into is isnull join key last left
like limit match materialized natural no not nothing notnull null nulls of offset on or order others outer over
partition plan pragma preceding primary query raise range recursive references regexp reindex release rename replace
restrict returning right rollback row rows savepoint select set strict table temp temporary then ties to transaction
trigger true unbounded union unique update using vacuum values view virtual when where window with without
"""


def is_accepted(*statements: str) -> bool:
    try:
        rows_of(*statements)
    except sqlite3.OperationalError:
        return False
    return True


@pytest.mark.parametrize("word", KEYWORDS.split())
def test_a_keyword_as_a_name_is_the_same_with_and_without_quotes_where_sqlite_takes_both(word):
    quoted = f'CREATE TABLE t ("{word}" INT, b REFERENCES t ("{word}"))'
    bare = quoted.replace('"', "")
    if is_accepted(bare):
        assert table(bare) == table(quoted)
    else:
        assert table(quoted).startswith(f'("{word}" int')


# These are values, or take what follows to themselves, where they are not quoted.
NO_OPERANDS = {"cast", "raise", "true", "false", "current_date", "current_time", "current_timestamp"}


@pytest.mark.parametrize("word", sorted(set(KEYWORDS.split()) - NO_OPERANDS))
def test_a_keyword_as_an_operand_is_the_same_with_and_without_quotes_where_sqlite_takes_both(word):
    quoted = [f'CREATE TABLE t ("{word}" INT, b, CHECK ("{word}" > 0))', f'CREATE INDEX i ON t (b) WHERE "{word}" > 0']
    bare = [sql.replace('"', "") for sql in quoted]
    if is_accepted(*bare):
        assert described(*bare) == described(*quoted)
    else:
        assert f'check ("{word}" > 0)' in described(*quoted)["table t"]


# Random tables in random spellings


class Name(str):
    """An identifier of a statement, to be spelled in any of its ways."""

    __slots__ = ()


class Tight(str):
    """A word before which no comment may come: SQLite keeps one inside a declared type as a part of it."""

    __slots__ = ()


NAMES = ("id", "Order", "key", "a b", "left", "Ünit", 'q"t', "x_1", "generated", "check")
NEVER_BARE = frozenset({"Order", "a b", 'q"t', "check"})
TYPES = ("", "INTEGER", "INT", "TEXT", "VARCHAR ( 10 )", "DOUBLE PRECISION", "NUMERIC ( 10 , 2 )")
STRICT_TYPES = ("INTEGER", "INT", "TEXT", "ANY", "BLOB")
DEFAULTS = ("", "1", "'x'", "'X'", "- 1", "x'00'", "NULL", "( 1 + 2 )", "CURRENT_TIME")
COLLATIONS = ("", "NOCASE", "RTRIM")
ACTIONS = ("", "SET NULL", "SET DEFAULT", "CASCADE", "RESTRICT")
KINDS = range(3)
BLANKS = (" ", "\n", "\t\r\n ", " /* a, ') */ ", " -- it's (\n")


@dataclass(frozen=True)
class Column:
    name: str
    type: str
    not_null: bool = False
    default: str = ""
    collation: str = ""
    generated: int | None = None
    is_stored: bool = False


@dataclass(frozen=True)
class Reference:
    column: str
    on_delete: str = ""
    on_update: str = ""
    is_deferred: bool = False


@dataclass(frozen=True)
class Table:
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    is_descending: bool = False
    is_counting: bool = False
    uniques: frozenset[tuple[str, ...]] = frozenset()
    checks: frozenset[tuple[str, int]] = frozenset()
    references: frozenset[Reference] = frozenset()
    is_strict: bool = False
    has_rowid: bool = True

    def is_sound(self) -> bool:
        """Whether SQLite takes it, and takes its key for the same at a column and at the table."""
        key_types = [column.type for column in self.columns if column.name in self.key]
        is_alias = self.has_rowid and key_types == ["INTEGER"]
        return (
            (self.has_rowid or bool(self.key))
            and not (self.is_counting and not is_alias)
            and not (self.is_descending and (is_alias or not self.key))
            and all(column.generated is None for column in self.columns if column.name in self.key)
            and self.key not in self.uniques
        )


@st.composite
def columns(draw: st.DrawFn, name: str, *, is_strict: bool, may_be_generated: bool) -> Column:
    generated = draw(st.none() | st.sampled_from(KINDS)) if may_be_generated else None
    return Column(
        name,
        draw(st.sampled_from(STRICT_TYPES if is_strict else TYPES)),
        not_null=draw(st.booleans()),
        default=draw(st.sampled_from(DEFAULTS)) if generated is None else "",
        collation=draw(st.sampled_from(COLLATIONS)),
        generated=generated,
        is_stored=generated is not None and draw(st.booleans()),
    )


@st.composite
def tables(draw: st.DrawFn) -> Table:
    is_strict = draw(st.booleans())
    names = draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=5, unique=True))
    some = st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True).map(tuple)
    kinds = st.tuples(st.sampled_from(names), st.sampled_from(KINDS))
    actions = st.sampled_from(ACTIONS)
    references = st.builds(Reference, st.sampled_from(names), actions, actions, st.booleans())
    table = Table(
        tuple(draw(columns(name, is_strict=is_strict, may_be_generated=at > 0)) for at, name in enumerate(names)),
        key=draw(st.just(()) | some),
        is_descending=draw(st.booleans()),
        is_counting=draw(st.booleans()),
        uniques=frozenset(draw(st.lists(some, max_size=2))),
        checks=frozenset(draw(st.lists(kinds, max_size=2))),
        references=frozenset(draw(st.lists(references, max_size=2))),
        is_strict=is_strict,
        has_rowid=draw(st.booleans()),
    )
    for easier in ({}, {"is_descending": False}, {"is_counting": False}, {"has_rowid": True}):
        table = table if table.is_sound() else dataclasses.replace(table, **easier)
    assume(table.is_sound())
    return table


def variants(table: Table) -> Iterator[Table]:
    """Tables that differ from this one in one meaning."""
    for at, column in enumerate(table.columns):
        for changed in column_variants(column, STRICT_TYPES if table.is_strict else TYPES):
            yield dataclasses.replace(table, columns=(*table.columns[:at], changed, *table.columns[at + 1 :]))
    first, last = table.columns[0].name, table.columns[-1].name
    yield dataclasses.replace(table, columns=table.columns[::-1])
    yield dataclasses.replace(table, columns=(*table.columns, Column("extra", "TEXT")))
    for key in ((), (first,), (last,), (first, last), (last, first)):
        yield dataclasses.replace(table, key=key)
    for field in ("is_descending", "is_counting", "has_rowid", "is_strict"):
        yield dataclasses.replace(table, **{field: not getattr(table, field)})
    for unique in ((last,), (first, last), (last, first)):
        yield dataclasses.replace(table, uniques=table.uniques ^ {unique})
    for kind in KINDS:
        yield dataclasses.replace(table, checks=table.checks ^ {(last, kind)})
    for reference in (
        *(Reference(last, action) for action in ACTIONS),
        Reference(last, "", "CASCADE"),
        Reference(first, is_deferred=True),
    ):
        yield dataclasses.replace(table, references=table.references ^ {reference})


def column_variants(column: Column, types: Sequence[str]) -> Iterator[Column]:
    yield dataclasses.replace(column, not_null=not column.not_null)
    for type_ in types:
        yield dataclasses.replace(column, type=type_)
    for collation in COLLATIONS:
        yield dataclasses.replace(column, collation=collation)
    if column.generated is None:
        for default in DEFAULTS:
            yield dataclasses.replace(column, default=default)
    else:
        yield dataclasses.replace(column, is_stored=not column.is_stored)
        for kind in KINDS:
            yield dataclasses.replace(column, generated=kind)


def condition(column: str, kind: int) -> list[str]:
    name = Name(column)
    return [
        [name, ">", "0"],
        ["length", "(", name, ")", "<", "'Ab'", "OR", name, "IS", "NULL"],
        ["(", name, "||", "'a , ( b'", ")", "IN", "(", "'a'", ",", "'A'", ")"],
    ][kind]


class Speller:
    """Writes one table in one of its many spellings."""

    def __init__(self, table: Table, random: Random) -> None:
        self.table = table
        self.random = random

    def statement(self) -> str:
        table = self.table
        pending = self.constraints()
        elements: list[str] = []
        for column in table.columns:
            inline = [parts for name, parts, _ in pending if name == column.name and self.maybe()]
            pending = [entry for entry in pending if not any(entry[1] is parts for parts in inline)]
            elements += [*self.column(column, inline), ","]
        self.random.shuffle(pending)
        for _, _, parts in pending:
            elements += [*self.named(), *parts, *([","] if self.maybe() else [])]
        if elements[-1] == ",":
            elements.pop()
        options = [["STRICT"]] * table.is_strict + [["WITHOUT", "ROWID"]] * (not table.has_rowid)
        self.random.shuffle(options)
        tail = [word for option in options for word in (*option, ",")][:-1]
        return self.spelled(["CREATE", "TABLE", Name("Tab"), "(", *elements, ")", *tail])

    def constraints(self) -> list[tuple[str | None, list[str], list[str]]]:
        """The column of each constraint, None for several; how it is written there, and at the table."""
        table = self.table
        found = [self.reference(reference) for reference in table.references]
        for column, kind in table.checks:
            check = ["CHECK", "(", *self.wrapped(condition(column, kind)), ")"]
            found.append((column, check, check[:]))
        for unique in table.uniques:
            found.append((unique[0] if len(unique) == 1 else None, ["UNIQUE"], ["UNIQUE", *self.listed(unique)]))
        if table.key:
            counting = ["AUTOINCREMENT"] * table.is_counting
            direction = ["DESC"] if table.is_descending else ["ASC"] * self.maybe()
            columns = self.listed(table.key)
            key = ["PRIMARY", "KEY", *columns[:-1], *direction, *counting, ")"]
            name = table.key[0] if len(table.key) == 1 else None
            found.append((name, ["PRIMARY", "KEY", *direction, *counting], key))
        return found

    def reference(self, reference: Reference) -> tuple[str, list[str], list[str]]:
        rules = [["DEFERRABLE", "INITIALLY", "DEFERRED"]] if reference.is_deferred else []
        for event, action in (("DELETE", reference.on_delete), ("UPDATE", reference.on_update)):
            if action or self.maybe():
                rules.insert(0, ["ON", event, *(action or "NO ACTION").split()])
        parts = ["REFERENCES", Name("Parent"), "(", Name("id"), ")", *(word for rule in rules for word in rule)]
        return reference.column, parts, ["FOREIGN", "KEY", "(", Name(reference.column), ")", *parts]

    def column(self, column: Column, inline: list[list[str]]) -> list[str]:
        parts = list(inline)
        if column.not_null:
            parts.append(["NOT", "NULL"])
        if column.default:
            default = column.default.split()
            parts.append(
                ["DEFAULT", "(", *default, ")"] if self.maybe() or default[0] == "(" else ["DEFAULT", *default]
            )
        if column.collation:
            parts.append(["COLLATE", Name(column.collation)])
        if column.generated is not None:
            source = (
                self.table.columns[0].name if column.name != self.table.columns[0].name else self.table.columns[-1].name
            )
            always = [Tight("GENERATED"), Tight("ALWAYS")] * self.maybe()
            kind = ["STORED"] if column.is_stored else ["VIRTUAL"] * self.maybe()
            parts.append([*always, "AS", "(", *self.wrapped(condition(source, column.generated)), ")", *kind])
        self.random.shuffle(parts)
        type_ = map(Tight, column.type.split())
        return [Name(column.name), *type_, *(word for part in parts for word in (*self.named(), *part))]

    def maybe(self) -> bool:
        return self.random.random() < 0.5

    def named(self) -> list[str]:
        return ["CONSTRAINT", Name(f"c{self.random.randrange(9)}")] if self.random.random() < 0.2 else []

    def wrapped(self, parts: list[str]) -> list[str]:
        return ["(", *parts, ")"] if self.maybe() else parts

    def listed(self, names: Sequence[str]) -> list[str]:
        listed = [word for name in names for word in (",", Name(name))]
        return ["(", *listed[1:], ")"]

    def spelled(self, parts: Sequence[str]) -> str:
        text = ""
        for part in parts:
            needs_blank = text[-1:] not in {"", "(", ")", ","} and part not in {"(", ")", ","}
            blanks = self.random.choice(BLANKS[:3] if isinstance(part, Tight) else BLANKS)
            if not needs_blank and self.random.random() < 0.9:
                blanks = ""
            text += blanks + (self.name(part) if isinstance(part, Name) else self.word(part))
        return text

    def word(self, word: str) -> str:
        return self.cased(word) if word.replace("_", "").isalpha() else word

    def name(self, name: str) -> str:
        name = self.cased(name)
        quoted = '"' + name.replace('"', '""') + '"'
        ways = [quoted, f"`{name}`", f"[{name}]"]
        bare = [] if any(name.lower() == never.lower() for never in NEVER_BARE) else [name]
        return self.random.choice(ways + bare * 3)

    def cased(self, word: str) -> str:
        how = self.random.choice((str.lower, str.upper, str.title, str))
        return "".join(how(letter) if letter.isascii() else letter for letter in word)


def facts(sql: str) -> Any:
    """What SQLite itself says about the one table that a statement makes, apart from expressions."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(sql)
        pragma = lambda name, of: connection.execute(f"SELECT * FROM pragma_{name}(?)", (of,)).fetchall()  # noqa: E731
        columns = [
            (plain(name), plain("".join(type_.split())), not_null, key, hidden)
            for _, name, type_, not_null, _, key, hidden in pragma("table_xinfo", "tab")
        ]
        indexes = sorted(
            (unique, origin, [(plain(str(c[2])), c[3], plain(c[4])) for c in pragma("index_xinfo", index) if c[5]])
            for _, index, unique, origin, _ in pragma("index_list", "tab")
        )
        references = sorted(tuple(map(plain, map(str, row[2:]))) for row in pragma("foreign_key_list", "tab"))
        kinds = connection.execute("SELECT wr, strict FROM pragma_table_list('tab')").fetchall()
        counts = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'sqlite_sequence'").fetchone()
        return columns, indexes, references, kinds, counts


def plain(name: str) -> str:
    return "".join(letter.lower() if letter.isascii() else letter for letter in name)


@DETERMINISTIC
@given(tables(), st.integers(0, 2**32), st.integers(0, 2**32))
def test_two_random_spellings_of_one_table_are_equal(model, one, other):
    first, second = Speller(model, Random(one)).statement(), Speller(model, Random(other)).statement()
    assert facts(first) == facts(second)
    assert described(first) == described(second)


@DETERMINISTIC
@given(tables(), st.integers(0, 2**32))
def test_what_a_definition_says_makes_the_same_table_again(model, seed):
    sql = Speller(model, Random(seed)).statement()
    again = f"CREATE TABLE tab {table(sql)}"
    assert table(again) == table(sql)
    assert facts(again) == facts(sql)


@settings(DETERMINISTIC, max_examples=20)
@given(tables(), st.integers(0, 2**32))
def test_tables_that_differ_in_one_meaning_have_different_definitions(model, seed):
    others = [other for other in dict.fromkeys(variants(model)) if other != model and other.is_sound()]
    statements = [Speller(other, Random(seed)).statement() for other in (model, *others)]
    definitions = [table(sql) for sql in statements if is_accepted(sql)]
    assert len(definitions) > len(model.columns)
    assert len(set(definitions)) == len(definitions)


# Odd and large texts

PIECES = ("create", "TABLE", "t", "(", ")", ",", "'", '"', "`", "[", "]", "--", "/*", "*/", "\n", " ", ".", "1e", "x'", "as",
          "index", "on", "view", "trigger", "default", "references", "check", "primary", "key", "not", "virtual", "using", ";")  # fmt: skip


@DETERMINISTIC
@given(
    st.sampled_from(("table", "index", "view", "trigger", "other")),
    st.sampled_from(("", "CREATE TABLE t (a ", "CREATE INDEX i ON t (", "CREATE VIEW v AS ", "CREATE VIRTUAL TABLE t USING m(")),
    st.text(max_size=30) | st.lists(st.sampled_from(PIECES), max_size=30).map("".join)
    | st.lists(st.sampled_from(PIECES), max_size=30).map(" ".join),
)  # fmt: skip
def test_any_text_has_a_definition(type_, start, text):
    found = canonical(SchemaRow(type_, "x", "x", start + text))
    assert found is not None
    assert found[0] == f"{type_} x"


def test_a_statement_that_is_not_understood_is_taken_by_its_words():
    def of(sql: str) -> str:
        return describe([SchemaRow("table", "t", "t", sql)])["table t"]

    assert of("CREATE TABLE t (a) SHINY") == of("CREATE  TABLE t(a) /* new */ SHINY;")
    assert of("CREATE TABLE t (a) SHINY") != of("CREATE TABLE t (a) DULL")
    assert of("CREATE TABLE t (a) SHINY") != of("CREATE TABLE t (a)")
    assert of("CREATE TABLE t (a) SHINY").startswith("as written: CREATE TABLE t (a)")


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE t (a, b REFERENCES p UNIQUE DEFERRABLE INITIALLY DEFERRED)",
        "CREATE TABLE t (a, b NOT ON CONFLICT)",
        "CREATE TABLE t (a, UNIQUE)",
        "CREATE TABLE t (a",
        "CREATE TABLE t",
        "CREATE TABLE",
        "CREATE INDEX t",
        "",
    ],
)
def test_a_statement_that_ends_early_or_says_something_rare_is_taken_by_its_words(sql):
    assert describe([SchemaRow("table", "t", "t", sql)])["table t"].startswith("as written: ")


def test_a_table_of_2000_columns_and_a_view_of_a_megabyte_are_read():
    wide = table(f"CREATE TABLE t ({', '.join(f'C{at} TEXT NOT NULL' for at in range(2000))})")
    assert wide.count("text not null") == 2000
    selected = ", ".join(f"'It''s' || {at} AS \"N{at}\"" for at in range(45_000))
    view = canonical(SchemaRow("view", "v", "v", f"CREATE VIEW v AS SELECT {selected}"))
    assert view is not None
    assert view[1].endswith("'It''s' || 44999 n44999")
    assert len(view[1]) > 1_000_000


def test_parentheses_may_be_as_deep_as_they_like():
    depth = 100_000
    deep = f"{'(' * depth}A{')' * depth}"
    rows = [
        SchemaRow("table", "t", "t", f"CREATE TABLE t (a CHECK {deep}, b AS {deep}, c DEFAULT {deep})"),
        SchemaRow("index", "i", "t", f"CREATE INDEX i ON t (a) WHERE {deep}"),
        SchemaRow("view", "v", "v", f"CREATE VIEW v AS SELECT {deep}"),
    ]
    found = describe(rows)
    assert found["table t"] == "(a, b as (a), c default a, check (a))"
    assert found["index i"] == "on t (a) where a"
    assert found["view v"] == f"as select {deep.lower()}"


# What belongs to the semantics


def test_bookkeeping_and_what_sqlite_keeps_for_itself_are_left_out():
    rows = rows_of(
        "CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT, code TEXT UNIQUE)",
        "CREATE INDEX orders_by_code ON orders (code)",
        "CREATE TABLE _journal_fence (fence INTEGER, code TEXT UNIQUE)",
        "CREATE INDEX fences ON _Journal_Fence (fence)",
        "CREATE TRIGGER guard BEFORE INSERT ON _journal_fence BEGIN SELECT 1; END",
        "CREATE VIEW _JOURNAL_view AS SELECT 1",
        "ANALYZE",
    )
    assert len(rows) > 9
    assert list(describe(rows)) == ["index orders_by_code", "table orders"]


def test_tables_that_virtual_tables_keep_for_themselves_are_left_out_with_their_indexes():
    rows = [
        SchemaRow("table", "docs", "docs", "CREATE VIRTUAL TABLE docs USING fts5(body)"),
        SchemaRow("table", "Docs_data", "Docs_data", "CREATE TABLE 'Docs_data'(id INTEGER PRIMARY KEY, block BLOB)"),
        SchemaRow("index", "on_data", "Docs_data", "CREATE INDEX on_data ON docs_data (block)"),
        SchemaRow("table", "docs_mine", "docs_mine", "CREATE TABLE docs_mine (id)"),
    ]
    assert list(describe(rows, ["docs_DATA"])) == ["table docs", "table docs_mine"]
    semantics = Semantics()
    semantics.replace(rows, ["docs_DATA"])
    assert semantics.objects == describe(rows, ["docs_DATA"])


def test_a_row_without_sql_has_no_definition():
    assert canonical(SchemaRow("index", "by_code", "orders", None)) is None


# Semantics


def many(count: int) -> list[SchemaRow]:
    return [SchemaRow("table", f"t{at}", f"t{at}", f"CREATE TABLE t{at} (a, b{at})") for at in range(count)]


def fingerprint_of(rows: Sequence[SchemaRow]) -> str:
    semantics = Semantics()
    semantics.replace(rows)
    return str(semantics.fingerprint)


@DETERMINISTIC
@given(st.permutations(many(40)), st.integers(0, 40))
def test_a_fingerprint_does_not_depend_on_the_order_or_on_what_was_added_later(rows, known):
    semantics = Semantics()
    semantics.replace(rows[:known])
    assert str(semantics.fingerprint) == fingerprint_of(rows[:known][::-1])
    for row in rows[known:]:
        semantics.add([row])
    assert str(semantics.fingerprint) == fingerprint_of(many(40))
    assert semantics.objects == describe(rows)


def test_every_object_more_and_every_other_definition_gives_another_fingerprint():
    rows = many(600)
    semantics, seen = Semantics(), set()
    for row in rows:
        seen.add(semantics.fingerprint)
        semantics.add([row])
    seen.add(semantics.fingerprint)
    assert len(seen) == len(rows) + 1
    changed = [*rows[:-1], rows[-1]._replace(sql="CREATE TABLE t599 (a, b599 INT)")]
    assert fingerprint_of(changed) not in map(str, seen)


def test_an_object_of_another_kind_with_the_same_words_gives_another_fingerprint():
    as_view = SchemaRow("view", "v", "v", "SELECT 1")
    assert fingerprint_of([as_view]) != fingerprint_of([as_view._replace(type="trigger")])
    assert fingerprint_of([as_view]) != fingerprint_of([as_view._replace(name="w")])


def test_replaced_semantics_know_nothing_of_what_was_there_before():
    semantics = Semantics()
    empty = semantics.fingerprint
    semantics.replace(many(10), ["t3"])
    assert len(semantics.objects) == 9
    semantics.replace(many(4))
    assert str(semantics.fingerprint) == fingerprint_of(many(4))
    semantics.replace([])
    assert semantics.fingerprint == empty
    assert not semantics.objects


def test_the_fingerprint_of_a_schema_stays_what_it_was_when_it_was_first_recorded():
    """Recorded fingerprints are compared with observed ones, so another value needs another semantic profile."""
    assert (
        fingerprint_of(rows_of(CUSTOMERS, ORDERS, "CREATE INDEX i ON orders (code)"))
        == "860e516208a07afb5aaac2afecbbed947f3cc9f2bb766762e210828178212ff7"
    )
