import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from psyche_py.errors import DataError
from psyche_py.model.errors import PeerModelError
from psyche_py.model.loader import (
    LoadedModel,
    build_for_peers,
    canonicalize_config,
    get_memory,
    load_from_config,
    load_from_directory,
)

MODELS = Path(__file__).parents[3] / "configs" / "models"
NANO = MODELS / "nano"


def load_from_tensors(
    config_json: bytes, files: dict[str, bytes], tensors: dict[str, torch.Tensor]
) -> LoadedModel:
    """As a receiver does it: built from names and shapes, filled through its memory."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    loaded = build_for_peers(config_json, shapes, files)
    for name, memory in get_memory(loaded).items():
        memory[:] = tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data
    return loaded


def _get_tensors(loaded: LoadedModel) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in loaded.model.named_parameters()}


def _save(loaded: LoadedModel, directory: Path) -> Path:
    directory.mkdir()
    save_file(_get_tensors(loaded), directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_bytes(loaded.config_json)
    return directory


def _are_equal(a: LoadedModel, b: LoadedModel) -> bool:
    one, two = _get_tensors(a), _get_tensors(b)
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(("name", "low", "high"), [("nano", 50e3, 150e3), ("llama-3m", 2.5e6, 4e6)])
def test_the_shipped_models_are_what_they_are_called(name: str, low: float, high: float) -> None:
    loaded = load_from_config(MODELS / name, 1)
    assert low < sum(p.numel() for p in loaded.model.parameters()) < high
    assert loaded.dtype == torch.float32
    assert loaded.model.config._attn_implementation == "sdpa"
    assert all(size % 64 == 0 for p in loaded.model.parameters() for size in p.shape)


def test_a_directory_a_config_and_tensors_give_the_same_model(tmp_path: Path) -> None:
    loaded = load_from_config(NANO / "config.json", 3)
    directory = _save(loaded, tmp_path / "model")
    (directory / "tokenizer.json").write_text("{}")

    from_directory = load_from_directory(directory)
    from_tensors = load_from_tensors(loaded.config_json, {"a": b"b"}, _get_tensors(loaded))

    assert _are_equal(loaded, from_directory)
    assert _are_equal(loaded, from_tensors)
    assert from_directory.files == {"tokenizer.json": b"{}"}
    assert from_tensors.files == {"a": b"b"}
    ids = torch.arange(8)[None]
    with torch.no_grad():
        expected = loaded.model.eval()(input_ids=ids).logits
        for other in (from_directory, from_tensors):
            torch.testing.assert_close(other.model.eval()(input_ids=ids).logits, expected, rtol=0, atol=0)


def test_tied_embeddings_stay_tied(tmp_path: Path) -> None:
    config = {**json.loads((NANO / "config.json").read_text()), "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = load_from_config(tmp_path, 3)
    assert "lm_head.weight" not in _get_tensors(loaded)
    for other in (
        load_from_tensors(loaded.config_json, {}, _get_tensors(loaded)),
        load_from_directory(_save(loaded, tmp_path / "model")),
    ):
        assert _are_equal(loaded, other)
        assert other.model.lm_head.weight is other.model.model.embed_tokens.weight


@pytest.mark.parametrize("kind", ["gpt2", "qwen2", "gpt_neox"])
def test_other_architectures_start_from_a_seed_too(tmp_path: Path, kind: str) -> None:
    sizes = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
        "intermediate_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 64,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, **sizes}))
    one, two = load_from_config(tmp_path, 5), load_from_config(tmp_path, 5)
    assert _are_equal(one, two)
    assert _are_equal(one, load_from_tensors(one.config_json, {}, _get_tensors(one)))


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"null", b"{}", b"\xff", b'{"model_type": "no-such-model"}', b'{"model_type": 3}',
        b'{"model_type": "llama", "hidden_size": "many"}', b'{"model_type": "llama", "hidden_size": 0}',
        b'{"model_type": "llama", "hidden_size": 63, "num_attention_heads": 2}',
        b" " * ((1 << 20) + 1), b"[" * 100_000,
    ],
)  # fmt: skip
def test_configurations_of_no_model_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(DataError):
        load_from_config(tmp_path, 1)
    with pytest.raises(PeerModelError):
        load_from_tensors(content, {}, {"model.norm.weight": torch.ones(2)})


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Cannot read the model configuration"):
        load_from_config(tmp_path, 1)
    with pytest.raises(DataError, match="Cannot read the model configuration"):
        load_from_directory(tmp_path)


def test_directories_with_wrong_weights_are_refused(tmp_path: Path) -> None:
    loaded = load_from_config(NANO, 3)
    directory = _save(loaded, tmp_path / "model")
    weights = directory / "model.safetensors"
    tensors = _get_tensors(loaded)

    missing = {name: tensor for name, tensor in tensors.items() if "q_proj" not in name}
    save_file(missing, weights, metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"do not fit its config\.json.*q_proj"):
        load_from_directory(directory)
    other = {**tensors, "model.norm.weight": torch.ones(32)}
    save_file(other, weights, metadata={"format": "pt"})
    with pytest.raises(DataError):
        load_from_directory(directory)
    weights.write_bytes(b"\xff" * 100)
    with pytest.raises(DataError, match="Cannot load the model"):
        load_from_directory(directory)
    weights.unlink()
    (directory / "pytorch_model.bin").write_bytes(b"a pickle")
    with pytest.raises(DataError, match="no safetensors"):
        load_from_directory(directory)


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": 1e9},
        {"num_labels": 10**9},
        {"hidden_size": 1 << 16},
        {"vocab_size": 1 << 40},
        {"auto_map": {"AutoModelForCausalLM": "evil--code"}},
        {"quantization_config": {"quant_method": "bitsandbytes"}},
        {"text_config": {"num_hidden_layers": 10**9}},
        {"model_type": "gpt2"},
    ],
)
def test_peers_cannot_make_us_build_something_else(change: dict[str, object]) -> None:
    loaded = load_from_config(NANO, 3)
    config = json.dumps({**json.loads(loaded.config_json), **change}).encode()
    with pytest.raises(PeerModelError):
        load_from_tensors(config, {}, _get_tensors(loaded))


def test_peers_tensors_must_be_those_of_the_configuration() -> None:
    loaded = load_from_config(NANO, 3)
    tensors = _get_tensors(loaded)
    for wrong in (
        {},
        {**tensors, "extra": torch.ones(1)},
        {**tensors, "model.norm.weight": torch.ones(32)},
        {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"},
    ):
        with pytest.raises(PeerModelError, match="tensors are not those"):
            load_from_tensors(loaded.config_json, {}, wrong)


LOAD_IN_THREADS = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from psyche_py.model.loader import load_from_config
with ThreadPoolExecutor(4) as pool:
    models = list(pool.map(lambda _: load_from_config(Path(sys.argv[1]), 1).model, range(4)))
sums = {float(sum(p.detach().abs().sum() for p in model.parameters())) for model in models}
assert len(sums) == 1, sums
"""


def test_several_threads_may_load_at_once() -> None:
    subprocess.run([sys.executable, "-c", LOAD_IN_THREADS, NANO], check=True)


def test_loading_looks_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model must not open sockets")

    loaded = load_from_config(NANO, 3)
    directory = _save(loaded, tmp_path / "model")
    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    load_from_config(NANO, 3)
    load_from_directory(directory)
    load_from_tensors(loaded.config_json, {}, _get_tensors(loaded))


def test_configurations_that_say_the_same_have_one_form() -> None:
    one = b'{"model_type": "llama", "eps": 1e-05, "a": {"z": 1, "b": [1, 2]}, "transformers_version": "1"}'
    two = b'{"a": {"b": [1, 2], "z": 1},\n "_name_or_path": "x", "eps": 0.00001, "model_type": "llama"}'
    assert (
        canonicalize_config(one) == canonicalize_config(two) == canonicalize_config(canonicalize_config(one))
    )
    assert canonicalize_config(one) != canonicalize_config(one.replace(b"1e-05", b"1e-06"))
    for bad in (b"", b"[]", b"\xff", b"[" * 100_000):
        with pytest.raises(DataError):
            canonicalize_config(bad)
