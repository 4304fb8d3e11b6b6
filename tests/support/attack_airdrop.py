"""What the distributor's instructions may do, over whole accounts."""

from __future__ import annotations

import struct
from typing import Any

from attack_model import Model, Refusal, demand, handler
from attack_tokens import check_mint, check_vault, create_vault, load, read_held, read_u64, transfer
from solders.pubkey import Pubkey

from psyche_py.chain.allocation_tree import Node, compute_leaf, compute_parent
from psyche_py.chain.allocations import Allocation
from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import SYSTEM_PROGRAM, find_airdrop, find_claim, find_token_account
from psyche_py.coordinator.layout import compute_account_discriminator
from psyche_py.errors import UsageError

AIRDROP = compute_account_discriminator("Airdrop")
CLAIM = compute_account_discriminator("Claim")
FORM = struct.Struct("<8sBQ32s32sQB32sQQqqI300s")
NAMES = (
    "kind", "bump", "id", "authority", "mint", "claimed", "frozen", "root", "allocated", "reserved", "until",
    "frozen_since", "metadata_length", "metadata",
)  # fmt: skip
CLAIM_SIZE, MAX_METADATA, LEVEL_BYTES = 17, 300, 40
LATEST = 2**63 - 1

Fields = dict[str, Any]


def _load(model: Model, a: dict[str, Pubkey]) -> Fields:
    data = load(model, a["airdrop"], "distributor", AIRDROP, FORM.size)
    return dict(zip(NAMES, FORM.unpack(data), strict=True))


def _load_owned(model: Model, a: dict[str, Pubkey]) -> Fields:
    fields = _load(model, a)
    demand(fields["authority"] == bytes(a["authority"]), "another's airdrop")
    return fields


def _save(model: Model, a: dict[str, Pubkey], fields: Fields) -> None:
    model.put(a["airdrop"], data=FORM.pack(*(fields[name] for name in NAMES)))


def _put_list(fields: Fields, packed: bytes) -> None:
    demand(any(packed[:32]), "no list")
    amount = read_u64(packed, 32)
    fields |= {"root": packed[:32], "allocated": amount, "reserved": amount}


def _put_metadata(fields: Fields, metadata: bytes) -> None:
    demand(len(metadata) <= MAX_METADATA, "metadata too long")
    fields |= {"metadata_length": len(metadata), "metadata": metadata}


def _is_guaranteed(fields: Fields, now: int) -> bool:
    """Whether the list and what it promises must stay; a freeze stops this clock."""
    return bool((fields["frozen_since"] if fields["frozen"] else now) < fields["until"])


@handler("distributor.airdrop_create")
def airdrop_create(model: Model, a: dict[str, Pubkey], args: Fields) -> None:
    """An airdrop and its vault."""
    program = get_program_id("distributor")
    _, bump = Pubkey.find_program_address([b"Airdrop", struct.pack("<Q", args["id"])], program)
    demand(a["airdrop"] == find_airdrop(args["id"]), "not the airdrop's address")
    demand(a["system_program"] == SYSTEM_PROGRAM, "another program for the System program")
    token = check_mint(model, a["collateral_mint"])
    vault = find_token_account(a["airdrop"], a["collateral_mint"], token)
    demand(a["airdrop_collateral"] == vault, "not the vault's address")
    fields: Fields = dict.fromkeys(NAMES, 0) | {"kind": AIRDROP, "bump": bump, "id": args["id"]}
    fields |= {"authority": bytes(a["authority"]), "mint": bytes(a["collateral_mint"])}
    fields["until"] = args["guaranteed_until_unix_timestamp"]
    _put_list(fields, args["list"])
    _put_metadata(fields, args["metadata"])
    model.create(a["payer"], a["airdrop"], program, bytes(FORM.size))
    _save(model, a, fields)
    create_vault(model, a, "airdrop_collateral", a["airdrop"], "collateral_mint")


@handler("distributor.airdrop_update")
def airdrop_update(model: Model, a: dict[str, Pubkey], args: Fields) -> None:
    """Freeze or thaw, another list after the guarantee, a longer guarantee, another description."""
    fields, now, freeze = _load_owned(model, a), model.chain.now, args["claim_freeze"]
    if freeze is not None and freeze != bool(fields["frozen"]):
        if freeze:
            fields["frozen_since"] = now
        elif _is_guaranteed(fields, now):
            stood = max(now - fields["frozen_since"], 0)
            fields["until"] = min(fields["until"] + stood, LATEST)
        fields["frozen"] = int(freeze)
    if args["list"] is not None:
        demand(not _is_guaranteed(fields, now), "the list is guaranteed")
        _put_list(fields, args["list"])
    until = args["guaranteed_until_unix_timestamp"]
    if until is not None:
        demand(until >= fields["until"], "a shorter guarantee")
        fields["until"] = until
    if args["metadata"] is not None:
        _put_metadata(fields, args["metadata"])
    _save(model, a, fields)


