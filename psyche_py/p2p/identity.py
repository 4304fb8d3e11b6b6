"""Who a peer is: a 32-byte ed25519 public key, its libp2p peer id, and its signatures.

A peer id of an ed25519 key is an identity multihash around the key (libp2p peer-ids spec), so both
directions are byte operations. Signing is libsodium's: it rejects small-order keys and non-canonical
signatures, hence one body has one signature per signer.
"""

from __future__ import annotations

import hashlib

from nacl.bindings import crypto_sign, crypto_sign_open, crypto_sign_seed_keypair
from nacl.exceptions import CryptoError

from psyche_py.p2p.errors import FrameError

KEY_BYTES = 32
SIGNATURE_BYTES = 64
SEED_DOMAIN = b"psyche-py/p2p-key/1"
_PEER_ID_PREFIX = bytes.fromhex("002408011220")  # identity multihash, 36 bytes, protobuf {Ed25519, 32 bytes}


def derive_p2p_seed(wallet_secret: bytes, run_id: str) -> bytes:
    """The 32-byte seed of the p2p key that belongs to a wallet (its 32 secret bytes) in one run.

    A hash, so that the process that holds the p2p key learns nothing about the wallet, and runs cannot
    be linked by their keys.
    """
    if len(wallet_secret) != KEY_BYTES:
        raise ValueError(f"a wallet secret has {KEY_BYTES} bytes, not {len(wallet_secret)}")
    return hashlib.sha256(SEED_DOMAIN + run_id.encode() + b"\0" + wallet_secret).digest()


def peer_id_from_key(key: bytes) -> bytes:
    """Bytes of the libp2p peer id of an ed25519 public key."""
    if len(key) != KEY_BYTES:
        raise ValueError(f"an ed25519 key has {KEY_BYTES} bytes, not {len(key)}")
    return _PEER_ID_PREFIX + key


def key_from_peer_id(peer_id: bytes) -> bytes | None:
    """The ed25519 key inside a peer id; None when it is of another kind."""
    if len(peer_id) != len(_PEER_ID_PREFIX) + KEY_BYTES or not peer_id.startswith(_PEER_ID_PREFIX):
        return None
    return peer_id[len(_PEER_ID_PREFIX) :]


class SigningKey:
    """An ed25519 key pair made from a 32-byte seed."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != KEY_BYTES:
            raise ValueError(f"a key seed has {KEY_BYTES} bytes, not {len(seed)}")
        self.public_key, self._secret = crypto_sign_seed_keypair(seed)

    def __repr__(self) -> str:
        return f"SigningKey({self.public_key.hex()[:12]})"

    def sign(self, message: bytes) -> bytes:
        """The 64-byte signature of ``message``."""
        signature: bytes = crypto_sign(message, self._secret)[:SIGNATURE_BYTES]
        return signature


def verify(key: bytes, signature: bytes, message: bytes) -> None:
    """Check an ed25519 signature. Raises FrameError."""
    if len(key) != KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        raise FrameError("A key or signature has the wrong length.")
    try:
        crypto_sign_open(signature + message, key)
    except CryptoError:
        raise FrameError("The signature is wrong.") from None
