"""Models: transformers' ``AutoModelForCausalLM`` from a directory, from a configuration and a seed, or from
the bytes peers sent. Nothing is ever downloaded or executed: safetensors and JSON only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psyche_py.errors import DataError

if TYPE_CHECKING:
    import torch

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
)
MAX_CONFIG_BYTES = 1 << 20


@dataclass
class LoadedModel:
    """A causal language model, its configuration as JSON, and the small files that go with it by name."""

    model: torch.nn.Module
    config_json: bytes
    files: dict[str, bytes] = field(default_factory=dict)


def load_from_directory(directory: Path) -> LoadedModel:
    """A model in Hugging Face's layout: ``config.json`` and safetensors. Raises DataError."""
    config_json = _read_config(directory / "config.json")
    config = _make_config(config_json, directory)
    if not list(directory.glob("*.safetensors")):
        raise DataError(f"There are no safetensors in {directory}.", "Convert the checkpoint to safetensors.")
    transformers = _import_transformers()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            directory,
            config=config,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            attn_implementation="sdpa",
            torch_dtype="float32",
        )
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"Cannot load the model at {directory}: {error}", "Check the directory.") from error
    return LoadedModel(model, config_json, read_tokenizer_files(directory))


def load_from_config(path: Path, seed: int, tokenizer: Path | None = None) -> LoadedModel:
    """A freshly initialised model, bit-identical everywhere for one configuration and seed.

    ``path`` is a ``config.json`` or a directory with one; ``tokenizer`` a directory with the tokenizer that
    goes into checkpoints. Raises DataError.
    """
    import torch

    file = path / "config.json" if path.is_dir() else path
    config_json = _read_config(file)
    config = _make_config(config_json, file)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _make_model(config)
    files = read_tokenizer_files(tokenizer) if tokenizer is not None else {}
    return LoadedModel(model, config_json, files)


def load_from_tensors(
    config_json: bytes, files: Mapping[str, bytes], tensors: Mapping[str, torch.Tensor]
) -> LoadedModel:
    """A model with the given parameters. Raises DataError when they do not fit its configuration."""
    import torch

    model = _make_model(_make_config(config_json, Path("config.json of the peers")))
    parameters = dict(model.named_parameters())
    if parameters.keys() != tensors.keys():
        raise DataError("The peers' model has other parameters than its configuration says.", "Ask others.")
    with torch.no_grad():
        for name, parameter in parameters.items():
            if parameter.shape != tensors[name].shape:
                raise DataError(f"The peers' parameter {name} has a wrong shape.", "Ask others.")
            parameter.data = tensors[name].clone()
    return LoadedModel(model, config_json, dict(files))


def read_tokenizer_files(directory: Path) -> dict[str, bytes]:
    """The small files that make a checkpoint usable, those that are there."""
    return {name: (directory / name).read_bytes() for name in TOKENIZER_FILES if (directory / name).is_file()}


def _read_config(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(
            f"Cannot read the model configuration {path}: {error.strerror}.", "Check the path."
        ) from None
    if len(raw) > MAX_CONFIG_BYTES:
        raise DataError(f"{path} is too large for a model configuration.", "Check the path.")
    return raw


def _make_config(config_json: bytes, origin: Path) -> Any:
    transformers = _import_transformers()
    try:
        values = json.loads(config_json)
        kind = values.pop("model_type")
        return transformers.AutoConfig.for_model(kind, **values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{origin} is not a model configuration transformers knows: {error}", "Check it."
        ) from error


def _make_model(config: Any) -> Any:
    import torch

    transformers = _import_transformers()
    return transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation="sdpa", torch_dtype=torch.float32, trust_remote_code=False
    )


def _import_transformers() -> Any:
    """Import on use (it takes seconds) and with downloads switched off."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import transformers

    return transformers
