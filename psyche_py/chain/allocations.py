"""What an airdrop gives to whom: allocations, how they vest, and the CSV file they are kept in.

    wallet,nonce,start,duration,amount
    7Np41oeYqPefeNQEHSv1UDhYrehxin3NStELsSKCT4K2,0,2027-01-01,31536000,1000000

``wallet`` and ``amount`` (base units) are needed; ``nonce`` tells lines of one wallet apart, ``start`` is
in unix seconds or ISO 8601 (UTC unless it says otherwise), ``duration`` in seconds; they default to 0.
"""

from __future__ import annotations

import csv
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from solders.pubkey import Pubkey

from psyche_py.errors import UsageError

MAX_FILE_BYTES = 64 << 20
U32_MAX, U64_MAX = 2**32 - 1, 2**64 - 1
I64_MIN, I64_MAX = -(2**63), 2**63 - 1
COLUMNS = ("wallet", "nonce", "start", "duration", "amount")
_NEEDED = ("wallet", "amount")
_REST = struct.Struct("<QqIQ")
_HEADER_REMEDY = f"The first line names the columns: {','.join(COLUMNS)}."


@dataclass(frozen=True, slots=True)
class Allocation:
    """``amount`` base units for ``wallet``, released evenly over ``duration`` seconds from ``start`` on.

    Raises UsageError when a number is out of the program's range, or the amount is 0.
    """

    wallet: Pubkey
    amount: int
    nonce: int = 0
    start: int = 0
    duration: int = 0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("amount", 1, U64_MAX),
            ("nonce", 0, U64_MAX),
            ("start", I64_MIN, I64_MAX),
            ("duration", 0, U32_MAX),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise UsageError(f"{name} {value} is out of range.", f"It is at least {low}, at most {high}.")

    @property
    def end(self) -> int:
        """Unix second from which on all of it is released."""
        return self.start + self.duration

    def to_bytes(self) -> bytes:
        """The 60 bytes that its leaf hashes: wallet 32, nonce u64, start i64, duration u32, amount u64."""
        return bytes(self.wallet) + _REST.pack(self.nonce, self.start, self.duration, self.amount)

    def compute_vested(self, now: int) -> int:
        """Base units released at unix second ``now``, rounded down."""
        if now < self.start:
            return 0
        if now >= self.end:
            return self.amount
        return self.amount * (now - self.start) // self.duration


def parse_unix_timestamp(text: str) -> int:
    """Unix seconds, or ISO 8601, in UTC unless it names another zone. Raises ValueError."""
    if re.fullmatch(r"-?[0-9]+", text):
        return int(text)
    when = datetime.fromisoformat(text)
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())


def read_allocations(path: Path) -> list[Allocation]:
    """The allocations of a CSV file, in its order.

    Raises UsageError that names the line: unreadable, a column too many or missing, a value out of range, the
    same wallet and nonce twice, nothing in it.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise UsageError(f"{path} is longer than {MAX_FILE_BYTES >> 20} MiB.", "Make several airdrops.")
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _collect(path, _read_lines(path, file))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}.", "Name the airdrop's list with --allocations."
        ) from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is no CSV file: it is not UTF-8 text.", _HEADER_REMEDY) from None


def _collect(path: Path, lines: Iterator[tuple[int, Allocation]]) -> list[Allocation]:
    """All of them, each wallet and nonce once."""
    seen: dict[tuple[Pubkey, int], int] = {}
    allocations = []
    for number, allocation in lines:
        key = (allocation.wallet, allocation.nonce)
        if key in seen:
            raise UsageError(
                f"{path}, line {number}: wallet {allocation.wallet} with nonce {allocation.nonce} is in line "
                f"{seen[key]} already.",
                "Give its lines different nonces, or add them up.",
            )
        seen[key] = number
        allocations.append(allocation)
    if not allocations:
        raise UsageError(f"{path} has no allocation.", "Each line after the first is one.")
    return allocations


def _read_lines(path: Path, file: IO[str]) -> Iterator[tuple[int, Allocation]]:
    """(line number, allocation) of each line that is not empty."""
    reader = csv.reader(file, strict=True)
    header: list[str] | None = None
    try:
        for row in reader:
            if header is None:
                header = [name.strip() for name in row]
                _check_header(header)
            elif row:
                yield reader.line_num, _parse_row(header, row)
    except UnicodeDecodeError:
        raise
    except (csv.Error, ValueError) as error:
        raise UsageError(f"{path}, line {reader.line_num}: {error}.", "Mend the line.") from None
    except UsageError as error:
        raise UsageError(f"{path}, line {reader.line_num}: {error.what}", error.remedy) from None


def _check_header(header: list[str]) -> None:
    unknown = [name for name in header if name not in COLUMNS]
    missing = [name for name in _NEEDED if name not in header]
    if unknown or missing or len(set(header)) != len(header):
        problem = f"there is no column {missing[0]!r}" if missing else f"columns {', '.join(header)[:100]}"
        raise UsageError(f"{problem}.", _HEADER_REMEDY)


def _parse_row(header: list[str], row: list[str]) -> Allocation:
    """Raises ValueError, and UsageError for a number out of range."""
    if len(row) != len(header):
        raise ValueError(f"{len(row)} values for {len(header)} columns")
    values = dict(zip(header, (value.strip() for value in row), strict=True))
    try:
        wallet = Pubkey.from_string(values["wallet"])
    except ValueError:
        raise ValueError(f"{values['wallet']!r} is no public key") from None
    return Allocation(
        wallet,
        _parse_number(values, "amount"),
        _parse_number(values, "nonce"),
        _parse_start(values.get("start") or "0"),
        _parse_number(values, "duration"),
    )


def _parse_number(values: dict[str, str], name: str) -> int:
    text = values.get(name) or ("" if name in _NEEDED else "0")
    # int() takes more than digits of ASCII, and a number of any length
    if not re.fullmatch(r"[0-9]{1,20}", text):
        raise ValueError(f"{name} {text[:30]!r} is no whole number")
    return int(text)


def _parse_start(text: str) -> int:
    try:
        return parse_unix_timestamp(text[:40])
    except (ValueError, OverflowError):
        raise ValueError(f"start {text[:40]!r} is neither unix seconds nor ISO 8601") from None
