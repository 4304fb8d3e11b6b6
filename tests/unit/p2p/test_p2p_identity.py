"""Keys, peer ids and signatures."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest

from psyche_py.p2p.errors import FrameError
from psyche_py.p2p.identity import (
    SigningKey,
    derive_p2p_seed,
    key_from_peer_id,
    peer_id_from_key,
    verify,
)


def test_seed_depends_on_wallet_and_run() -> None:
    seeds = {derive_p2p_seed(bytes([b]) * 32, run) for b in (1, 2) for run in ("a", "b")}
    assert len(seeds) == 4
    expected = hashlib.sha256(b"psyche-py/p2p-key/1" + b"run" + b"\0" + bytes(32)).digest()
    assert derive_p2p_seed(bytes(32), "run") == expected
    with pytest.raises(ValueError, match="32 bytes"):
        derive_p2p_seed(bytes(64), "run")


def test_peer_id_is_the_key_in_an_envelope() -> None:
    key = SigningKey(bytes(32)).public_key
    assert peer_id_from_key(key).hex() == "002408011220" + key.hex()
    assert key_from_peer_id(peer_id_from_key(key)) == key
    for other in (b"", bytes(38), b"\x12\x20" + bytes(32), peer_id_from_key(key) + b"\0"):
        assert key_from_peer_id(other) is None
    with pytest.raises(ValueError, match="32 bytes"):
        peer_id_from_key(b"short")


def test_rfc_8032_vector() -> None:
    seed = bytes.fromhex("c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7")
    key = SigningKey(seed)
    assert key.public_key.hex() == "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025"
    assert key.sign(bytes.fromhex("af82")).hex() == (
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
        "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
    )
    verify(key.public_key, key.sign(b"x"), b"x")
    assert key.public_key.hex()[:12] in repr(key)
    assert seed.hex() not in repr(key)


def test_wrong_signatures_are_refused() -> None:
    key, other = SigningKey(bytes(32)), SigningKey(b"\1" * 32)
    signature = key.sign(b"x")
    flipped = bytes([signature[0] ^ 1]) + signature[1:]
    for public_key, given in (
        (other.public_key, signature),
        (key.public_key, flipped),
        (bytes(32), signature),
    ):
        with pytest.raises(FrameError):
            verify(public_key, given, b"x")
    with pytest.raises(FrameError):
        verify(key.public_key, signature, b"y")
    with pytest.raises(FrameError):
        verify(key.public_key, signature[:63], b"x")


def test_signatures_are_not_malleable() -> None:
    """S + L verifies in a careless implementation; then one announcement would have two encodings."""
    order = 2**252 + 27742317777372353535851937790883648493
    key = SigningKey(bytes(32))
    signature = key.sign(b"x")
    other_s = int.from_bytes(signature[32:], "little") + order
    with pytest.raises(FrameError):
        verify(key.public_key, signature[:32] + other_s.to_bytes(32, "little"), b"x")


def test_importing_the_package_does_not_import_libp2p() -> None:
    code = (
        "import sys, psyche_py.p2p, psyche_py.p2p.libp2p_adapter, psyche_py.p2p.memory;"
        "bad = {'libp2p', 'torch', 'solders', 'solana'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
