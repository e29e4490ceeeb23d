"""What is measured with: logs to replay, and plans to append, of the mixes that migrations make."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path

from journal.codec import published_formats
from journal.identities import HolderId, MigrationId, Scope
from journal.journal import Journal
from journal.lease import Lease
from journal.leases.sqlite import SQLiteLeases
from journal.log.sqlite import SQLiteLog
from journal.migrations.manifest import BackfillStep, SchemaStep, VerifiedManifest, verify_manifest, verify_rollback
from journal.ports import Log, Outgoing
from journal.records import (
    AppliedRecord,
    BackfillCheckpointRecord,
    BackfillEventRecord,
    GroupEventRecord,
    LeaseLike,
    MigrationLease,
    RollbackStepEventRecord,
    RolledBackRecord,
    ScopedRecord,
)
from journal.vocabulary import BackfillCompletion, BackfillCounts, Direction, GroupEventKind
from tests.benchmarks.figures import BUILD
from tests.factories import (
    LOWERING,
    PROFILE,
    SCOPE,
    Writer,
    chain_of,
    digest_of,
    plan_record,
    print_of,
    rollback_plan_record,
    state_of,
)

PLAN_SIZE = 50
GROUPS = 8
CHECKPOINTS = 4
_CHUNK = 5_000


def workplace(name: str) -> Path:
    """An empty folder on disk for the files of one benchmark."""
    folder = BUILD / "bench" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def environment() -> dict[str, str]:
    """What a command is started with: as in a shell, so bytecode is kept, output is buffered, and nothing is preset.

    A container's `PYTHONDONTWRITEBYTECODE` would have every round compile what was edited, and Alembic's revisions.
    """
    of_a_container = {"PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"}
    presets = ("JOURNAL_", "YOYO_")
    return {
        name: value for name, value in os.environ.items() if name not in of_a_container and not name.startswith(presets)
    }


def file_system(path: Path) -> str:
    """What `path` is on, as far as the operating system says."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return "unknown"
    fields = [line.split() for line in mounts.read_text("utf-8").splitlines()]
    over = [(len(point), kind) for _, point, kind, *_ in fields if path.resolve().is_relative_to(point)]
    return max(over)[1]


# --- logs to replay ---------------------------------------------------------------------------------------------------


def plans_log() -> Iterator[bytes]:
    """Without end, the mix of `long_log`: plans applied and rolled back in turn, three events a migration."""
    manifests = chain_of(PLAN_SIZE)

    def cycle(writer: Writer, lease: MigrationLease) -> None:
        writer.apply(lease, manifests)
        writer.roll_back(lease, manifests[::-1], manifests)

    return _endless(cycle)


def groups_log() -> Iterator[bytes]:
    """Without end: migrations of eight groups each, and a backfill that reports its progress four times."""
    manifests = [_wide_manifest(number) for number in range(PLAN_SIZE)]

    def cycle(writer: Writer, lease: MigrationLease) -> None:
        writer.write(plan_record(lease, manifests), lease)
        for manifest in manifests:
            for make in (*_groups(lease, manifest), *_backfill(lease, manifest)):
                writer.write(make(), lease)
            writer.write(AppliedRecord.from_verified_manifest(lease, manifest), lease)
        writer.write(rollback_plan_record(lease, manifests[::-1], manifests), lease)
        for manifest in reversed(manifests):
            writer.write(RolledBackRecord.from_verified_rollback(lease, verify_rollback(manifest)), lease)

    return _endless(cycle)


def _endless(cycle: Callable[[Writer, MigrationLease], None]) -> Iterator[bytes]:
    writer = Writer()
    lease = writer.acquire()
    while True:
        cycle(writer, lease)
        if writer.state.voids:
            raise AssertionError(f"the workload is faulty: {writer.verdicts}")
        yield from writer.data
        for history in (writer.data, writer.macs, writer.verdicts):
            history.clear()  # a million events are not kept in memory


def _wide_manifest(number: int) -> VerifiedManifest:
    states = [state_of(f"{number}.{group}" if group else str(number)) for group in range(GROUPS)]
    states.append(state_of(str(number + 1)))
    steps = [
        SchemaStep(digest_of(f"delta {number}.{group}"), states[group], states[group + 1], 1, 1)
        for group in range(GROUPS)
    ]
    return verify_manifest(
        id=MigrationId("example", f"{number:04d}_step"),
        source=states[0],
        target=states[-1],
        steps=[*steps, BackfillStep(print_of(f"backfill {number}"), reversible=True)],
        semantic_profile=PROFILE,
        lowering_profile=LOWERING,
        dependencies=[MigrationId("example", f"{number - 1:04d}_step")] if number else [],
    )


