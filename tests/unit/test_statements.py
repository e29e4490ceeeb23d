"""Where one statement ends and the next begins: quotes, comments, bodies, lines, and texts of many megabytes."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given, strategies as st

from journal.errors import Code, InvalidContractError
from journal.migrations.source import Statement
from journal.migrations.statements import Dialect, Directive, scan, split
from tests.strategies import DETERMINISTIC

SQLITE, POSTGRES = Dialect.SQLITE, Dialect.POSTGRES
BOTH = pytest.mark.parametrize("dialect", list(Dialect))


def texts(text: str, dialect: Dialect = SQLITE) -> list[str]:
    return [statement.text for statement in split(text, dialect=dialect)]


def problem(text: str, dialect: Dialect = SQLITE) -> tuple[int, str]:
    with pytest.raises(InvalidContractError) as caught:
        split(text, dialect=dialect)
    assert caught.value.code is Code.INVALID_FOLDER
    assert str(caught.value.details["rule"]) in caught.value.message
    return caught.value.details["line"], caught.value.details["rule"]


# --- plain statements ---------------------------------------------------------------------------------------------------


@BOTH
def test_a_semicolon_ends_a_statement_and_is_no_part_of_it(dialect: Dialect) -> None:
    assert texts("SELECT 1;SELECT 2 ;\n SELECT 3 \n;", dialect) == ["SELECT 1", "SELECT 2", "SELECT 3"]


@BOTH
def test_the_last_statement_may_lack_its_semicolon(dialect: Dialect) -> None:
    assert texts("SELECT 1; SELECT 2 \n\n", dialect) == ["SELECT 1", "SELECT 2"]


@BOTH
@pytest.mark.parametrize(
    "text", ["", " \t\n\f\n", ";", ";;\n ; ;", "-- nothing", "-- nothing\n", "/* a; b */ ;; -- c;"]
)
def test_blanks_comments_and_empty_statements_are_nothing(text: str, dialect: Dialect) -> None:
    assert texts(text, dialect) == []


def test_each_statement_has_the_line_of_its_first_token() -> None:
    text = "\n-- one\nSELECT\n 1;  SELECT 2;\n/* a\n b */ SELECT 3;\n;\n\nSELECT '\n\n'; SELECT 4"
    assert [(s.text.replace("\n", ""), s.line) for s in split(text)] == [
        ("SELECT 1", 3),
        ("SELECT 2", 4),
        ("SELECT 3", 6),
        ("SELECT ''", 9),
        ("SELECT 4", 11),
    ]


def test_lines_are_counted_from_the_one_that_the_caller_gives() -> None:
    assert split("\nSELECT 1;\nSELECT 2", line=40) == [Statement("SELECT 1", 41), Statement("SELECT 2", 42)]


def test_the_line_of_a_problem_is_counted_from_the_one_that_the_caller_gives() -> None:
    with pytest.raises(InvalidContractError) as caught:
        split("SELECT 1;\nSELECT 'a", line=40)
    assert caught.value.details["line"] == 41


# --- comments -----------------------------------------------------------------------------------------------------------


@BOTH
def test_comments_between_statements_belong_to_none(dialect: Dialect) -> None:
    text = "-- a;\nSELECT 1; -- b;\n/* c; */ SELECT 2 /* d; */ -- e;\n; /* f */"
    assert texts(text, dialect) == ["SELECT 1", "SELECT 2"]


@BOTH
def test_comments_inside_a_statement_are_kept(dialect: Dialect) -> None:
    text = "SELECT -- one; 'two\n 1 /* three; \"four */ + 2 -- five\n;"
    assert texts(text, dialect) == ["SELECT -- one; 'two\n 1 /* three; \"four */ + 2"]


@BOTH
def test_a_comment_at_the_end_of_the_text_needs_no_line_end(dialect: Dialect) -> None:
    assert texts("SELECT 1 --; SELECT 2", dialect) == ["SELECT 1"]


@BOTH
def test_operators_that_look_like_half_a_comment_are_none(dialect: Dialect) -> None:
    assert texts("SELECT 4 - -1 / 2 * 3; SELECT 2", dialect) == ["SELECT 4 - -1 / 2 * 3", "SELECT 2"]


def test_block_comments_nest_in_postgres_only() -> None:
    text = "SELECT 1 /* a /* b */ ; c */ + 2"
    assert texts(text, POSTGRES) == [text]
    assert texts(text, SQLITE) == ["SELECT 1", "c */ + 2"]


@BOTH
def test_a_comment_opener_that_overlaps_its_closer_stays_open(dialect: Dialect) -> None:
    assert problem("SELECT 1 /*/ + 2", dialect)[0] == 1


# --- quotes -------------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    "literal",
    ["';'", "'--'", "'/*'", "'it''s;'", "''", "''''", "''';'", "';'';'", '";"', '"a"";"', "'\"'';'", "'\\'", "x';'"],
)
def test_a_quote_hides_what_it_holds(literal: str, dialect: Dialect) -> None:
    assert texts(f"SELECT {literal};SELECT {literal}", dialect) == [f"SELECT {literal}"] * 2


@pytest.mark.parametrize("name", ["`;`", "`a``;`", "[;]", "[a'b;]", '[a"b]', "[--]"])
def test_backticks_and_brackets_quote_in_sqlite(name: str) -> None:
    assert texts(f"SELECT {name};SELECT 2") == [f"SELECT {name}", "SELECT 2"]


def test_backticks_and_brackets_do_not_quote_in_postgres() -> None:
    assert texts("SELECT a[1;SELECT `;SELECT 2]", POSTGRES) == ["SELECT a[1", "SELECT `", "SELECT 2]"]


@pytest.mark.parametrize(
    "literal",
    [r"E'\';'", r"e'\\'", r"E'a\'b'';\''", r"E'\\\';'", "E''", "E'a'\n 'b\\';'", r"(E'\';')", r"||E'\';'"],
)
def test_a_backslash_escapes_in_the_escape_strings_of_postgres(literal: str) -> None:
    assert texts(f"SELECT {literal};SELECT 2", POSTGRES) == [f"SELECT {literal}", "SELECT 2"]


def test_a_name_that_ends_in_e_makes_no_escape_string() -> None:
    assert texts(r"SELECT date'\'; SELECT 2", POSTGRES) == [r"SELECT date'\'", "SELECT 2"]


def test_sqlite_has_no_escape_strings() -> None:
    assert texts(r"SELECT E'\'; SELECT 2") == [r"SELECT E'\'", "SELECT 2"]


@pytest.mark.parametrize("literal", ["$$;$$", "$a$;$b$;$$;$a$", "$_1$'$_1$", "$é$;$é$", "$$--$$", "$$/*$$"])
def test_dollar_quotes_hide_what_they_hold_in_postgres(literal: str) -> None:
    assert texts(f"SELECT {literal};SELECT 2", POSTGRES) == [f"SELECT {literal}", "SELECT 2"]


@pytest.mark.parametrize("text", ["SELECT a$b$", "SELECT $1 + $2", "SELECT $1$", "SELECT é$b$", "SELECT $ a $"])
def test_a_dollar_in_a_name_or_a_parameter_opens_no_quote(text: str) -> None:
    assert texts(f"{text}; SELECT 2", POSTGRES) == [text, "SELECT 2"]


def test_a_dollar_is_a_parameter_in_sqlite() -> None:
    assert texts("SELECT $a$, $$; SELECT $a$") == ["SELECT $a$, $$", "SELECT $a$"]


@BOTH
def test_letters_past_ascii_are_kept(dialect: Dialect) -> None:
    assert texts("SELECT 'ä;🦆' AS größe; SELECT 2", dialect) == ["SELECT 'ä;🦆' AS größe", "SELECT 2"]


# --- bodies -------------------------------------------------------------------------------------------------------------

TRIGGERS = [
    "CREATE TRIGGER t AFTER INSERT ON a BEGIN UPDATE a SET n = 1; END",
    "create temp trigger t after insert on a begin update a set n = 1; end",
    "CREATE TEMPORARY TRIGGER t AFTER INSERT ON a BEGIN UPDATE a SET n = 1; DELETE FROM a; END",
    "CREATE /* ; */ TRIGGER -- ;\n t AFTER INSERT ON a BEGIN UPDATE a SET n = 1;\nEND",
    "CREATE TRIGGER IF NOT EXISTS t AFTER INSERT ON a WHEN CASE new.n WHEN 1 THEN 2 END BEGIN SELECT 1; END",
    "CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT CASE WHEN 1 THEN CASE 1 WHEN 1 THEN 2 END END; SELECT 2; END",
    "CREATE TRIGGER t AFTER INSERT ON a BEGIN UPDATE a SET end = 1, begin = 2; INSERT INTO a(end) VALUES (1); END",
    "CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1 AS weekend; SELECT 'END;'; SELECT \"end\"; SELECT [end;]; END",
    "CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1; -- END;\n SELECT 2; /* END; */ SELECT 3; -- c\n END",
    "CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1;; SELECT endless FROM a; SELECT 3; ; END",
    "CREATE TRIGGER t AFTER UPDATE OF begin ON a WHEN new.begin > 1 BEGIN SELECT 1; END",
    'CREATE TRIGGER "begin;" AFTER INSERT ON "end;" BEGIN SELECT 1; END',
]


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_trigger_body_is_one_statement(trigger: str) -> None:
    assert texts(f"{trigger};\nSELECT 1;{trigger}") == [trigger, "SELECT 1", trigger]


def test_what_follows_a_body_without_a_semicolon_belongs_to_its_statement() -> None:
    trigger = TRIGGERS[0]
    assert texts(f"{trigger}\nCREATE TABLE b (n); SELECT 1") == [f"{trigger}\nCREATE TABLE b (n)", "SELECT 1"]


@pytest.mark.parametrize("name", ["triggers", "trigger_log", "triggeré"])
def test_only_the_word_trigger_makes_a_trigger(name: str) -> None:
    assert texts(f"CREATE {name} a BEGIN; SELECT 1") == [f"CREATE {name} a BEGIN", "SELECT 1"]


def test_a_trigger_without_a_body_ends_at_its_semicolon() -> None:
    assert texts("CREATE TRIGGER t AFTER INSERT ON a; SELECT 1") == ["CREATE TRIGGER t AFTER INSERT ON a", "SELECT 1"]


@BOTH
@pytest.mark.parametrize("begin", ["BEGIN", "BEGIN TRANSACTION", "begin immediate", "START TRANSACTION"])
def test_a_transaction_of_its_own_is_made_of_statements(begin: str, dialect: Dialect) -> None:
    assert texts(f"{begin}; SELECT 1; END; COMMIT;", dialect) == [begin, "SELECT 1", "END", "COMMIT"]


FUNCTIONS = [
    "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; SELECT 2; END",
    "CREATE OR REPLACE PROCEDURE f() LANGUAGE sql begin /* ; */ atomic SELECT CASE WHEN a THEN 1 END; END",
    "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC END",
    "CREATE FUNCTION f(begin int) RETURNS int BEGIN ATOMIC SELECT 1 AS end; END",
    "CREATE FUNCTION f() RETURNS int AS $$ BEGIN; END; $$ LANGUAGE plpgsql",
    "CREATE FUNCTION f(begin int) RETURNS int RETURN 1",
    "CREATE TRIGGER t AFTER INSERT ON a EXECUTE FUNCTION begin()",
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_function_body_of_postgres_is_one_statement(function: str) -> None:
    assert texts(f"{function};SELECT 1;{function}", POSTGRES) == [function, "SELECT 1", function]


# --- what is not closed -------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("SELECT 1;\nSELECT\n'a;\n", 3, "quote '"),
        ('SELECT 1;\n"a', 2, 'quote "'),
        ("SELECT 1;\n'", 2, "quote '"),
        ("SELECT\n'a''", 2, "quote '"),
        ("SELECT 'x',\n'a\n''b''''\n;\n'', \n", 2, "quote '"),
        ("\n''';\n", 2, "quote '"),
        ("SELECT 1,\n'a\n/*''*/", 2, "quote '"),
        ("\n/* a;\n", 2, "comment /*"),
        ("SELECT 1\n+ /* a;\n", 2, "comment /*"),
    ],
)
def test_a_quote_or_comment_that_is_not_closed_is_told_with_its_line(
    text: str, line: int, word: str, dialect: Dialect
) -> None:
    assert problem(text, dialect) == (line, f"the {word} that opens here is not closed")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("\n$a$ b $$", "quote $a$"),
        ("\n/* a /* b */", "comment /*"),
        ("\nE'a\\'", "quote '"),
        ("\nE'a\\", "quote '"),
    ],
)
def test_what_only_postgres_opens_is_told_with_its_line(text: str, word: str) -> None:
    assert problem(text, POSTGRES) == (2, f"the {word} that opens here is not closed")


@pytest.mark.parametrize("text", ["\n`a", "\n[a"])
def test_what_only_sqlite_opens_is_told_with_its_line(text: str) -> None:
    assert problem(text) == (2, f"the quote {text[1]} that opens here is not closed")


@pytest.mark.parametrize(
    "body",
    [
        "BEGIN SELECT 1;",
        "BEGIN SELECT 1; SELECT 2",
        "BEGIN SELECT 1 END;",
        "BEGIN SELECT 1; SELECT CASE 1 END;",
        "BEGIN",
    ],
)
def test_a_trigger_body_that_is_not_closed_is_told_with_the_line_of_its_statement(body: str) -> None:
    line, rule = problem(f"SELECT 1;\nCREATE TRIGGER t\nAFTER INSERT ON a {body}\n")
    assert (line, "END;" in rule) == (2, True)


def test_a_function_body_that_is_not_closed_is_told_with_the_line_of_its_statement() -> None:
    assert problem("\nCREATE FUNCTION f() BEGIN ATOMIC SELECT 1;", POSTGRES)[0] == 2


# --- directives ---------------------------------------------------------------------------------------------------------


def test_a_directive_ends_the_statement_before_it() -> None:
    pieces = list(scan("SELECT 1 -- a\n-- journal: reverse \nSELECT 2"))
    assert pieces == [
        Statement("SELECT 1", 1),
        Directive("-- journal: reverse ", 2, alone=True),
        Statement("SELECT 2", 3),
    ]


def test_a_directive_knows_whether_it_stands_alone() -> None:
    pieces = list(scan("\t -- journal: a\nSELECT 1; -- journal: b\n/* x */ -- journal: c"))
    assert [piece.alone for piece in pieces if isinstance(piece, Directive)] == [True, False, False]


@pytest.mark.parametrize("comment", ["--journal:x", "-- JOURNAL : x", "--\tJournal: x", "-- journal:"])
def test_every_comment_that_is_addressed_to_the_journal_is_a_directive(comment: str) -> None:
    assert list(scan(f"\n{comment}")) == [Directive(comment, 2, alone=True)]


@pytest.mark.parametrize(
    "text",
    ["SELECT '\n-- journal: x\n'", "SELECT 1 /*\n-- journal: x\n*/ + 1", "SELECT [\n-- journal: x\n]"],
)
def test_quotes_and_comments_hold_no_directive(text: str) -> None:
    assert list(scan(text)) == [Statement(text, 1)]


@pytest.mark.parametrize("comment", ["-- journals: x", "-- the journal: x", "-- -- journal: x", "/* journal: x */"])
def test_other_comments_are_no_directives(comment: str) -> None:
    assert list(scan(comment)) == []


@pytest.mark.parametrize("body", ["SELECT 1\n-- journal: reverse\n;", "SELECT 1;\n-- journal: reverse\nSELECT 2;"])
def test_a_directive_inside_a_body_is_told_as_a_body_that_is_not_closed(body: str) -> None:
    with pytest.raises(InvalidContractError) as caught:
        list(scan(f"\nCREATE TRIGGER t AFTER INSERT ON a BEGIN {body} END;"))
    assert caught.value.details["line"] == 2


def test_splitting_takes_a_directive_for_a_comment() -> None:
    assert texts("SELECT 1\n-- journal: reverse\n+ 2") == ["SELECT 1\n-- journal: reverse\n+ 2"]


# --- the databases' own opinion -----------------------------------------------------------------------------------------

SCRIPT = (
    """
    CREATE TABLE a (n INTEGER, end INTEGER, begin INTEGER, "x;y" TEXT DEFAULT 'a;''b', [z;] TEXT /* ; */, `w;` TEXT);
    -- a comment; with 'marks
    CREATE TRIGGER first AFTER INSERT ON a WHEN new.begin IS NOT NULL BEGIN
        UPDATE a SET end = CASE WHEN new.n > 1 THEN CASE new.n WHEN 2 THEN 'END;' END ELSE ';' END; -- END;
        INSERT INTO a (end) SELECT 1 WHERE 0;
    END;;
    CREATE VIEW v AS SELECT n AS weekend, '--' AS "/*" FROM a; -- behind it
