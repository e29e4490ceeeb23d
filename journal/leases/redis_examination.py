"""What `journal doctor` says about a Redis that keeps leases."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from typing import Final

from redis.exceptions import ResponseError

from journal.errors import JournalError
from journal.identities import Scope
from journal.leases.redis_connections import Ask, RedisConnections
from journal.ports import Finding, Leases, Level

_SKEW_SECONDS: Final = 1.0
_SLOW_SECONDS: Final = 0.1
_ROUND_TRIPS: Final = 5
_GRANT_INFO: Final = "allow the user INFO, or look there"


async def examined(
    leases: Leases, connections: RedisConnections, *, rights: str, prefix: str, scopes: Sequence[Scope]
) -> AsyncGenerator[Finding, None]:
    """Look at one Redis; `rights` is the script that tells which commands are refused."""
    try:
        info = await connections.call(_info)
    except JournalError as error:
        yield _failed("lease store", error)
        return
    yield _reached(connections, info)
    yield _role(info)
    yield _eviction(info)
    yield await _or_failed("lease store persistence", _persistence(connections, info))
    yield await _or_failed("lease store rights", _rights(connections, rights, f"{prefix}:{{doctor}}:lease"))
    try:
        skew, trip = await connections.call(_measured)
    except JournalError as error:
        yield _failed("lease store clock", error)
    else:
        yield _clock(skew)
        yield _answer_time(trip)
    for scope in scopes:
        yield await _or_failed(f"lease of {scope}", _lease(leases, scope))


async def _or_failed(check: str, checking: Awaitable[Finding]) -> Finding:
    try:
        return await checking
    except JournalError as error:
        return _failed(check, error)


def _failed(check: str, error: JournalError) -> Finding:
    return Finding(check, Level.PROBLEM, error.message, "do what the message says; without it this cannot be checked")


# --- questions ----------------------------------------------------------------------------------------------------------


async def _info(ask: Ask) -> Mapping[str, str]:
    """The server's account of itself; empty when the user may not read it."""
    try:
        answer: bytes = await ask("INFO")
    except ResponseError:
        return {}
    lines = answer.decode("utf-8", "replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


async def _snapshots(ask: Ask) -> str | None:
    """When snapshots are saved, "" for never; None when the user may not read the configuration."""
    try:
        answer: list[bytes] = await ask("CONFIG", "GET", "save")
    except ResponseError:
        return None
    return answer[1].decode("utf-8", "replace") if len(answer) == 2 else None


async def _measured(ask: Ask) -> tuple[float, float]:
    """How many seconds Redis's clock is ahead of this machine's, and how long an answer takes; the best of some tries."""
    tries: list[tuple[float, float]] = []
    for _ in range(_ROUND_TRIPS):
        asked, began = time.time(), time.perf_counter()
        seconds, micros = await ask("TIME")
        trip = time.perf_counter() - began
        tries.append((trip, int(seconds) + int(micros) / 1_000_000 - asked - trip / 2))
    trip, skew = min(tries)
    return skew, trip


# --- findings -----------------------------------------------------------------------------------------------------------


def _reached(connections: RedisConnections, info: Mapping[str, str]) -> Finding:
    version = f"Redis {info['redis_version']}" if "redis_version" in info else "a version that could not be read"
    return Finding("lease store", Level.GOOD, f"{connections.address} answers ({version})")


def _role(info: Mapping[str, str]) -> Finding:
    check = "lease store role"
    match info.get("role"):
        case "master":
            return Finding(check, Level.GOOD, "it is a primary: it takes writes")
        case None:
            return Finding(check, Level.WARNING, "whether it is a primary could not be checked", _GRANT_INFO)
        case role:
            return Finding(
                check, Level.PROBLEM, f"it is a {role}, which takes no writes", "give the address of the primary"
            )


def _eviction(info: Mapping[str, str]) -> Finding:
    check = "lease store memory"
    policy = info.get("maxmemory_policy")
    if policy is None:
        return Finding(check, Level.WARNING, "maxmemory-policy could not be checked", _GRANT_INFO)
    if policy == "noeviction":
        return Finding(check, Level.GOOD, "maxmemory-policy is noeviction: no lease is dropped for room")
    if policy.startswith("volatile-"):
        return Finding(
            check, Level.GOOD, f"maxmemory-policy is {policy}: keys of leases never expire, so none is dropped"
        )
    return Finding(
        check,
        Level.WARNING,
        f"maxmemory-policy is {policy}: a lease may be dropped for room, and two holders get into each other's way "
        "(fences stay safe, the log's highest one is their floor)",
        "set maxmemory-policy to noeviction",
    )


async def _persistence(connections: RedisConnections, info: Mapping[str, str]) -> Finding:
    check = "lease store persistence"
    failed = [name for name in ("rdb_last_bgsave_status", "aof_last_write_status") if info.get(name, "ok") != "ok"]
    if failed:
        return Finding(
            check, Level.PROBLEM, f"the last save failed ({', '.join(failed)})", "look at its log and its disk"
        )
    if info.get("aof_enabled") == "1":
        return Finding(check, Level.GOOD, "it keeps an append-only file")
    snapshots = await connections.call(_snapshots)
    if snapshots is None:
        return Finding(
            check,
            Level.WARNING,
            "it keeps no append-only file that could be seen, and whether it saves snapshots could not be checked",
            "allow the user CONFIG GET, or look there",
        )
    if snapshots:
        return Finding(check, Level.GOOD, "it saves snapshots: after a crash it knows an older state of the leases")
    return Finding(
        check,
        Level.WARNING,
        "it keeps neither an append-only file nor snapshots: a restart forgets who holds a lease (fences stay safe)",
        "set appendonly to yes",
    )


async def _rights(connections: RedisConnections, script: str, key: str) -> Finding:
    check = "lease store rights"
    answer: list[bytes] = await connections.call(lambda ask: ask("EVAL", script, 0, key))
    outcome, *refused = (item.decode("ascii", "replace") for item in answer)
    if outcome == "unknown":
        return Finding(check, Level.GOOD, "scripts may be run; the rest can be checked from Redis 7 on only")
    if refused:
        return Finding(
            check,
            Level.PROBLEM,
            f"the user may not call {', '.join(refused)}",
            f"ACL SETUSER <user> {' '.join(f'+{command}' for command in refused)}, on the keys that the prefix begins",
        )
    return Finding(check, Level.GOOD, "the user may call every command that leases need")


def _clock(skew: float) -> Finding:
    check = "lease store clock"
    if abs(skew) <= _SKEW_SECONDS:
        return Finding(check, Level.GOOD, f"its clock and this machine's are {abs(skew):.3f} s apart")
    return Finding(
        check,
        Level.WARNING,
        f"its clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} this machine's: leases end by its clock, "
        "and the times that are shown are its",
        "synchronise both with NTP",
    )


def _answer_time(trip: float) -> Finding:
    check = "lease store answer time"
    if trip <= _SLOW_SECONDS:
        return Finding(check, Level.GOOD, f"an answer takes {trip * 1_000:.1f} ms")
    return Finding(
        check,
        Level.WARNING,
        f"an answer takes {trip * 1_000:.0f} ms: every lease takes and every renewal keeps that long",
        "use a Redis that is nearer, or look at its load",
    )


async def _lease(leases: Leases, scope: Scope) -> Finding:
    check = f"lease of {scope}"
    grant = await leases.inspect(scope)
    if grant is None:
        return Finding(check, Level.GOOD, "free")
    until = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(grant.expires_at))
    return Finding(check, Level.GOOD, f"held by {grant.holder} under fence {grant.fence} until {until} UTC")
