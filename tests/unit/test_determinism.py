"""One log, two processes that differ in everything that must not matter: the same state, byte for byte."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from journal.admission import empty_state, fold
from journal.codec import Codec
from journal.vocabulary import GroupEventKind
from tests.factories import SCOPE, Writer, chain_of, group_record, long_log, plan_record
from tests.stories import ACTIONS, tell

ROOT: Final = Path(__file__).parent.parent.parent
SCRIPT: Final = """
import hashlib, pathlib, sys
from journal.admission import empty_state, fold
from journal.codec import Codec
from journal.identities import Scope
codec = Codec()
lines = pathlib.Path(sys.argv[1]).read_text("ascii").split()
events = (codec.read(position, bytes.fromhex(line)) for position, line in enumerate(lines))
state = fold(empty_state(Scope("journal-test")), events)
print(hash("a word"), hashlib.sha256(state.canonical()).hexdigest())
"""
ENVIRONMENTS: Final = [
    {"PYTHONHASHSEED": "1", "TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONUTF8": "0"},
    {"PYTHONHASHSEED": "4294967295", "TZ": "America/St_Johns", "LC_ALL": "tr_TR.UTF-8", "PYTHONOPTIMIZE": "1"},
]


def busy_log() -> list[bytes]:
    """A long story that ends with a plan of several migrations open, so that every container of the state is filled."""
    generator = random.Random(2026)
    story = tell([(generator.randrange(ACTIONS), generator.randrange(1000)) for _ in range(600)])
    return story.data


def open_log() -> list[bytes]:
    """A ledger, and an open plan with units under way."""
    writer, manifests = Writer(), chain_of(12)
    lease = writer.acquire()
    writer.apply(lease, manifests[:4])
    writer.write(plan_record(lease, manifests[4:], manifests[:4]), lease)
    for manifest in manifests[4:9]:
        writer.write(group_record(lease, manifest, GroupEventKind.BEFORE_COMMIT), lease)
    return writer.data


def fold_elsewhere(log: Path, environment: dict[str, str]) -> tuple[str, str]:
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(log)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    word, digest = found.stdout.split()
    return word, digest


@pytest.mark.parametrize(
    "log", [busy_log, open_log, lambda: long_log(300, plan_size=10).data], ids=["busy", "open plan", "long"]
)
def test_a_log_folds_to_the_same_bytes_in_every_process(log, tmp_path: Path):
    data = log()
    path = tmp_path / "log"
    path.write_text("\n".join(item.hex() for item in data), "ascii")
    (left_word, left), (right_word, right) = (fold_elsewhere(path, environment) for environment in ENVIRONMENTS)
    codec = Codec()
    here = fold(empty_state(SCOPE), (codec.read(position, item) for position, item in enumerate(data)))
    assert left == right == hashlib.sha256(here.canonical()).hexdigest()
    assert left_word != right_word  # the two processes did hash differently


def test_a_canonical_state_is_ascii_without_spaces():
    codec = Codec()
    state = fold(empty_state(SCOPE), (codec.read(position, item) for position, item in enumerate(open_log())))
    text = state.canonical().decode("ascii")
    assert " " not in text
    assert '"scope":"journal-test"' in text


def test_states_that_differ_have_other_bytes():
    data = open_log()
    codec = Codec()
    seen = {
        fold(
            empty_state(SCOPE), (codec.read(position, item) for position, item in enumerate(data[:length]))
        ).canonical()
        for length in range(len(data) + 1)
    }
    assert len(seen) == len(data) + 1
