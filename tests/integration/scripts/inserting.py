"""Appends rows to the table `orders` of a SQLite file for ever; says so once the first is in. Argument: path."""

from __future__ import annotations

import sqlite3
import sys
import time

connection = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
while True:
    connection.execute("INSERT INTO orders (total) VALUES (1)")
    print("in", flush=True)
    time.sleep(0.001)  # an application does other things too
