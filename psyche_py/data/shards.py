"""Token shards: flat little-endian token files and a ``meta.json``, memory-mapped.

    <directory>/meta.json        format, bytes per token, tokens per shard, vocabulary, hashes
    <directory>/shard-00000.bin  tokens, 2 or 4 bytes each, nothing else
    <directory>/tokenizer.json   the tokenizer the text was cut with

Sample i is a window of ``seq_len + 1`` tokens; windows start every ``seq_len`` tokens of a shard, so that
each token is predicted once. Consecutive samples are not neighbours in the text: sample i is window
``i * stride mod num_samples``, the stride being near the golden section of ``num_samples`` and without common
factor. Any batch of consecutive numbers is then spread evenly over the whole text (a low-discrepancy
sequence), which a random permutation is not, and no table is needed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from psyche_py.data.provider import TokenArray
from psyche_py.errors import DataError

META_FILE = "meta.json"
FORMAT = "psyche-py/token-shards/1"
TOKEN_DTYPES: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
MAX_META_BYTES = 1 << 20
_REMEDY = "Make shards with: run-manager data prepare TEXT --out DIRECTORY"


@dataclass(frozen=True)
class ShardsMeta:
    """What ``meta.json`` says.

    token_bytes:     2 or 4 bytes per token
    vocab_size:      all tokens are below this
    shard_tokens:    tokens of each shard
    tokenizer_hash:  sha256 of ``tokenizer.json``, hex
    source_hash:     names the text and tokenizer the shards were made from
    """

    format: str
    token_bytes: int
    vocab_size: int
    shard_tokens: list[int]
    tokenizer_hash: str
    source_hash: str

    @classmethod
    def read(cls, directory: Path) -> ShardsMeta:
        """Raises DataError when the directory holds no shards of this format."""
        path = directory / META_FILE
        try:
            with path.open("rb") as file:
                raw = file.read(MAX_META_BYTES)
            values = json.loads(raw)
            meta = cls(**values)
        except OSError as error:
            raise DataError(f"Cannot read token shards at {directory}: {error.strerror}.", _REMEDY) from None
        except (ValueError, TypeError, RecursionError) as error:
            raise DataError(f"{path} is not a shard description: {error}.", _REMEDY) from None
        meta._check(path)
        return meta

    def _check(self, path: Path) -> None:
        if self.format != FORMAT:
            raise DataError(f"{path} is of another format ({self.format!r}).", _REMEDY)
        counts = self.shard_tokens
        is_sound = (
            self.token_bytes in TOKEN_DTYPES
            and type(self.vocab_size) is int
            and 0 < self.vocab_size <= 1 << 8 * self.token_bytes
            and isinstance(counts, list)
            and all(type(count) is int and count >= 0 for count in counts)
            and isinstance(self.tokenizer_hash, str)
            and isinstance(self.source_hash, str)
        )
        if not is_sound:
            raise DataError(f"{path} has impossible values.", _REMEDY)

    def write(self, directory: Path) -> None:
        """Write ``meta.json``."""
        (directory / META_FILE).write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


class TokenShards:
    """A directory of shards as a :class:`~psyche_py.data.provider.DataProvider`.

    Raises DataError when the directory, a shard or a token is not what the description says, or when no shard
    is as long as one sample.
    """

    def __init__(self, directory: Path, seq_len: int) -> None:
        if seq_len < 1:
            raise DataError(f"A sequence of {seq_len} tokens cannot be trained.", "Set max_seq_len.")
        self.directory = Path(directory)
        self._seq_len = seq_len
        self.meta = ShardsMeta.read(self.directory)
        dtype = TOKEN_DTYPES[self.meta.token_bytes]
        self._shards = [
            self._open(number, num_tokens, dtype) for number, num_tokens in enumerate(self.meta.shard_tokens)
        ]
        windows = [max((len(shard) - 1) // seq_len, 0) for shard in self._shards]
        self._ends: TokenArray = np.cumsum(windows, dtype=np.int64)
        self._num_samples = sum(windows)
        if self._num_samples == 0:
            longest = max((len(shard) for shard in self._shards), default=0)
            raise DataError(
                f"The shards at {directory} are shorter than one sequence: the longest has {longest} tokens, "
                f"a sequence needs {seq_len + 1}.",
                "Prepare more text, or train with a shorter max_seq_len.",
            )
        self._stride = choose_stride(self._num_samples)

    def _open(self, number: int, num_tokens: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        path = self.directory / get_shard_name(number)
        remedy = "Prepare the shards again."
        if not path.is_file():
            raise DataError(f"Shard {path} is missing.", remedy)
        if path.stat().st_size != num_tokens * dtype.itemsize:
            raise DataError(f"Shard {path} has not the {num_tokens} tokens its description names.", remedy)
        if num_tokens == 0:  # an empty file cannot be mapped
            return np.zeros(0, dtype)
        try:
            return np.memmap(path, dtype=dtype, mode="r")
        except OSError as error:
            raise DataError(f"Cannot read shard {path}: {error.strerror}.", "Check it.") from None

    @property
    def seq_len(self) -> int:
        """Tokens that are predicted per sample."""
        return self._seq_len

    @property
    def num_samples(self) -> int:
        """Number of windows in all shards."""
        return self._num_samples

    @property
    def vocab_size(self) -> int:
        """Size of the tokenizer's vocabulary."""
        return self.meta.vocab_size

    def get(self, sample_id: int) -> TokenArray:
        """One sample, int64 ``[seq_len + 1]``; ``sample_id >= 0``. Ids beyond the last sample wrap around."""
        if sample_id < 0:
            raise ValueError(f"sample ids are not negative: {sample_id}")
        window = int(sample_id) * self._stride % self._num_samples
        shard = int(np.searchsorted(self._ends, window, side="right"))
        start = (window - (int(self._ends[shard - 1]) if shard else 0)) * self._seq_len
        tokens: TokenArray = self._shards[shard][start : start + self._seq_len + 1].astype(np.int64)
        if int(tokens.max()) >= self.meta.vocab_size:
            raise DataError(
                f"{self.directory / get_shard_name(shard)} has a token beyond its vocabulary of "
                f"{self.meta.vocab_size}.",
                "Prepare the shards again.",
            )
        return tokens

    def get_batch(self, start: int, end: int) -> TokenArray:
        """Samples ``start .. end`` (both included), int64 ``[B, seq_len + 1]``."""
        if end < start:
            raise ValueError(f"a batch has at least one sample: {start}..{end}")
        return np.stack([self.get(sample_id) for sample_id in range(start, end + 1)])


def get_shard_name(number: int) -> str:
    """File name of a shard."""
    return f"shard-{number:05d}.bin"


def choose_stride(num: int) -> int:
    """A step near the golden section of ``num`` (>= 1) without common factor: its multiples visit all."""
    stride = max(num * 618_033_989 // 1_000_000_000, 1)
    while gcd(stride, num) != 1:
        stride += 1
    return stride