def _backfill(lease: LeaseLike, manifest: VerifiedManifest) -> list[Callable[[], ScopedRecord]]:
    counts = [BackfillCounts(1_000 * done, 900 * done, 100 * done, done) for done in range(1, CHECKPOINTS + 1)]
    step = manifest.backfill_at(GROUPS)
    assert step is not None
    completion = BackfillCompletion(step.plan_fingerprint, Direction.FORWARD, counts[-1])
    event = partial(BackfillEventRecord.new_apply, lease, manifest, GROUPS)
    return [
        partial(event, GroupEventKind.BEFORE_COMMIT),
        *(partial(BackfillCheckpointRecord.new_apply, lease, manifest, GROUPS, count) for count in counts),
        partial(event, GroupEventKind.COMMITTED, completion),
    ]


def mix_of(data: Iterable[bytes]) -> str:
    """How much of a log each event type is, in words."""
    formats = published_formats()
    counts = Counter(formats[event[:10]].type.value for event in data)
    return ", ".join(f"{count / counts.total():.1%} {type}" for type, count in counts.most_common() if count > 1)


async def write_log(path: Path, data: Iterable[bytes], scope: Scope = SCOPE) -> None:
    """Write events as they are to a new journal file."""
    log = SQLiteLog(path)
    await log.create(scope)
    data = iter(data)
    while chunk := [Outgoing(event) for event in islice(data, _CHUNK)]:
        await log.append(scope, chunk)
    await log.close()


# --- plans to append --------------------------------------------------------------------------------------------------

Make = Callable[[], ScopedRecord]
Unit = Sequence[Make]


def _groups(lease: LeaseLike, manifest: VerifiedManifest) -> list[Make]:
    makes: list[Make] = []
    for group in manifest.groups:
        event = partial(GroupEventRecord.new, lease, manifest, group)
        step = manifest.steps[group.schema_delta_step_index]
        assert isinstance(step, SchemaStep)
        makes += [
            partial(event, GroupEventKind.BEFORE_COMMIT),
            partial(event, GroupEventKind.COMMITTED, step.target.semantics),
        ]
    return makes


def _applying(lease: LeaseLike, manifest: VerifiedManifest) -> Unit:
    return [*_groups(lease, manifest), partial(AppliedRecord.from_verified_manifest, lease, manifest)]


def _rolling_back(lease: LeaseLike, manifest: VerifiedManifest) -> Unit:
    rollback = verify_rollback(manifest)
    event = partial(RollbackStepEventRecord.new, lease, rollback, 0)
    return [
        partial(event, GroupEventKind.BEFORE_COMMIT, None),
        partial(event, GroupEventKind.COMMITTED, manifest.source.semantics),
        partial(RolledBackRecord.from_verified_rollback, lease, rollback),
    ]


@dataclass(slots=True)
class Scene:
    """A scope on disk with a lease, and one chain of migrations that is applied and rolled back in turn."""

    journal: Journal
    log: Log
    lease: Lease
    manifests: Sequence[VerifiedManifest]
    applied: bool = field(default=False)

    async def open_plan(self) -> list[Unit]:
        """Open the next plan; returns what makes the three records of each of its migrations, in their order."""
        lease, manifests = self.lease, self.manifests
        if self.applied:
            await self.journal.record(lease, rollback_plan_record(lease, manifests[::-1], manifests))
            units = [_rolling_back(lease, manifest) for manifest in reversed(manifests)]
        else:
            await self.journal.record(lease, plan_record(lease, manifests))
            units = [_applying(lease, manifest) for manifest in manifests]
        self.applied = not self.applied
        return units

    async def newest(self, count: int) -> list[bytes]:
        """The bytes of the newest `count` events of the scope."""
        data: list[bytes] = []
        async with aclosing(self.log.read(SCOPE, after=None)) as batches:
            async for batch in batches:
                data = [*data[-count:], *(event.data for event in batch)]
        return data[-count:]


@asynccontextmanager
async def scene(folder: Path, migrations: int) -> AsyncIterator[Scene]:
    """An embedded journal in `folder`, its scope created and leased."""
    log = SQLiteLog(folder / "journal.db")
    async with Journal(log, SQLiteLeases(folder / "journal.db")) as journal:
        await journal.create(SCOPE)
        async with journal.lease(SCOPE, HolderId("bench")) as lease:
            yield Scene(journal, log, lease, chain_of(migrations))
