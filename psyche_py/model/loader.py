"""Models: transformers' ``AutoModelForCausalLM`` from a directory, from a configuration and a seed, or from
the bytes peers sent. Nothing is downloaded or executed here: safetensors and JSON only.

Weights are float32 on every device: replicas then have one digest, and updates of ``lr`` are not lost in the
rounding of a shorter type. Computing in bfloat16 is the trainer's choice.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psyche_py.errors import DataError
from psyche_py.model.errors import PeerModelError

if TYPE_CHECKING:
    import torch

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
)
"""Files without weights or code that may travel with a model and end up in checkpoints."""
MAX_CONFIG_BYTES = 1 << 20
MAX_FILE_BYTES = 32 << 20
# a configuration from a peer may not make us build modules (or label tables) for minutes
MAX_NUM_MODULES = 1024
KEYS_THAT_COUNT = ("layer", "expert", "block", "label", "beam")
CONFIG_KEYS_WITHOUT_MEANING = ("_name_or_path", "transformers_version")
CONFIG_KEYS_WITH_CODE = ("auto_map", "custom_pipelines", "quantization_config")
USERS_OFFLINE = os.environ.get("HF_HUB_OFFLINE")
"""What the user wants for the Hub; this process is offline in any case (see ``hub``)."""
# transformers is imported lazily, and changes torch's default type and initialisers while it builds a model,
# for the whole process: one thread at a time
_lock = threading.RLock()
# what building a model from a configuration with impossible numbers ends in
CONFIG_ERRORS = (ValueError, TypeError, RuntimeError, AttributeError, ArithmeticError, AssertionError)


@dataclass
class LoadedModel:
    """A causal language model (float32), its configuration as JSON, and the small files that go with it."""

    model: torch.nn.Module
    config_json: bytes
    files: dict[str, bytes] = field(default_factory=dict)

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return next(self.model.parameters()).dtype


def load_from_directory(directory: Path) -> LoadedModel:
    """A model in Hugging Face's layout: ``config.json`` and safetensors. Raises DataError."""
    with _lock:
        return _load_from_directory(directory)


def _load_from_directory(directory: Path) -> LoadedModel:
    import torch
    from safetensors import SafetensorError

    config_json = _read_config(directory / "config.json")
    config = _make_config(config_json, f"{directory / 'config.json'}")
    if not list(directory.glob("*.safetensors")):
        raise DataError(f"There are no safetensors in {directory}.", "Convert the checkpoint to safetensors.")
    transformers = _import_transformers()
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            directory,
            config=config,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
            **_get_attention(config),
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise DataError(f"Cannot load the model at {directory}: {error}", "Check the directory.") from error
    wrong = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    if wrong:
        raise DataError(
            f"The weights at {directory} do not fit its config.json: {', '.join(wrong[:3])} and no more "
            f"than {len(wrong)} parameters are missing or of another shape.",
            "Check the directory.",
        )
    _check_supported(model)
    return LoadedModel(model, config_json, read_tokenizer_files(directory))


def load_from_config(path: Path, seed: int, tokenizer: Path | None = None) -> LoadedModel:
    """A freshly initialised model, bit-identical everywhere for one configuration and seed.

    ``path`` is a ``config.json`` or a directory with one; ``tokenizer`` a directory with the tokenizer that
    goes into checkpoints. Raises DataError.
    """
    from psyche_py.model.initialize import build_seeded

    file = path / "config.json" if path.is_dir() else path
    config_json = _read_config(file)
    with _lock:
        config = _make_config(config_json, str(file))
        try:
            model = build_seeded(partial(_make_model, config), seed)
        except CONFIG_ERRORS as error:
            raise DataError(f"{file} describes no model that can be built: {error}", "Check it.") from error
        _check_supported(model)
    files = read_tokenizer_files(tokenizer) if tokenizer is not None else {}
    return LoadedModel(model, config_json, files)


def build_for_peers(
    config_json: bytes, shapes: Mapping[str, Sequence[int]], files: Mapping[str, bytes] | None = None
) -> LoadedModel:
    """The model of a configuration from peers, its parameters float32 and yet to be filled (see get_memory).

    Names and shapes are compared with an unallocated model first, so that a configuration cannot claim more
    memory than the tensors that come with it. Raises PeerModelError.
    """
    with _lock:
        model = _build_for(config_json, shapes)
    return LoadedModel(model, config_json, dict(files or {}))


def get_memory(loaded: LoadedModel) -> dict[str, memoryview]:
    """The bytes of every parameter on the CPU, by name. What is written there is in the model.

    Raises DataError for a parameter that does not lie in one piece.
    """
    import torch

    memory: dict[str, memoryview] = {}
    for name, parameter in loaded.model.named_parameters():
        if not parameter.is_contiguous():
            raise DataError(f"The model's {name} is not contiguous.", "Use another architecture.")
        memory[name] = parameter.detach().reshape(-1).view(torch.uint8).numpy().data
    return memory


