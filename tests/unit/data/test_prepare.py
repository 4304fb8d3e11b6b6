import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from psyche_py.data.prepare import prepare_shards
from psyche_py.data.shards import ShardsMeta, TokenShards
from psyche_py.data.tokenizer import END_OF_TEXT, load_tokenizer
from psyche_py.errors import DataError, StorageError

LINES = "".join(f"Line {i}: the quality of mercy is not strained, it droppeth {i * i}.\n" for i in range(300))


def _write_texts(directory: Path) -> Path:
    directory.mkdir()
    (directory / "a.txt").write_text(LINES)
    (directory / "b.md").write_text("# Zwei\n\nÄöü ☃ 😀\n" + LINES[:500])
    return directory


def _hash_files(directory: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(directory.iterdir())}


def _read_tokens(directory: Path) -> list[int]:
    raw = b"".join(p.read_bytes() for p in sorted(directory.glob("*.bin")))
    return np.frombuffer(raw, "<u2").tolist()


def test_shards_decode_to_the_text(tmp_path: Path) -> None:
    texts = _write_texts(tmp_path / "texts")
    seen: list[tuple[str, int, int]] = []

    prepared = prepare_shards(
        [texts], tmp_path / "out", vocab_size=320, progress=lambda *args: seen.append(args)
    )

    meta = ShardsMeta.read(tmp_path / "out")
    tokens = _read_tokens(tmp_path / "out")
    tokenizer = load_tokenizer(tmp_path / "out")
    assert prepared.vocab_size == meta.vocab_size == 320
    assert prepared.num_tokens == len(tokens) == sum(meta.shard_tokens)
    end = tokenizer.end_id
    assert end == 0
    assert tokens.count(end) == 2
    assert tokens[-1] == end
    first = tokens[: tokens.index(end)]
    assert tokenizer.tokenizer.decode(first) == LINES
    assert tokenizer.tokenizer.decode(tokens[tokens.index(end) + 1 : -1]) == (texts / "b.md").read_text()
    assert {what for what, _, _ in seen} == {"training the tokenizer", "encoding"}
    assert all(0 <= done <= total for _, done, total in seen)


def test_preparing_again_reuses_and_a_change_makes_anew(tmp_path: Path) -> None:
    texts = _write_texts(tmp_path / "texts")
    out = tmp_path / "out"
    assert not prepare_shards([texts], out, vocab_size=320).was_there
    made = (out / "meta.json").stat().st_mtime_ns
    assert prepare_shards([texts], out, vocab_size=320).was_there
    assert (out / "meta.json").stat().st_mtime_ns == made

    assert not prepare_shards([texts], out, vocab_size=300).was_there
    (out / "shard-00000.bin").write_bytes(b"cut short")
    assert not prepare_shards([texts], out, vocab_size=300).was_there
    (texts / "a.txt").write_text(LINES + "more\n")
    assert not prepare_shards([texts], out, vocab_size=300).was_there
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_another_process_makes_the_same_bytes(tmp_path: Path) -> None:
    texts = _write_texts(tmp_path / "texts")
    prepare_shards([texts], tmp_path / "one", vocab_size=400)
    code = (
        "import sys; from pathlib import Path; from psyche_py.data.prepare import prepare_shards;"
        "prepare_shards([Path(sys.argv[1])], Path(sys.argv[2]), vocab_size=400)"
    )
    subprocess.run(
        [sys.executable, "-c", code, texts, tmp_path / "two"],
        check=True,
        env={"PYTHONHASHSEED": "7", "RAYON_NUM_THREADS": "1", "PATH": ""},
    )
    assert _hash_files(tmp_path / "one") == _hash_files(tmp_path / "two")


def test_a_given_tokenizer_is_taken_with_its_files(tmp_path: Path) -> None:
    texts = _write_texts(tmp_path / "texts")
    prepare_shards([texts], tmp_path / "one", vocab_size=320)
    config = tmp_path / "one" / "tokenizer_config.json"
    config.write_text(json.dumps({"eos_token": {"content": END_OF_TEXT}, "tokenizer_class": "X"}))

    prepare_shards([texts], tmp_path / "two", tokenizer=tmp_path / "one")
    prepare_shards([texts], tmp_path / "three", tokenizer=tmp_path / "one" / "tokenizer.json")

    assert _read_tokens(tmp_path / "two") == _read_tokens(tmp_path / "one")
    assert _read_tokens(tmp_path / "three") == _read_tokens(tmp_path / "one")
    assert json.loads((tmp_path / "two" / "tokenizer_config.json").read_text())["tokenizer_class"] == "X"


def test_many_small_shards_hold_the_same_tokens(tmp_path: Path) -> None:
    texts = _write_texts(tmp_path / "texts")
    prepare_shards([texts], tmp_path / "one", vocab_size=320)
    prepare_shards([texts], tmp_path / "many", vocab_size=320, max_shard_tokens=1000)

    meta = ShardsMeta.read(tmp_path / "many")
    assert len(meta.shard_tokens) > 5
    assert set(meta.shard_tokens[:-1]) == {1000}
    assert _read_tokens(tmp_path / "many") == _read_tokens(tmp_path / "one")
    assert TokenShards(tmp_path / "many", 64).num_samples == sum((n - 1) // 64 for n in meta.shard_tokens)


def test_text_shorter_than_a_sequence_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("To be.\n")
    with pytest.raises(DataError, match="a sequence needs 257") as caught:
        prepare_shards([tmp_path / "a.txt"], tmp_path / "out", vocab_size=300, min_tokens=257)
    assert "max_seq_len" in caught.value.remedy
    assert not (tmp_path / "out").exists()
    # the same holds when the shards are there from a run with shorter sequences
    prepare_shards([tmp_path / "a.txt"], tmp_path / "out", vocab_size=300)
    with pytest.raises(DataError, match="a sequence needs 257"):
        prepare_shards([tmp_path / "a.txt"], tmp_path / "out", vocab_size=300, min_tokens=257)


def test_other_peoples_directories_are_left_alone(tmp_path: Path) -> None:
    texts = _write_texts(tmp_path / "texts")
    with pytest.raises(DataError, match="holds no shards"):
        prepare_shards([texts], texts, vocab_size=300)
    (tmp_path / "empty").mkdir()
    assert not prepare_shards([texts], tmp_path / "empty", vocab_size=300).was_there


@pytest.mark.parametrize("vocab_size", [0, 256, 1 << 21])
def test_impossible_vocabularies_are_refused(tmp_path: Path, vocab_size: int) -> None:
    texts = _write_texts(tmp_path / "texts")
    with pytest.raises(DataError, match="byte-level tokenizer"):
        prepare_shards([texts], tmp_path / "out", vocab_size=vocab_size)


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"model": 3}'])
def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path, content: bytes) -> None:
    texts = _write_texts(tmp_path / "texts")
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(DataError, match="is not a tokenizer"):
        prepare_shards([texts], tmp_path / "out", tokenizer=tmp_path)
    with pytest.raises(DataError, match=r"no tokenizer\.json"):
        prepare_shards([texts], tmp_path / "out", tokenizer=texts)
    assert not (tmp_path / "out").exists()


def test_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("für".encode("latin-1"))
    with pytest.raises(DataError, match=r"latin\.txt is not UTF-8"):
        prepare_shards([tmp_path], tmp_path / "out", vocab_size=300)


def test_an_unwritable_place_is_a_storage_error(tmp_path: Path) -> None:
    texts = _write_texts(tmp_path / "texts")
    with pytest.raises(StorageError, match="Cannot write token shards"):
        prepare_shards([texts], texts / "a.txt" / "out", vocab_size=300)