"""
    + ";\n".join(TRIGGERS[1].replace("trigger t", f"trigger t{n}") for n in range(3))
    + "\n"
)


def schema(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    query = (
        "SELECT name, sql FROM (SELECT * FROM sqlite_master UNION ALL SELECT * FROM sqlite_temp_master) ORDER BY name"
    )
    rows = connection.execute(query).fetchall()
    connection.close()
    return rows


def test_sqlite_makes_the_same_of_the_statements_as_of_the_script() -> None:
    whole, parts = sqlite3.connect(":memory:"), sqlite3.connect(":memory:")
    whole.executescript(SCRIPT)
    for statement in split(SCRIPT):
        parts.execute(statement.text)
    assert (found := schema(whole)) == schema(parts)
    assert len(found) == 6


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_the_triggers_of_these_tests_are_whole_for_sqlite_too(trigger: str) -> None:
    assert sqlite3.complete_statement(trigger + ";")
    assert not sqlite3.complete_statement(trigger)


# --- properties ---------------------------------------------------------------------------------------------------------

_INNER = "ab;'\"`[]-/*$\n é🦆"
_shared = st.sampled_from(["a", "CASE", "END", "BEGIN", "1", "-", "/", "*", "$1", ":p", "é", "🦆", ",", "(", ")"])
_quoted = st.text(_INNER).map(lambda text: "'" + text.replace("'", "''") + "'")
_named = st.text(_INNER).map(lambda text: '"' + text.replace('"', '""') + '"')
_line_comment = st.text(_INNER.replace("\n", "")).map(lambda text: f"--{text}\n")
_block_comment = st.text(_INNER).map(lambda text: "/*" + text.replace("/", "") + "*/")
_sqlite_only = st.text(_INNER).map(lambda text: "[" + text.replace("]", "") + "]") | st.text(_INNER).map(
    lambda text: "`" + text.replace("`", "``") + "`"
)
_postgres_only = st.text(_INNER).map(lambda text: "$q$" + text.replace("$", "") + "$q$") | st.text(_INNER + "\\").map(
    lambda text: "E'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
)
_own = {SQLITE: _sqlite_only, POSTGRES: _postgres_only}


def statements_of(dialect: Dialect) -> st.SearchStrategy[str]:
    """Statements with a token at both ends, so that nothing of their text is between statements."""
    tokens = _shared | _quoted | _named | _own[dialect]
    gaps = st.just(" ") | _line_comment | _block_comment
    inner = st.lists(st.tuples(gaps, tokens), max_size=6).map(lambda pairs: "".join(f" {g} {t}" for g, t in pairs))
    plain = st.builds(lambda inside: f"SELECT{inside} , x", inner)
    return plain | st.sampled_from(TRIGGERS if dialect is SQLITE else FUNCTIONS)


_between = st.lists(st.sampled_from([" ", "\n", ";", "\t"]) | _line_comment | _block_comment, max_size=3).map("".join)


@BOTH
@DETERMINISTIC
@given(data=st.data())
def test_statements_come_back_as_they_were_put_together(data: st.DataObject, dialect: Dialect) -> None:
    statements = data.draw(st.lists(statements_of(dialect), max_size=5))
    script = data.draw(_between) + "".join(f"{text} {data.draw(_between)};{data.draw(_between)}" for text in statements)
    pieces = split(script, dialect=dialect)
    assert [piece.text for piece in pieces] == statements
    lines = script.split("\n")
    assert all(piece.text.split("\n")[0] in lines[piece.line - 1] for piece in pieces)


@BOTH
@DETERMINISTIC
@given(text=st.lists(_shared | st.sampled_from(list(_INNER)) | st.sampled_from([*TRIGGERS, *FUNCTIONS])).map(" ".join))
def test_splitting_what_was_split_and_joined_changes_nothing(text: str, dialect: Dialect) -> None:
    try:
        once = texts(text, dialect)
    except InvalidContractError as error:
        assert error.details["line"] in range(1, text.count("\n") + 2)  # noqa: PT017 - either outcome is one to check
        return
    assert texts(";\n".join(once), dialect) == once


@DETERMINISTIC
@given(
    text=st.lists(
        _shared | st.sampled_from(list(_INNER)) | st.sampled_from([f"{trigger};" for trigger in TRIGGERS])
    ).map(" ".join)
)
def test_sqlite_takes_each_statement_for_a_whole_one(text: str) -> None:
    try:
        statements = texts(text)
    except InvalidContractError:
        assert not sqlite3.complete_statement(text + "\n;")
        return
    for statement in statements:
        assert sqlite3.complete_statement(statement + ";")
        assert not sqlite3.complete_statement(statement)


@BOTH
@DETERMINISTIC
@given(text=st.text())
def test_any_text_is_split_or_refused(text: str, dialect: Dialect) -> None:
    try:
        pieces = split(text, dialect=dialect)
    except InvalidContractError as error:
        assert error.details["rule"]  # noqa: PT017 - either outcome is one to check
    else:
        assert all(piece.text and piece.text in text for piece in pieces)


# --- size: each of these would take hours if any character were looked at more than a few times ----------------------------


@BOTH
def test_one_line_of_many_megabytes(dialect: Dialect) -> None:
    insert = "INSERT INTO t VALUES ('a;''b', 1);"
    assert len(split(insert * 100_000, dialect=dialect)) == 100_000


@BOTH
def test_a_literal_of_twenty_megabytes(dialect: Dialect) -> None:
    statement = "INSERT INTO t VALUES ('" + "x;-\n" * 5_000_000 + "')"
    assert split(f"{statement};\nSELECT 1", dialect=dialect) == [
        Statement(statement, 1),
        Statement("SELECT 1", 5_000_002),
    ]


@BOTH
def test_many_comments_inside_one_statement(dialect: Dialect) -> None:
    statement = "SELECT 1" + " -- c\n + /* d */ 1" * 100_000
    assert texts(statement, dialect) == [statement]


def test_a_trigger_with_deeply_nested_cases() -> None:
    cases = "CASE WHEN 1 THEN " * 200_000 + "1" + " END" * 200_000
    trigger = f"CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT {cases}; END"
    assert texts(f"{trigger};SELECT 1") == [trigger, "SELECT 1"]


def test_a_comment_that_is_deeply_nested() -> None:
    text = "SELECT 1 " + "/*" * 200_000 + "*/" * 200_000 + " + 1"
    assert texts(text, POSTGRES) == [text]


@BOTH
@pytest.mark.parametrize("head", ["CREATE ", "CREATE TRIGGER begin ", "CREATE FUNCTION begin ", "CREATE TEMP "])
def test_what_only_starts_like_a_body(head: str, dialect: Dialect) -> None:
    text = head + "xbegin /* b */ atomicx " * 100_000 + "END"
    assert texts(f"{text}; SELECT 1; END; SELECT 2", dialect)[-1] == "SELECT 2"