def _check_vault(model: Model, a: dict[str, Pubkey], fields: Fields) -> int:
    """That mint and vault are the airdrop's; what the vault holds."""
    demand(bytes(a["collateral_mint"]) == fields["mint"], "another mint")
    return check_vault(model, a["airdrop_collateral"], a["airdrop"], a["collateral_mint"]).amount


@handler("distributor.airdrop_withdraw")
def airdrop_withdraw(model: Model, a: dict[str, Pubkey], args: Fields) -> None:
    """What nobody was promised, and after the guarantee everything."""
    fields, amount = _load_owned(model, a), args["collateral_amount"]
    left = _check_vault(model, a, fields) - amount
    demand(left >= 0, "more than the vault holds")
    demand(left >= fields["reserved"] or not _is_guaranteed(fields, model.chain.now), "what is promised")
    demand(not read_held(model, a["recipient_collateral"]).has_delegate, "somebody else may spend it")
    transfer(model, a, "airdrop_collateral", "recipient_collateral", amount)


@handler("distributor.claim_create")
def claim_create(model: Model, a: dict[str, Pubkey], args: Fields) -> None:
    """An empty record for one line."""
    _load(model, a)
    program, number = get_program_id("distributor"), struct.pack("<Q", args["nonce"])
    seeds = [b"Claim", bytes(a["airdrop"]), bytes(a["claimer"]), number]
    address, bump = Pubkey.find_program_address(seeds, program)
    demand(a["claim"] == address, "another's claim")
    demand(a["system_program"] == SYSTEM_PROGRAM, "another program for the System program")
    model.create(a["payer"], address, program, (CLAIM + bytes([bump])).ljust(CLAIM_SIZE, b"\0"))


@handler("distributor.claim_redeem")
def claim_redeem(model: Model, a: dict[str, Pubkey], args: Fields) -> None:
    """What has vested of a line of the list, less what was paid of it, to an account of the claimer's."""
    fields, amount = _load(model, a), args["collateral_amount"]
    claim = load(model, a["claim"], "distributor", CLAIM, CLAIM_SIZE)
    demand(a["claim"] == find_claim(a["airdrop"], a["claimer"], args["nonce"]), "another's claim")
    demand(not fields["frozen"], "frozen")
    line = _read_line(a["claimer"], args)
    top = _climb(compute_leaf(line), args["merkle_proof"])
    demand(top == (fields["root"], fields["allocated"]), "no line of the list")
    claimed = read_u64(claim, 9)
    vested = line.compute_vested(model.chain.now)
    demand(amount <= max(vested - claimed, 0), "more than has vested and was not paid")
    demand(amount <= _check_vault(model, a, fields), "more than the vault holds")
    held = read_held(model, a["claimer_collateral"])
    demand(held.owner == a["claimer"] and not held.has_delegate, "another's token account")
    demand(amount <= fields["reserved"], "more than the list promises")
    model.put(a["claim"], data=claim[:9] + struct.pack("<Q", claimed + amount))
    changes = {"claimed": fields["claimed"] + amount, "reserved": fields["reserved"] - amount}
    _save(model, a, {**fields, **changes})
    transfer(model, a, "airdrop_collateral", "claimer_collateral", amount)


def _read_line(claimer: Pubkey, args: Fields) -> Allocation:
    """The line that a claimer says it has."""
    numbers = ("end_collateral_amount", "nonce", "start_unix_timestamp", "duration_seconds")
    try:
        return Allocation(claimer, *(args[name] for name in numbers))
    except UsageError as error:
        raise Refusal(str(error)) from None


def _climb(node: Node, proof: bytes) -> Node:
    """Where a proof leads."""
    demand(len(proof) % LEVEL_BYTES == 0, "no proof")
    for at in range(0, len(proof), LEVEL_BYTES):
        level = proof[at : at + LEVEL_BYTES]
        try:
            node = compute_parent(node, (level[:32], read_u64(level, 32)))
        except OverflowError:
            raise Refusal("sums beyond 64 bits") from None
    return node
