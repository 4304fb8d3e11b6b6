"""Text to token shards: train a byte-level BPE or take a tokenizer, encode, write.

Deterministic: the same text, tokenizer settings and library give the same bytes. Work is done in a directory
beside the target and renamed when whole, so that an interrupted run leaves nothing half-done, and shards that
are already there for the same input are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from psyche_py.data.atomic import replace_directory
from psyche_py.data.shards import FORMAT, META_FILE, TOKEN_DTYPES, ShardsMeta, get_shard_name
from psyche_py.data.text import find_text_files, iter_blocks
from psyche_py.data.tokenizer import (
    TOKENIZER_FILE,
    TextTokenizer,
    check_vocab_size,
    get_tokenizer_files,
    load_tokenizer,
    train_tokenizer,
)
from psyche_py.errors import DataError

MAX_SHARD_TOKENS = 1 << 26
BLOCKS_AT_ONCE = 8
Progress = Callable[[str, int, int], None]
"""``progress(what, done, total)``, in bytes of text."""


@dataclass(frozen=True)
class PreparedData:
    """Where the shards are and how much there is; ``was_there``: they were already made from this input."""

    directory: Path
    num_tokens: int
    vocab_size: int
    was_there: bool


def prepare_shards(
    texts: Sequence[Path],
    out: Path,
    *,
    vocab_size: int = 2048,
    tokenizer: Path | None = None,
    min_tokens: int = 2,
    max_shard_tokens: int = MAX_SHARD_TOKENS,
    progress: Progress = lambda what, done, total: None,
) -> PreparedData:
    """Make token shards of ``texts`` (files or directories) in the directory ``out``.

    ``tokenizer`` is a ``tokenizer.json`` or a directory that holds one; without it a byte-level BPE of
    ``vocab_size`` is trained on the text. ``min_tokens`` is what a sample needs (sequence length + 1).
    Raises DataError or StorageError; ``out`` is then as it was.
    """
    files = find_text_files(texts)
    if tokenizer is None:
        check_vocab_size(vocab_size)
    source = _hash_source(files, vocab_size, tokenizer, max_shard_tokens)
    prepared = _get_existing(out, source)
    if prepared is None:
        with replace_directory(out, "token shards", "Choose another --out.") as directory:
            if tokenizer is None:
                chosen = train_tokenizer(_iter_all(files, "training the tokenizer", progress), vocab_size)
            else:
                chosen = load_tokenizer(tokenizer)
            chunks = _cut(_iter_tokens(files, chosen, progress), max_shard_tokens)
            meta = _write(directory, chosen, chunks, source)
            prepared = PreparedData(out, sum(meta.shard_tokens), meta.vocab_size, was_there=False)
            _check_length(prepared, min_tokens)
    _check_length(prepared, min_tokens)
    return prepared


def _check_length(prepared: PreparedData, min_tokens: int) -> None:
    if prepared.num_tokens < min_tokens:
        raise DataError(
            f"The text is only {prepared.num_tokens} tokens long; a sequence needs {min_tokens}.",
            "Give more text, or train with a shorter max_seq_len.",
        )


def _hash_source(
    files: Sequence[Path], vocab_size: int, tokenizer: Path | None, max_shard_tokens: int
) -> str:
    """Names everything the shards follow from. Reading all text here finds unusable files early."""
    if tokenizer is None:
        settings, others = f"train {vocab_size}", []
    else:
        settings, others = "given", get_tokenizer_files(tokenizer)
    digest = hashlib.sha256(f"{FORMAT}|{settings}|{max_shard_tokens}".encode())
    for path in files:
        text = hashlib.sha256()
        for block in iter_blocks(path):
            text.update(block.encode())
        digest.update(text.digest())
    for path in others:
        digest.update(hashlib.sha256(_read(path)).digest())
    return digest.hexdigest()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}.", "Check its permissions.") from None


def _get_existing(out: Path, source: str) -> PreparedData | None:
    """Shards at ``out`` made from the same input. Raises DataError when something else is there."""
    if not (out / META_FILE).is_file():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise DataError(f"{out} exists and holds no shards.", "Choose another --out or remove it.")
        return None
    meta = ShardsMeta.read(out)
    sizes = [(out / get_shard_name(i), n * meta.token_bytes) for i, n in enumerate(meta.shard_tokens)]
    is_whole = all(path.is_file() and path.stat().st_size == size for path, size in sizes)
    if meta.source_hash != source or not is_whole or not (out / TOKENIZER_FILE).is_file():
        return None
    return PreparedData(out, sum(meta.shard_tokens), meta.vocab_size, was_there=True)


def _iter_all(files: Sequence[Path], what: str, progress: Progress) -> Iterator[str]:
    """The blocks of all files, with progress."""
    total, done = sum(path.stat().st_size for path in files), 0
    for path in files:
        for block in iter_blocks(path):
            progress(what, done, total)
            yield block
            done += len(block.encode())
    progress(what, total, total)


def _iter_tokens(files: Sequence[Path], tokenizer: TextTokenizer, progress: Progress) -> Iterator[np.ndarray]:
    """Token arrays, in order; each text is followed by the end token, when there is one."""
    total, done = sum(path.stat().st_size for path in files), 0
    end = np.array([] if tokenizer.end_id is None else [tokenizer.end_id], dtype=np.int64)
    for path in files:
        blocks = iter_blocks(path)
        while batch := list(islice(blocks, BLOCKS_AT_ONCE)):
            progress("encoding", done, total)
            for ids in tokenizer.encode(batch):
                yield np.array(ids, dtype=np.int64)
            done += sum(len(block.encode()) for block in batch)
        yield end
    progress("encoding", total, total)


def _cut(arrays: Iterator[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """The same tokens in arrays of ``size``; the last may be shorter."""
    waiting: list[np.ndarray] = []
    num_waiting = 0
    for array in arrays:
        waiting.append(array)
        num_waiting += len(array)
        while num_waiting >= size:
            joined = np.concatenate(waiting)
            yield joined[:size]
            waiting, num_waiting = [joined[size:]], num_waiting - size
    if num_waiting:
        yield np.concatenate(waiting)


def _write(
    directory: Path, tokenizer: TextTokenizer, chunks: Iterator[np.ndarray], source: str
) -> ShardsMeta:
    tokenizer.write(directory)
    vocab_size = tokenizer.vocab_size
    token_bytes = 2 if vocab_size <= 1 << 16 else 4
    shard_tokens: list[int] = []
    for tokens in chunks:
        path = directory / get_shard_name(len(shard_tokens))
        path.write_bytes(tokens.astype(TOKEN_DTYPES[token_bytes]).tobytes())
        shard_tokens.append(len(tokens))
    meta = ShardsMeta(
        format=FORMAT,
        token_bytes=token_bytes,
        vocab_size=vocab_size,
        shard_tokens=shard_tokens,
        tokenizer_hash=hashlib.sha256((directory / TOKENIZER_FILE).read_bytes()).hexdigest(),
        source_hash=source,
    )
    meta.write(directory)
    return meta
