"""Instructions and accounts against bytes made by hand from the contract's layout."""

from __future__ import annotations

import hashlib
import struct
import subprocess
import sys

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_py.chain.accounts import Authorization, CoordinatorInstance, Participant, Run
from psyche_py.chain.anchor import find_program, get_program
from psyche_py.chain.artifacts import PROGRAM_NAMES, get_program_id
from psyche_py.chain.port import AccountInfo
from psyche_py.coordinator.layout import CONFIG, METADATA, MODEL
from psyche_py.coordinator.model import Metadata
from psyche_py.errors import ChainError

A, B, C, D = (Pubkey([n] * 32) for n in (1, 2, 3, 4))


def tag(name: str) -> bytes:
    return hashlib.sha256(f"global:{name}".encode()).digest()[:8]


def test_init_coordinator_bytes_and_metas() -> None:
    accounts = {"payer": A, "instance": B, "coordinator_account": C, "system_program": D}
    args = {"main_authority": A, "join_authority": B, "run_id": "rün", "client_version": ""}
    instruction = get_program("coordinator").encode("init_coordinator", accounts, args)
    expected = (
        tag("init_coordinator") + bytes(A) + bytes(B) + struct.pack("<I", 4) + "rün".encode() + bytes(4)
    )
    assert bytes(instruction.data) == expected
    assert instruction.program_id == get_program_id("coordinator")
    flags = [(meta.pubkey, meta.is_signer, meta.is_writable) for meta in instruction.accounts]
    assert flags == [(A, True, True), (B, False, True), (C, True, True), (D, False, False)]


def test_structs_travel_as_their_packed_bytes() -> None:
    config, model = bytes(range(128)), bytes(MODEL.itemsize)
    metadata = Metadata("name", "text", 7, 9).to_bytes()
    args = {"metadata": metadata, "config": config, "model": model, "progress": None}
    accounts = {"authority": A, "instance": B, "coordinator_account": C}
    instruction = get_program("coordinator").encode("update", accounts, args)
    assert (
        bytes(instruction.data) == tag("update") + b"\1" + metadata + b"\1" + config + b"\1" + model + b"\0"
    )
    assert (CONFIG.itemsize, MODEL.itemsize, METADATA.itemsize) == (128, 520, 360)


def test_structs_may_be_mappings_with_or_without_padding_underscores() -> None:
    values = Metadata("n", "d", 1, 2).to_instruction_args()
    accounts = {"authority": A, "instance": B, "coordinator_account": C}
    encode = get_program("coordinator").encode
    rest = {"config": None, "model": None, "progress": None}
    by_mapping = encode("update", accounts, {"metadata": values, **rest})
    by_bytes = encode("update", accounts, {"metadata": Metadata("n", "d", 1, 2).to_bytes(), **rest})
    assert by_mapping == by_bytes


def test_witness_bytes() -> None:
    args = {
        "index": 258,
        "step": 3,
        "participants": [1, 2, 3, 2**64 - 1],
        "broadcast_bloom": list(range(16)),
        "broadcast_merkle": bytes([5] * 32),
        "state_digest": bytes([6] * 32),
        "metadata": {
            "tokens_per_sec": 2.0,
            "bandwidth_per_sec": 0.0,
            "loss": 4.5,
            "efficiency": 0.0,
        },
    }
    accounts = {"user": A, "instance": B, "coordinator_account": C}
    data = bytes(get_program("coordinator").encode("witness", accounts, args).data)
    expected = struct.pack("<HI4Q16Q", 258, 3, 1, 2, 3, 2**64 - 1, *range(16)) + bytes([5] * 32 + [6] * 32)
    assert data == tag("witness") + expected + struct.pack("<ffff", 2.0, 0.0, 4.5, 0.0)


def test_authorizer_scope_and_delegates() -> None:
    program = get_program("authorizer")
    accounts = {"payer": A, "grantee": A, "authorization": B, "system_program": C}
    args = {"delegates_clear": True, "delegates_added": [A, D]}
    data = bytes(program.encode("authorization_grantee_update", accounts, args).data)
    assert data == tag("authorization_grantee_update") + b"\1\2\0\0\0" + bytes(A) + bytes(D)


@pytest.mark.parametrize(
    ("accounts", "args", "error"),
    [
        ({"user": A, "instance": B}, {"index": 1}, TypeError),
        ({"user": A, "instance": B, "coordinator_account": C, "extra": D}, {"index": 1}, TypeError),
        ({"user": A, "instance": B, "coordinator_account": C}, {}, TypeError),
        ({"user": A, "instance": B, "coordinator_account": C}, {"index": 1, "x": 1}, TypeError),
    ],
)
def test_names_must_fit_the_idl(accounts: dict, args: dict, error: type[Exception]) -> None:
    with pytest.raises(error):
        get_program("coordinator").encode("warmup_witness", accounts, args)
    with pytest.raises(ValueError, match="no instruction"):
        get_program("coordinator").encode("nonsense", {}, {})


