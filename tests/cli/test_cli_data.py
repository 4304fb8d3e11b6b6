"""``run-manager data prepare`` from text to shards that the trainer reads."""

from __future__ import annotations

from pathlib import Path

from cli_process import ROOT, Cli

from psyche_py.data.shards import TokenShards

USAGE = 2


def _make_text(cli: Cli) -> Path:
    path = cli.home / "books" / "licence.txt"
    path.parent.mkdir()
    path.write_text((ROOT / "LICENSE").read_text())
    return path.parent


def test_text_becomes_shards_that_decode_to_it(cli: Cli) -> None:
    books = _make_text(cli)
    done = cli("data", "prepare", books, "--out", "shards", "--vocab-size", 512)
    assert done.code == 0, done.err
    shards = TokenShards(cli.home / "shards", 32)
    assert f"{sum(shards.meta.shard_tokens)} tokens" in done.out
    tokenizer = _load_tokenizer(cli.home / "shards")
    text = tokenizer.decode([int(token) for token in shards.get(0)])
    assert "Apache License" in text


def _load_tokenizer(directory: Path):  # type: ignore[no-untyped-def]
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(directory / "tokenizer.json"))


def test_second_time_keeps_what_is_there(cli: Cli) -> None:
    books = _make_text(cli)
    arguments = ("data", "prepare", books, "--out", "shards", "--vocab-size", 512)
    assert cli(*arguments).code == 0
    before = {path.name: path.stat().st_mtime_ns for path in (cli.home / "shards").iterdir()}
    assert "there already" in cli(*arguments).out
    assert {path.name: path.stat().st_mtime_ns for path in (cli.home / "shards").iterdir()} == before


def test_tokenizer_of_another_model_is_used(cli: Cli) -> None:
    books = _make_text(cli)
    assert cli("data", "prepare", books, "--out", "first", "--vocab-size", 300).code == 0
    done = cli("data", "prepare", books, "--out", "second", "--tokenizer", "first")
    assert "vocabulary 300" in done.out, done.err


def test_text_shorter_than_a_sequence_leaves_nothing(cli: Cli) -> None:
    books = _make_text(cli)
    done = cli("data", "prepare", books, "--out", "shards", "--vocab-size", 512, "--seq-len", 100_000)
    assert done.code == USAGE
    assert "100001" in done.err
    assert "shorter max_seq_len" in done.err
    assert not (cli.home / "shards").exists()


def test_text_that_is_not_there(cli: Cli) -> None:
    done = cli("data", "prepare", "none.txt", "--out", "shards")
    assert done.code == USAGE
    assert "none.txt" in done.err
    assert not (cli.home / "shards").exists()