def canonicalize_config(config_json: bytes) -> bytes:
    """One form for all configurations that say the same: keys sorted, without what means nothing.

    Raises DataError for what is no JSON object.
    """
    try:
        values = json.loads(config_json)
    except (ValueError, RecursionError) as error:
        raise DataError(f"The model's configuration is no JSON: {error}", "Check its config.json.") from None
    if not isinstance(values, dict):
        raise DataError("The model's configuration is no JSON object.", "Check its config.json.")
    kept = {key: value for key, value in values.items() if key not in CONFIG_KEYS_WITHOUT_MEANING}
    return json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()


def _build_for(config_json: bytes, shapes: Mapping[str, Sequence[int]]) -> Any:
    """The model of a peer's configuration, without values, if its parameters have the given shapes."""
    import torch

    from psyche_py.model.initialize import build_unfilled

    try:
        _check_peer_config(json.loads(config_json))
        config = _make_config(config_json, "its configuration")
        with torch.device("meta"):
            expected = {name: tuple(p.shape) for name, p in _make_model(config).named_parameters()}
        if expected != {name: tuple(shape) for name, shape in shapes.items()}:
            raise PeerModelError("its tensors are not those of its configuration")
        model = build_unfilled(partial(_make_model, config))
        _check_supported(model)
    except (DataError, *CONFIG_ERRORS) as error:
        raise PeerModelError(f"its configuration is no model: {error}") from error
    return model


def read_tokenizer_files(directory: Path) -> dict[str, bytes]:
    """The small files that make a checkpoint usable, those that are there. Raises DataError."""
    files = {}
    for path in (directory / name for name in TOKENIZER_FILES):
        if path.is_file():
            if path.stat().st_size > MAX_FILE_BYTES:
                raise DataError(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB.", "Check the directory.")
            files[path.name] = path.read_bytes()
    return files


def _read_config(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise DataError(
            f"Cannot read the model configuration {path}: {error.strerror}.", "Check the path."
        ) from None
    if len(raw) > MAX_CONFIG_BYTES:
        raise DataError(f"{path} is too large for a model configuration.", "Check the path.")
    return raw


def _make_config(config_json: bytes, origin: str) -> Any:
    transformers = _import_transformers()
    try:
        values = json.loads(config_json)
        kind = values.pop("model_type")
        return transformers.AutoConfig.for_model(kind, **values)
    except Exception as error:  # transformers validates with error types of its own, by version
        raise DataError(
            f"{origin} is not a model configuration that transformers knows: {error!r}", "Check it."
        ) from error


def _check_peer_config(values: Any) -> None:
    """Raise DataError for a configuration that names code, or more modules than any model has."""
    if not isinstance(values, dict):
        raise DataError("it is no JSON object")
    for key, value in values.items():
        if key in CONFIG_KEYS_WITH_CODE and value is not None:
            raise DataError(f"it asks for code of its own ({key})")
        if isinstance(value, dict):
            _check_peer_config(value)
            continue
        counts = isinstance(value, int | float) and any(word in key for word in KEYS_THAT_COUNT)
        if counts and abs(value) > MAX_NUM_MODULES:
            raise DataError(f"{key} = {value} is beyond {MAX_NUM_MODULES}")


def _make_model(config: Any) -> Any:
    import torch

    transformers = _import_transformers()
    return transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, trust_remote_code=False, **_get_attention(config)
    )


def _get_attention(config: Any) -> dict[str, str]:
    """SDPA where the architecture has it, else plain attention; never a kernel from elsewhere."""
    transformers = _import_transformers()
    architecture = transformers.MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    has_sdpa = bool(getattr(architecture, "_supports_sdpa", False))
    return {"attn_implementation": "sdpa" if has_sdpa else "eager"}


def _check_supported(model: Any) -> None:
    """Raise DataError when the replicas of this model could differ in something no digest covers."""
    import torch

    state = set(model.state_dict(keep_vars=True))
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    if state - parameters:
        raise DataError(
            f"The model keeps state outside its parameters ({min(state - parameters)}), which would not be "
            "shared.",
            "Use another architecture.",
        )
    odd = [name for name, p in model.named_parameters() if p.dtype != torch.float32]
    if odd:
        raise DataError(f"The model's {odd[0]} is not of type float32.", "Use another architecture.")


def import_ahead() -> None:
    """Import what loading any model needs: seconds that need not be spent when it is asked for."""
    with _lock:
        transformers = _import_transformers()
        # its names are imported when they are used; a model's own file is small beside what these need
        for name in ("AutoModelForCausalLM", "PreTrainedModel", "GenerationMixin"):
            getattr(transformers, name)


def _import_transformers() -> Any:
    """Import on use (it takes seconds) and with downloads switched off. Only under the lock."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import transformers

    transformers.utils.logging.disable_progress_bar()
    return transformers
