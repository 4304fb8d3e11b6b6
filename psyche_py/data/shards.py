"""Token shards: flat little-endian token files and a ``meta.json``, memory-mapped.

    <directory>/meta.json        format, dtype, tokens per shard, vocabulary, tokenizer hash
    <directory>/shard-00000.bin  tokens, 2 or 4 bytes each, nothing else
    <directory>/tokenizer.json   the tokenizer the text was cut with

Sample i is a window of ``seq_len + 1`` tokens; windows start every ``seq_len`` tokens, so that each token is
predicted once. The order is a fixed permutation of the windows, since neighbours in a text would make a
batch of one speaker's words.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np

from psyche_py.errors import DataError

META_FILE = "meta.json"
FORMAT = "psyche-py/token-shards/1"
TOKEN_DTYPES: dict[int, np.dtype[Any]] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
MAX_META_BYTES = 1 << 20


@dataclass(frozen=True)
class ShardsMeta:
    """What ``meta.json`` says. ``source_hash`` names the text and tokenizer the shards were made from."""

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
        remedy = "Make shards with: run-manager data prepare TEXT --out DIRECTORY"
        try:
            raw = path.read_bytes()[: MAX_META_BYTES + 1]
            values: dict[str, Any] = json.loads(raw)
            meta = cls(**values)
        except OSError as error:
            raise DataError(f"Cannot read token shards at {directory}: {error.strerror}.", remedy) from None
        except (ValueError, TypeError) as error:
            raise DataError(f"{path} is not a shard description: {error}.", remedy) from None
        if meta.format != FORMAT or meta.token_bytes not in TOKEN_DTYPES:
            raise DataError(f"{path} is of another format ({meta.format!r}).", remedy)
        return meta

    def write(self, directory: Path) -> None:
        """Write ``meta.json``."""
        (directory / META_FILE).write_text(json.dumps(asdict(self), indent=1) + "\n")


class TokenShards:
    """A directory of shards as a :class:`~psyche_py.data.provider.DataProvider`."""

    def __init__(self, directory: Path, seq_len: int) -> None:
        self.directory = Path(directory)
        self.seq_len = seq_len
        self.meta = ShardsMeta.read(self.directory)
        dtype = TOKEN_DTYPES[self.meta.token_bytes]
        self._shards = [
            self._open(number, num_tokens, dtype) for number, num_tokens in enumerate(self.meta.shard_tokens)
        ]
        windows = [max((len(shard) - 1) // seq_len, 0) for shard in self._shards]
        self._ends = np.cumsum(windows)
        self._num_samples = int(self._ends[-1]) if windows else 0
        if self._num_samples == 0:
            raise DataError(
                f"The shards at {directory} are shorter than one sequence of {seq_len} tokens.",
                "Prepare more text, or train with a shorter max_seq_len.",
            )
        self._stride = _choose_stride(self._num_samples)

    def _open(self, number: int, num_tokens: int, dtype: np.dtype[Any]) -> np.ndarray:
        path = self.directory / get_shard_name(number)
        remedy = "Prepare the shards again."
        if not path.is_file():
            raise DataError(f"Shard {path} is missing.", remedy)
        if path.stat().st_size != num_tokens * dtype.itemsize:
            raise DataError(f"Shard {path} has not the {num_tokens} tokens its description names.", remedy)
        if num_tokens == 0:
            return np.zeros(0, dtype)
        return np.memmap(path, dtype=dtype, mode="r")

    @property
    def num_samples(self) -> int:
        """Number of windows in all shards."""
        return self._num_samples

    @property
    def vocab_size(self) -> int:
        """Size of the tokenizer's vocabulary."""
        return self.meta.vocab_size

    def get(self, sample_id: int) -> np.ndarray:
        """One sample, int64 ``[seq_len + 1]``. Ids beyond the last sample wrap around."""
        window = sample_id % self._num_samples * self._stride % self._num_samples
        shard = int(np.searchsorted(self._ends, window, side="right"))
        first = window - (int(self._ends[shard - 1]) if shard else 0)
        start = first * self.seq_len
        tokens = self._shards[shard][start : start + self.seq_len + 1].astype(np.int64)
        if int(tokens.max()) >= self.meta.vocab_size:
            raise DataError(
                f"Shard {shard} at {self.directory} has a token beyond its vocabulary.", "Prepare it again."
            )
        return tokens

    def get_batch(self, start: int, end: int) -> np.ndarray:
        """Samples ``start .. end`` (both included), int64 ``[B, seq_len + 1]``."""
        return np.stack([self.get(sample_id) for sample_id in range(start, end + 1)])


def get_shard_name(number: int) -> str:
    """File name of a shard."""
    return f"shard-{number:05d}.bin"


def _choose_stride(num: int) -> int:
    """A step near the golden section of ``num`` without common factor, so that multiples visit everything."""
    stride = max(int(num * 0.6180339887), 1)
    while gcd(stride, num) != 1:
        stride += 1
    return stride
