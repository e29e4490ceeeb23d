"""Changes the table `orders` of a SQLite file without committing, so that pages reach the file; waits to be killed.

Argument: path.
"""

from __future__ import annotations

import sqlite3
import sys

connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN")
connection.execute("UPDATE orders SET cents = 1, total = zeroblob(2000)")
print("written", flush=True)
sys.stdin.read()
