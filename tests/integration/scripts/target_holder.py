"""Uses a SQLite target like another process: one order a line on standard input, one answer a line.

Arguments: path, fence. Orders: `begin`, `insert`, `commit`, `batch`, and `endless batch`, which is answered before it is
obeyed; an error is answered with its code.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from journal.control import Control
from journal.databases.sqlite import SQLiteDatabase
from journal.errors import JournalError
from journal.identities import Fence, Incarnation, Scope
from journal.ports import BackfillProgram, Guard, Program, Transaction

GUARD_SCOPE, INCARNATION = Scope("shop"), Incarnation(bytes(16))
DOUBLING = BackfillProgram(
    "orders", ("id",), 10, "UPDATE orders SET cents = coalesce(cents, 0) + 1 WHERE id > :after AND id <= :upto"
)
ENDLESS = "WITH RECURSIVE n (a) AS (SELECT 1 UNION ALL SELECT a + 1 FROM n) SELECT count(*) FROM n"


async def obey(
    order: str, stack: AsyncExitStack, database: SQLiteDatabase, guard: Guard, held: list[Transaction]
) -> str:
    match order:
        case "begin":
            held[:] = [await stack.enter_async_context(database.transaction(guard, Control(), enforce_references=True))]
        case "insert":
            await held[0].execute(Program(("INSERT INTO orders (total) VALUES (1)",), (1,)))
        case "batch":
            return str((await database.advance_backfill(guard, Control(), "unit", DOUBLING)).transaction_groups)
        case "endless batch":
            print(order, flush=True)
            await database.advance_backfill(guard, Control(), "unit", replace(DOUBLING, batch=1_000, verify=ENDLESS))
        case "commit":
            await held[0].commit()
            await stack.aclose()
    return order


async def main() -> None:
    database = SQLiteDatabase(Path(sys.argv[1]))
    guard = Guard(GUARD_SCOPE, INCARNATION, Fence(int(sys.argv[2])))
    held: list[Transaction] = []
    async with AsyncExitStack() as stack:
        for line in sys.stdin:
            try:
                answer = await obey(line.strip(), stack, database, guard, held)
            except JournalError as error:
                answer = str(error.code)
            print(answer, flush=True)
    await database.close()


if __name__ == "__main__":
    asyncio.run(main())
