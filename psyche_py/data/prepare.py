"""Text to token shards: train a byte-level BPE or take a tokenizer, encode, write.

Deterministic: the same text, tokenizer settings and library give the same bytes. Work is done in a temporary
directory beside the target and renamed when whole, so that an interrupted run leaves nothing half-done, and
shards that are already there for the same input are kept.
"""

from __future__ import annotations

import errno
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from psyche_py.data.shards import FORMAT, TOKEN_DTYPES, ShardsMeta, get_shard_name
from psyche_py.data.text import find_text_files
from psyche_py.errors import DataError, StorageError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_FILE = "tokenizer.json"
END_OF_TEXT = "<|endoftext|>"
MAX_SHARD_TOKENS = 1 << 26
Progress = Callable[[str, int, int], None]
"""``progress(what, done, total)``."""


@dataclass(frozen=True)
class PreparedData:
    """Where the shards are and how much there is."""

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
    progress: Progress = lambda what, done, total: None,
) -> PreparedData:
    """Make token shards of ``texts`` (files or directories) in the directory ``out``.

    ``tokenizer`` is a ``tokenizer.json`` or a directory that holds one; without it a byte-level BPE of
    ``vocab_size`` is trained on the text. Raises DataError or StorageError; ``out`` is then as it was.
    """
    files = find_text_files(texts)
    source_hash = _hash_source(files, vocab_size, tokenizer)
    known = _get_existing(out, source_hash)
    if known is not None:
        return known
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        meta = _write(files, temporary, vocab_size, tokenizer, source_hash, progress)
        num_tokens = sum(meta.shard_tokens)
        if num_tokens < min_tokens:
            raise DataError(
                f"The text is only {num_tokens} tokens long, {min_tokens} are needed.", "Give more text."
            )
        _replace(temporary, out)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(f"The disk is full: cannot write shards to {out}.", "Free space.") from error
        raise StorageError(
            f"Cannot write shards to {out}: {error.strerror}.", "Choose another --out."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return PreparedData(out, num_tokens, meta.vocab_size, was_there=False)


def _hash_source(files: Sequence[Path], vocab_size: int, tokenizer: Path | None) -> str:
    digest = hashlib.sha256(f"{FORMAT}|{vocab_size if tokenizer is None else ''}".encode())
    for path in [*files, *([_find_tokenizer(tokenizer)] if tokenizer is not None else [])]:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _find_tokenizer(path: Path) -> Path:
    file = path / TOKENIZER_FILE if path.is_dir() else path
    if not file.is_file():
        raise DataError(
            f"There is no {TOKENIZER_FILE} at {path}.", "Give a Hugging Face tokenizer directory."
        )
    return file


def _get_existing(out: Path, source_hash: str) -> PreparedData | None:
    if not (out / "meta.json").is_file():
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise DataError(f"{out} exists and holds no shards.", "Choose another --out or remove it.")
        return None
    meta = ShardsMeta.read(out)
    if meta.source_hash != source_hash:
        return None
    return PreparedData(out, sum(meta.shard_tokens), meta.vocab_size, was_there=True)


def _write(
    files: Sequence[Path],
    directory: Path,
    vocab_size: int,
    tokenizer_path: Path | None,
    source_hash: str,
    progress: Progress,
) -> ShardsMeta:
    tokenizer = _get_tokenizer(files, vocab_size, tokenizer_path, progress)
    target = directory / TOKENIZER_FILE
    tokenizer.save(str(target))
    size = tokenizer.get_vocab_size()
    token_bytes = 2 if size <= 1 << 16 else 4
    shard_tokens = [
        _write_shard(directory / get_shard_name(number), tokens, token_bytes)
        for number, tokens in enumerate(_encode(files, tokenizer, progress))
    ]
    meta = ShardsMeta(
        format=FORMAT,
        token_bytes=token_bytes,
        vocab_size=size,
        shard_tokens=shard_tokens,
        tokenizer_hash=hashlib.sha256(target.read_bytes()).hexdigest(),
        source_hash=source_hash,
    )
    meta.write(directory)
    return meta


def _get_tokenizer(
    files: Sequence[Path], vocab_size: int, path: Path | None, progress: Progress
) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if path is not None:
        return Tokenizer.from_file(str(_find_tokenizer(path)))
    progress("training the tokenizer", 0, 1)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((_read(path) for path in files), trainer, length=len(files))
    progress("training the tokenizer", 1, 1)
    return tokenizer


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error.reason}.", "Convert it first.") from None


def _encode(files: Sequence[Path], tokenizer: Tokenizer, progress: Progress) -> Iterator[np.ndarray]:
    """Token arrays of at most MAX_SHARD_TOKENS; texts are separated by the end-of-text token."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    separator = [] if end is None else [end]
    waiting: list[np.ndarray] = []
    num_waiting = 0
    for number, path in enumerate(files):
        progress("encoding", number, len(files))
        ids = np.array(tokenizer.encode(_read(path)).ids + separator, dtype=np.int64)
        waiting.append(ids)
        num_waiting += len(ids)
        while num_waiting >= MAX_SHARD_TOKENS:
            joined = np.concatenate(waiting)
            yield joined[:MAX_SHARD_TOKENS]
            waiting, num_waiting = [joined[MAX_SHARD_TOKENS:]], len(joined) - MAX_SHARD_TOKENS
    progress("encoding", len(files), len(files))
    if num_waiting:
        yield np.concatenate(waiting)


def _write_shard(path: Path, tokens: np.ndarray, token_bytes: int) -> int:
    path.write_bytes(tokens.astype(TOKEN_DTYPES[token_bytes]).tobytes())
    return len(tokens)


def _replace(temporary: Path, out: Path) -> None:
    temporary.chmod(0o755)
    if out.exists():
        old = out.with_name(f".{out.name}-old")
        shutil.rmtree(old, ignore_errors=True)
        out.rename(old)
        temporary.rename(out)
        shutil.rmtree(old)
    else:
        temporary.rename(out)
