"""What becomes of a PRAGMA in a step: many act on a connection that ends with the command, or not in a transaction."""

from __future__ import annotations

from typing import Final, NamedTuple

from journal.databases.sqlite_tokens import fold, unquoted, words

OFF: Final = "`-- journal: schema transaction=off`"

_TRUE: Final = frozenset({"1", "on", "true", "yes"})
_FALSE: Final = frozenset({"0", "off", "false", "no"})
_AUTO_VACUUM: Final = {"none": 0, "full": 1, "incremental": 2}

# These write to the file, and do so where they stand.
_ALLOWED: Final = frozenset({"application_id", "user_version", "incremental_vacuum"})
_NEEDS_VALUE: Final = frozenset({"application_id", "user_version", "defer_foreign_keys", "journal_mode", "page_size"})
_OUTSIDE: Final = frozenset({"auto_vacuum", "journal_mode", "page_size", "wal_checkpoint"})
_BY_VACUUM: Final = frozenset({"auto_vacuum", "page_size"})
_LASTING_MODES: Final = frozenset({"delete", "wal"})

_CHECK: Final = (
    "it gives rows that nobody would read: use `-- journal: assert` with `SELECT {0} = 'ok' FROM pragma_{0}`"
)
_DAMAGES: Final = "it can make the database unreadable: change the schema by statements"
_REASONS: Final = {
    "foreign_key_check": "it gives rows that nobody would read; the journal checks references itself before the commit: "
    "leave it out",
    "integrity_check": _CHECK.format("integrity_check"),
    "quick_check": _CHECK.format("quick_check"),
    "optimize": "what it does depends on the connection that runs it: write ANALYZE",
    "encoding": "it acts before the first table is made, and the journal's are there: create the database with it",
    "writable_schema": _DAMAGES,
    "schema_version": _DAMAGES,
}
# fmt: off
_READING: Final = frozenset(
    {
        "collation_list", "compile_options", "data_version", "database_list", "foreign_key_list", "freelist_count",
        "function_list", "index_info", "index_list", "index_xinfo", "lock_status", "module_list", "page_count",
        "pragma_list", "stats", "table_info", "table_list", "table_xinfo",
    }
)
_CONNECTION: Final = frozenset(
    {
        "analysis_limit", "automatic_index", "busy_timeout", "cache_size", "cache_spill", "case_sensitive_like",
        "cell_size_check", "checkpoint_fullfsync", "count_changes", "data_store_directory", "default_cache_size",
        "empty_result_callbacks", "full_column_names", "fullfsync", "hard_heap_limit", "ignore_check_constraints",
        "journal_size_limit", "legacy_alter_table", "legacy_file_format", "locking_mode", "max_page_count",
        "mmap_size", "parser_trace", "query_only", "read_uncommitted", "recursive_triggers",
        "reverse_unordered_selects", "secure_delete", "short_column_names", "shrink_memory", "soft_heap_limit",
        "synchronous", "temp_store", "temp_store_directory", "threads", "trusted_schema", "vdbe_addoptrace",
        "vdbe_debug", "vdbe_listing", "vdbe_trace", "wal_autocheckpoint",
    }
)
# fmt: on
_UNREAD: Final = "it gives rows that nobody would read: leave it out"


class Pragma(NamedTuple):
    """A PRAGMA statement; `value` is None when it only asks."""

    name: str
    value: str | None


def pragma(statement: str) -> Pragma:
    """Read a PRAGMA statement."""
    _, *rest, _ = words(statement)
    if rest[1:2] == ["."]:
        rest = rest[2:]
    name = fold(unquoted(rest[0])) if rest else ""
    value = "".join(fold(unquoted(word)) for word in rest[2:] if word != ")")
    return Pragma(name, value if len(rest) > 1 else None)


def boolean(value: str | None) -> bool | None:
    """What SQLite takes a setting for; None when it says neither."""
    return True if value in _TRUE else False if value in _FALSE else None


def refusal(asked: Pragma, *, transactional: bool, vacuum_follows: bool) -> str | None:
    """Why a PRAGMA would be without effect, or do harm, and what to write instead; None when it can be run."""
    name, value = asked
    if name in _REASONS:
        return _REASONS[name]
    if value is None and name in _NEEDS_VALUE:
        return _UNREAD
    if name in _ALLOWED:
        return None
    if name == "defer_foreign_keys":
        return None if transactional else "it holds for one transaction, and here is none: leave it out"
    if name in _OUTSIDE:
        return _outside(asked, transactional=transactional, vacuum_follows=vacuum_follows)
    if name in _READING:
        return _UNREAD
    if name in _CONNECTION:
        return "it would end with this command: set it in the application"
    return f"SQLite knows no PRAGMA {name} and would ignore it: check the name"


def _outside(asked: Pragma, *, transactional: bool, vacuum_follows: bool) -> str | None:
    name, value = asked
    if transactional:
        return f"it cannot act in a transaction: write it in a step of its own with {OFF}"
    if name == "journal_mode" and value not in _LASTING_MODES:
        return (
            "of the journal modes WAL and DELETE last; others would end with this command: set them in the application"
        )
    if name in _BY_VACUUM and not vacuum_follows:
        return "it acts when the file is written anew: add VACUUM behind it in the same step"
    return None


def expected(asked: Pragma) -> str | None:
    """What a lasting setting reads as once it took effect; None for what cannot be read back."""
    if asked.name not in _OUTSIDE or asked.value is None or asked.name == "wal_checkpoint":
        return None
    return str(_AUTO_VACUUM.get(asked.value, asked.value)) if asked.name == "auto_vacuum" else asked.value