def test_lengths_must_fit_the_idl() -> None:
    accounts = {"user": A, "p2p": A, "instance": B, "coordinator_account": C, "authorization": D}
    with pytest.raises(ValueError, match="expected 64"):
        args = {"address_hint": bytes(63)}
        get_program("coordinator").encode("join_run", accounts, args)
    update = {"authority": A, "instance": B, "coordinator_account": C}
    rest = {"config": None, "model": None, "progress": None}
    with pytest.raises(ValueError, match="360"):
        get_program("coordinator").encode("update", update, {"metadata": bytes(361), **rest})


def account(kind: type, body: bytes, padding: int = 0) -> AccountInfo:
    data = kind.get_discriminator() + body + bytes(padding)
    return AccountInfo(A, 1, get_program_id(kind.PROGRAM), data, 1)


def test_accounts_decode() -> None:
    body = b"\7" + bytes(A) + bytes(B) + bytes(C) + b"\3\0\0\0run"
    instance = CoordinatorInstance.decode(account(CoordinatorInstance, body, padding=29))
    assert instance == CoordinatorInstance(7, A, B, C, "run")
    body = (
        b"\7" + bytes(A) + bytes(B) + b"\2\0\0\0xy" + b"\1" + b"\1\0\0\0" + bytes(C) + struct.pack("<q", -5)
    )
    before_expiries = Authorization(7, A, B, b"xy", True, (C,), -5, 0)
    assert Authorization.decode(account(Authorization, body)) == before_expiries
    expiring = Authorization(7, A, B, b"xy", True, (C,), -5, 2**40)
    assert Authorization.decode(account(Authorization, body + struct.pack("<q", 2**40))) == expiring
    body = b"\7" + struct.pack("<Q", 9) + bytes(A) + bytes(B) + bytes(C) + bytes(D) + bytes(A)
    run = Run.decode(account(Run, body + struct.pack("<QQ", 11, 12)))
    assert run == Run(7, 9, A, B, C, D, A, 11, 12)
    first = account(Participant, b"\7" + struct.pack("<QQ", 1, 2))
    assert Participant.decode(first) == Participant(7, 1, 2, 1)
    newest = account(Participant, b"\7" + struct.pack("<QQ", 1, 2) + b"\2")
    assert Participant.decode(newest) == Participant(7, 1, 2, 2)
    assert (Participant.decode(first).is_newest, Participant.decode(newest).is_newest) == (False, True)


def test_hostile_accounts_are_chain_errors() -> None:
    good = account(Participant, b"\7" + struct.pack("<QQ", 1, 2))
    for data in (b"", good.data[:4], good.data[:-1], bytes(len(good.data))):
        with pytest.raises(ChainError):
            Participant.decode(AccountInfo(A, 1, good.owner, data, 1))
    with pytest.raises(ChainError, match="belongs to program"):
        Participant.decode(AccountInfo(A, 1, D, good.data, 1))
    claims_much = b"\7" + bytes(A) + bytes(B) + b"\xff\xff\xff\xff" + b"short"
    with pytest.raises(ChainError):
        Authorization.decode(account(Authorization, claims_much))
    not_utf8 = b"\7" + bytes(A) + bytes(B) + bytes(C) + b"\2\0\0\0\xff\xff"
    with pytest.raises(ChainError):
        CoordinatorInstance.decode(account(CoordinatorInstance, not_utf8))


def test_error_codes_have_names_in_every_program() -> None:
    assert get_program("coordinator").errors[6012].name == "InvalidRunState"
    assert get_program("authorizer").errors[6002].name == "ScopeTooLong"
    assert get_program("treasurer").errors[6003].name == "InsufficientVault"
    for name in PROGRAM_NAMES:
        assert get_program(name).errors[6108].name == "WrongAuthority"
        assert find_program(str(get_program_id(name))) is get_program(name)
    assert find_program(Keypair().pubkey()) is None


def test_importing_the_chain_imports_neither_anchorpy_nor_solana() -> None:
    code = (
        "import sys, psyche_py.chain.client, psyche_py.chain.litesvm, psyche_py.chain.clusters\n"
        "slow = {'anchorpy', 'solana', 'httpx', 'spl', 'torch', 'libp2p'} & set(sys.modules)\n"
        "assert not slow, slow"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
