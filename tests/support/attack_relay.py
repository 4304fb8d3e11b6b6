"""Calls through an attacker's program (tests/attacks/relay), several in one instruction."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from attack_chain import AttackChain, Outcome
from attack_oracle import find_breaches_of_all
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

PROGRAM = Pubkey(bytes([0xE7] * 32))
CODE = Path(__file__).resolve().parents[1] / "attacks" / "relay.so"
SELF, BUMP = Pubkey.find_program_address([b"relay"], PROGRAM)
"""The program's own address, for which it can sign."""
SIGNS, WRITABLE, WRITE = 1, 2, 255


def deploy(chain: AttackChain) -> None:
    """Put the program on a chain."""
    chain.svm.add_program(PROGRAM, CODE.read_bytes())


def encode_write(address: Pubkey, data: bytes) -> Instruction:
    """A step that writes ``data`` into an account of the attacker's."""
    return Instruction(PROGRAM, data, [AccountMeta(address, False, True)])


def wrap(*calls: Instruction, unsigned: Sequence[Pubkey] = ()) -> Instruction:
    """One instruction of the relay that makes ``calls`` in order; ``unsigned`` sign for the relay only."""
    metas: dict[Pubkey, AccountMeta] = {}
    for meta in [meta for call in calls for meta in call.accounts]:
        old = metas.get(meta.pubkey, AccountMeta(meta.pubkey, False, False))
        is_signer = (old.is_signer or meta.is_signer) and meta.pubkey not in (SELF, *unsigned)
        metas[meta.pubkey] = AccountMeta(meta.pubkey, is_signer, old.is_writable or meta.is_writable)
    for call in calls:
        if call.program_id != PROGRAM:
            metas.setdefault(call.program_id, AccountMeta(call.program_id, False, False))
    places = {pubkey: place for place, pubkey in enumerate(metas)}
    assert len(places) <= 16, "more accounts than the relay can pass on"
    data = bytes([BUMP, len(calls)])
    for call in calls:
        program = WRITE if call.program_id == PROGRAM else places[call.program_id]
        data += bytes([program, len(call.accounts)])
        for meta in call.accounts:
            data += bytes([places[meta.pubkey], SIGNS * meta.is_signer + WRITABLE * meta.is_writable])
        data += struct.pack("<H", len(call.data)) + bytes(call.data)
    return Instruction(PROGRAM, data, list(metas.values()))


def judge_relayed(chain: AttackChain, what: str, *calls: Instruction) -> Outcome:
    """Calls through the relay, which may do nothing but what the rules say. Nothing is kept."""
    outcome = chain.attempt(wrap(*calls))
    breaches = find_breaches_of_all(chain, calls, replace(outcome, signers=outcome.signers | {SELF}))
    chain.judge(what, not breaches, outcome, breaches)
    return outcome
