"""``run-manager data``."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def data() -> None:
    """Prepare training data."""


@data.command()
@click.argument("texts", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Directory for the shards.")
@click.option("--vocab-size", type=click.IntRange(257, 1 << 20), default=2048, show_default=True)
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path),
    help="A tokenizer.json, or a directory with one; without it a BPE is trained on the text.",
)
@click.option("--seq-len", type=click.IntRange(1), help="Check that the text fills a sequence this long.")
def prepare(
    texts: tuple[Path, ...], out: Path, vocab_size: int, tokenizer: Path | None, seq_len: int | None
) -> None:
    """Turn TEXTS (files, or directories of .txt and .md) into token shards.

    \b
    Examples:
      run-manager data prepare books/ --out shards/
      run-manager data prepare corpus.txt --out shards/ --tokenizer ~/models/llama
    """
    from psyche_py.data.prepare import prepare_shards

    shown: dict[str, int] = {}

    def progress(what: str, done: int, total: int) -> None:
        """A line for each tenth of a stage."""
        tenth = 10 * done // max(total, 1)
        if tenth > shown.get(what, -1):
            shown[what] = tenth
            click.echo(f"{what}: {10 * tenth} %", err=True)

    made = prepare_shards(
        list(texts),
        out,
        vocab_size=vocab_size,
        tokenizer=tokenizer,
        min_tokens=(seq_len or 1) + 1,
        progress=progress,
    )
    verb = "are there already" if made.was_there else "written"
    click.echo(f"{made.num_tokens} tokens, vocabulary {made.vocab_size}: shards {verb} at {made.directory}")
