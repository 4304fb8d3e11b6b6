"""The model digest: SHA-256 of a model's description, which names the SHA-256 of every leaf of its bytes.

Description, little-endian:

    domain "psyche-py/model-digest/3"
    u32 length, what else replicas must agree on (the client puts the model's configuration there)
    u32 tensors: each u16 name length, name, u8 dtype code, u8 dims, u64 x dims    (ascending by name)
    the leaves' digests, 32 bytes each, in the order of the tensors

A tensor's little-endian bytes are cut into leaves of 4 MiB, the last one shorter. So whoever has a
description that hashes to a digest knows the digest of every part of the model, and can take the parts from
anybody: `psyche_py.model.sharing` reads descriptions that peers sent.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from psyche_py.distro.errors import DistroError

DIGEST_DOMAIN = b"psyche-py/model-digest/3"
LEAF_BYTES = 1 << 22
DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def compute_model_digest(tensors: Mapping[str, Tensor], about: bytes = b"") -> bytes:
    """32 bytes that follow from names, types, shapes and bytes of all tensors, and from ``about``."""
    return hashlib.sha256(describe_model(tensors, about)).digest()


def describe_model(tensors: Mapping[str, Tensor], about: bytes = b"") -> bytes:
    """What the digest is the SHA-256 of. Leaves are hashed side by side on as many threads as torch uses.

    Raises DistroError for a tensor that is not of type float32, bfloat16 or float16.
    """
    parts = [DIGEST_DOMAIN, struct.pack("<I", len(about)), about, struct.pack("<I", len(tensors))]
    leaves: list[memoryview] = []
    digests: list[bytes] = []
    for name, data in sorted(tensors.items()):
        if data.dtype not in DTYPE_CODES:
            raise DistroError(f"{name} is {data.dtype}.", "Use float32, bfloat16 or float16.")
        encoded = name.encode()
        parts += [struct.pack("<H", len(encoded)), encoded]
        parts.append(struct.pack("<BB", DTYPE_CODES[data.dtype], data.dim()))
        parts.append(struct.pack(f"<{data.dim()}Q", *data.shape))
        leaves += cut_leaves(get_bytes(data))
        if data.device.type != "cpu":
            # its bytes are a copy: one tensor's at a time, not the whole model's
            digests += _hash_all(leaves)
            leaves.clear()
    return b"".join(parts + digests + _hash_all(leaves))


def get_bytes(tensor: Tensor) -> memoryview:
    """The tensor's memory, without a copy when it is contiguous on the CPU."""
    if sys.byteorder != "little":
        raise NotImplementedError("digests are of little-endian bytes; this machine is not")
    view: memoryview = tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8).numpy().data
    return view


def cut_leaves(raw: memoryview) -> list[memoryview]:
    """The leaves of one tensor's bytes."""
    return [raw[start : start + LEAF_BYTES] for start in range(0, len(raw), LEAF_BYTES)]


def _hash_all(leaves: list[memoryview]) -> list[bytes]:
    num_threads = min(torch.get_num_threads(), len(leaves))
    if num_threads > 1:
        with ThreadPoolExecutor(num_threads) as pool:
            return list(pool.map(hash_leaf, leaves))
    return [hash_leaf(leaf) for leaf in leaves]


def hash_leaf(leaf: bytes | memoryview) -> bytes:
    """Digest of a leaf. It starts with 0, a description with its domain: neither passes for the other."""
    hasher = hashlib.sha256(b"\0")
    hasher.update(leaf)
    return hasher.digest()
