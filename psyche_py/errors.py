"""Every error a user can meet.

    PsycheError                     what happened, what to do, exit code
    |-- UsageError            (2)   a flag, a file or a key the user gave is wrong
    |   |-- ConfigError       (2)   a run configuration breaks a named rule
    |   |-- KeypairError      (2)   a keypair file is missing, malformed or readable by others
    |   `-- DataError         (2)   a shard, tokenizer or model directory is unusable
    |-- ChainError            (3)   the cluster or a program refused or did not answer (subclasses in chain/)
    |-- RunStateError         (4)   the run is paused, full, finished, or we are not authorized
    |-- NetworkError          (5)   the mesh: port taken, peer unreachable, bad bytes (subclasses in p2p/)
    |-- ReplicaError          (6)   our replica can no longer follow the run
    |-- StorageError          (7)   disk full or not writable
    `-- VersionMismatch      (10)   the run wants another client version (Psyche's exit code)

Packages derive their own errors from these; callers match by class or by ``code``, never by text.
"""

from __future__ import annotations

from typing import ClassVar


class PsycheError(Exception):
    """Base of all errors: ``what`` happened and the ``remedy`` a user can apply.

    ``exit_code`` is the process exit code when the error reaches the command line.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what} {self.remedy}".strip()


class UsageError(PsycheError):
    """The user gave something unusable."""

    exit_code = 2


class ConfigError(UsageError):
    """A run configuration breaks ``rule`` at ``key``."""

    def __init__(self, key: str, rule: str, remedy: str = "") -> None:
        super().__init__(f"{key}: {rule}", remedy)
        self.key = key
        self.rule = rule


class KeypairError(UsageError):
    """A keypair file cannot be used."""


class DataError(UsageError):
    """Token shards, a tokenizer or a model directory cannot be used."""


class ChainError(PsycheError):
    """The cluster, or a program on it, refused or did not answer."""

    exit_code = 3


class RunStateError(PsycheError):
    """The run is not in a state that allows what was asked, or we may not take part."""

    exit_code = 4


class NetworkError(PsycheError):
    """The peer-to-peer side failed."""

    exit_code = 5


class ReplicaError(PsycheError):
    """Our copy of the model can no longer follow the run."""

    exit_code = 6


class StorageError(PsycheError):
    """A disk is full or not writable."""

    exit_code = 7


class VersionMismatch(PsycheError):
    """The run asks for another client version; 10 is the exit code Psyche's supervisor reacts to."""

    exit_code = 10
