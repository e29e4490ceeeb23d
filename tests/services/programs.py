"""The programs that the services are made of: found, installed from Debian when we may, or named.

Kafka's published jars are resolved by Maven once and kept by the hash of `pom.xml` in the user's cache folder, so that a
second run, and another checkout, need no network.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
_PACKAGES = {"java": "default-jre-headless", "mvn": "maven", "redis-server": "redis-server"}
_APT_GET = ("apt-get", "-o", "DPkg::Lock::Timeout=120")
_INSTALL_SECONDS = 600


class MissingProgramError(Exception):
    """A program that the tests need is not there, and may not be installed from here."""


def cache_folder() -> Path:
    """Where what was fetched is kept."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fenced-journal"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def only_one(name: str) -> Iterator[None]:
    """Let one process at a time do what is under `name`."""
    with (cache_folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def program(name: str) -> str:
    """Path of a program, installed from Debian when it is missing and this is root. Raises MissingProgramError."""
    return programs(name)[name]


def programs(*names: str) -> dict[str, str]:
    """The same of several: what is missing is installed, or named, all at once."""
    found = _found(names)
    if len(found) < len(names):
        with only_one("install"):
            _install([name for name in names if name not in _found(names)])
            found = _found(names)
    return found


def _found(names: Sequence[str]) -> dict[str, str]:
    return {name: path for name in names if (path := shutil.which(name)) is not None}


def _install(names: Sequence[str]) -> None:
    if not names:
        return  # another process has done it meanwhile
    packages = [_PACKAGES[name] for name in names]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise MissingProgramError(
            f"the tests need {' and '.join(names)} (on Debian: apt-get install {' '.join(packages)}), or services that run "
            "already: FENCED_JOURNAL_TEST_KAFKA=host:port, FENCED_JOURNAL_TEST_REDIS=redis://host:port"
        )
    print(f"installing {' '.join(packages)} from Debian", flush=True)
    _update()
    _run([*_APT_GET, "install", "-qq", "-y", "--no-install-recommends", *packages])
    if missing := set(names) - set(_found(names)):
        raise MissingProgramError(f"{' '.join(packages)} were installed, but there is no {' or '.join(missing)}")


@cache
def _update() -> None:
    _run([*_APT_GET, "update", "-qq"])


def _run(command: list[str]) -> None:
    # Debian's packages would start their services; those of the tests have ports of their own.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False
    )
    if done.returncode:
        raise MissingProgramError(f"{' '.join(command)} failed:\n{done.stdout[-2_000:]}{done.stderr[-2_000:]}")


@cache
def kafka_jars() -> Path:
    """Folder of Kafka's jars. Raises MissingProgramError."""
    pom = HERE / "pom.xml"
    folder = cache_folder() / f"kafka-{hashlib.sha256(pom.read_bytes()).hexdigest()[:16]}"
    if not folder.is_dir():
        maven = programs("mvn", "java")["mvn"]
        with only_one("kafka"):
            if not folder.is_dir():
                _fetch_jars(maven, pom, folder)
    return folder


def _fetch_jars(maven: str, pom: Path, folder: Path) -> None:
    print("fetching Apache Kafka's jars", flush=True)
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    _run([maven, "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={unfinished}"])
    unfinished.rename(folder)
