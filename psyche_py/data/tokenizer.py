"""Tokenizers: train a byte-level BPE, or take one from a Hugging Face directory."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psyche_py.errors import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
# what goes along with a tokenizer, when it is there, so that checkpoints load with AutoTokenizer
SIDE_FILES = (TOKENIZER_CONFIG_FILE, "special_tokens_map.json")
END_OF_TEXT = "<|endoftext|>"
# separators of other model families, tried in this order when a tokenizer names no eos_token
KNOWN_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "<｜end▁of▁sentence｜>")
MIN_VOCAB_SIZE = 256 + 1
MAX_VOCAB_SIZE = 1 << 20


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer and what shards and checkpoints need of it.

    vocab_size:  all token ids are below this
    end_id:      the token put after each text, or None when there is none
    side_files:  further files of the tokenizer by name
    """

    tokenizer: Tokenizer
    end_id: int | None
    side_files: dict[str, bytes] = field(default_factory=dict)

    @property
    def vocab_size(self) -> int:
        """One more than the largest id (some tokenizers leave gaps)."""
        return max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, blocks: list[str]) -> list[list[int]]:
        """Token ids of each block, without beginning or end tokens."""
        encodings = self.tokenizer.encode_batch_fast(blocks, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def write(self, directory: Path) -> None:
        """Write ``tokenizer.json`` and the files beside it."""
        self.tokenizer.save(str(directory / TOKENIZER_FILE))
        for name, data in self.side_files.items():
            (directory / name).write_bytes(data)


def check_vocab_size(vocab_size: int) -> None:
    """Raise DataError unless a byte-level BPE can have ``vocab_size`` tokens."""
    if not MIN_VOCAB_SIZE <= vocab_size <= MAX_VOCAB_SIZE:
        raise DataError(
            f"A byte-level tokenizer has {MIN_VOCAB_SIZE} to {MAX_VOCAB_SIZE} tokens, not {vocab_size}.",
            "Choose another --vocab-size; a multiple of 64 keeps DisTrO's messages small.",
        )


def train_tokenizer(blocks: Iterable[str], vocab_size: int) -> TextTokenizer:
    """A byte-level BPE with ``END_OF_TEXT`` as token 0. The same text gives the same tokenizer.

    A short text may give fewer tokens than asked for. Raises DataError for an impossible size.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    check_vocab_size(vocab_size)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(blocks, trainer)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "unk_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
    }
    side_files = {TOKENIZER_CONFIG_FILE: (json.dumps(config, indent=2) + "\n").encode()}
    return TextTokenizer(tokenizer, tokenizer.token_to_id(END_OF_TEXT), side_files)


def find_tokenizer(path: Path) -> Path:
    """The ``tokenizer.json`` that ``path`` is or holds. Raises DataError without one."""
    file = path / TOKENIZER_FILE if path.is_dir() else path
    if not file.is_file():
        raise DataError(
            f"There is no {TOKENIZER_FILE} at {path}.", "Give a Hugging Face tokenizer directory."
        )
    return file


def get_tokenizer_files(path: Path) -> list[Path]:
    """``tokenizer.json`` and the files beside it that go along with it."""
    file = find_tokenizer(path)
    return [file, *(file.with_name(name) for name in SIDE_FILES if file.with_name(name).is_file())]


def load_tokenizer(path: Path) -> TextTokenizer:
    """The tokenizer at ``path``, a directory or a ``tokenizer.json``. Raises DataError."""
    from tokenizers import Tokenizer

    file, *beside = get_tokenizer_files(path)
    try:
        tokenizer = Tokenizer.from_file(str(file))
        side_files = {other.name: other.read_bytes() for other in beside}
    except OSError as error:
        raise DataError(f"Cannot read the tokenizer at {path}: {error.strerror}.", "Check it.") from None
    except Exception as error:  # tokenizers raises plain Exception for every malformed file
        raise DataError(f"{file} is not a tokenizer: {error}", "Give a fast tokenizer.") from error
    ends = [_get_named_end(side_files.get(TOKENIZER_CONFIG_FILE, b"{}")), *KNOWN_ENDS]
    ids = (tokenizer.token_to_id(end) for end in ends if end is not None)
    return TextTokenizer(tokenizer, next((i for i in ids if i is not None), None), side_files)


def _get_named_end(config_json: bytes) -> str | None:
    """``eos_token`` of a tokenizer_config.json: a string, or an object with ``content``."""
    try:
        config: Any = json.loads(config_json)
    except ValueError as error:
        raise DataError(f"{TOKENIZER_CONFIG_FILE} is not JSON: {error}", "Mend or remove it.") from None
    end = config.get("eos_token") if isinstance(config, dict) else None
    end = end.get("content") if isinstance(end, dict) else end
    return end if isinstance(end, str) else None
