import json
from itertools import pairwise
from math import gcd
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_py.data.shards import FORMAT, ShardsMeta, TokenShards, choose_stride
from psyche_py.errors import DataError


def _write(directory: Path, shards: list[list[int]], *, vocab_size: int = 1000, token_bytes: int = 2) -> Path:
    directory.mkdir(exist_ok=True)
    for number, tokens in enumerate(shards):
        data = np.array(tokens, dtype=f"<u{token_bytes}").tobytes()
        (directory / f"shard-{number:05d}.bin").write_bytes(data)
    ShardsMeta(FORMAT, token_bytes, vocab_size, [len(s) for s in shards], "00", "11").write(directory)
    return directory


@pytest.mark.parametrize("token_bytes", [2, 4])
def test_every_window_is_a_sample_once_and_ids_wrap(tmp_path: Path, token_bytes: int) -> None:
    directory = _write(
        tmp_path, [list(range(50)), [], list(range(100, 109)), list(range(200, 233))], token_bytes=token_bytes
    )
    shards = TokenShards(directory, 8)

    assert shards.num_samples == 6 + 1 + 4
    samples = [shards.get(i) for i in range(shards.num_samples)]
    assert all(sample.dtype == np.int64 and sample.shape == (9,) for sample in samples)
    starts = sorted(int(sample[0]) for sample in samples)
    assert starts == [0, 8, 16, 24, 32, 40, 100, 200, 208, 216, 224]
    assert all((np.diff(sample) == 1).all() for sample in samples)
    for sample_id in (0, 3, 10):
        np.testing.assert_array_equal(shards.get(sample_id + 11 * 10**15), shards.get(sample_id))
    np.testing.assert_array_equal(shards.get_batch(4, 7), np.stack(samples[4:8]))
    np.testing.assert_array_equal(shards.get_batch(2**63, 2**63)[0], shards.get(2**63 % 11))


def test_successive_samples_are_not_neighbours(tmp_path: Path) -> None:
    shards = TokenShards(_write(tmp_path, [list(range(65 * 8))], vocab_size=65 * 8), 8)
    starts = [int(shards.get(i)[0]) for i in range(shards.num_samples)]
    assert min(abs(a - b) for a, b in pairwise(starts)) > 8 * 8


@given(st.integers(1, 10**12))
def test_the_stride_has_no_common_factor(num: int) -> None:
    assert gcd(choose_stride(num), num) == 1


def test_a_shard_shorter_than_a_sequence_is_refused_with_the_remedy(tmp_path: Path) -> None:
    directory = _write(tmp_path, [list(range(8)), list(range(5))])
    with pytest.raises(DataError, match="the longest has 8 tokens, a sequence needs 9") as caught:
        TokenShards(directory, 8)
    assert "max_seq_len" in caught.value.remedy
    assert TokenShards(directory, 7).num_samples == 1
    with pytest.raises(DataError):
        TokenShards(_write(tmp_path / "none", []), 8)
    with pytest.raises(DataError):
        TokenShards(directory, 0)


def test_negative_ids_and_empty_batches_are_programming_errors(tmp_path: Path) -> None:
    shards = TokenShards(_write(tmp_path, [list(range(50))]), 8)
    with pytest.raises(ValueError, match="not negative"):
        shards.get(-1)
    with pytest.raises(ValueError, match="at least one"):
        shards.get_batch(3, 2)


def test_a_token_beyond_the_vocabulary_is_found(tmp_path: Path) -> None:
    shards = TokenShards(_write(tmp_path, [[1, 2, 999, 4]], vocab_size=999), 3)
    with pytest.raises(DataError, match="beyond its vocabulary"):
        shards.get(0)


def test_files_that_are_missing_or_of_another_size_are_found(tmp_path: Path) -> None:
    directory = _write(tmp_path, [list(range(50))])
    (directory / "shard-00000.bin").write_bytes(b"\0" * 99)
    with pytest.raises(DataError, match="has not the 50 tokens"):
        TokenShards(directory, 8)
    (directory / "shard-00000.bin").unlink()
    with pytest.raises(DataError, match="is missing"):
        TokenShards(directory, 8)
    with pytest.raises(DataError, match="run-manager data prepare"):
        TokenShards(tmp_path / "nowhere", 8)


_GOOD = {
    "format": FORMAT,
    "token_bytes": 2,
    "vocab_size": 10,
    "shard_tokens": [5],
    "tokenizer_hash": "",
    "source_hash": "",
}


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other/1"},
        {"token_bytes": 3},
        {"token_bytes": "2"},
        {"vocab_size": 0},
        {"vocab_size": 65537},
        {"vocab_size": True},
        {"shard_tokens": "5"},
        {"shard_tokens": [-1]},
        {"shard_tokens": [1.5]},
        {"tokenizer_hash": None},
        {"extra": 1},
    ],
)
def test_descriptions_with_impossible_values_are_refused(tmp_path: Path, change: dict[str, object]) -> None:
    (tmp_path / "meta.json").write_text(json.dumps({**_GOOD, **change}))
    with pytest.raises(DataError):
        ShardsMeta.read(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 10_000, b"3"])
def test_descriptions_that_are_not_json_objects_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "meta.json").write_bytes(content)
    with pytest.raises(DataError):
        ShardsMeta.read(tmp_path)
