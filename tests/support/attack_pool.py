"""What the mining pool's instructions may do, over whole accounts."""

from __future__ import annotations

import struct
from typing import Any

from attack_model import Model, demand, handler
from attack_tokens import check_holds, create_vault, load, read_u64, transfer
from solders.pubkey import Pubkey

from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import SYSTEM_PROGRAM
from psyche_py.coordinator.layout import compute_account_discriminator

POOL = compute_account_discriminator("Pool")
LENDER = compute_account_discriminator("Lender")
FORM = struct.Struct("<8sBQ32s32s32sQQQB32s32sB16sBH400s")
NAMES = (
    "kind", "bump", "index", "authority", "collateral_mint", "collateral_vault", "max_deposit", "deposited",
    "extracted", "enabled", "redeemable_mint", "redeemable_vault", "redeemable_bump", "claimed", "frozen",
    "metadata_length", "metadata",
)  # fmt: skip
LENDER_SIZE, MAX_METADATA = 33, 400

Fields = dict[str, Any]


def _find(*seeds: bytes) -> tuple[Pubkey, int]:
    return Pubkey.find_program_address(list(seeds), get_program_id("mining_pool"))


def _load_pool(model: Model, a: dict[str, Pubkey]) -> Fields:
    fields = dict(
        zip(NAMES, FORM.unpack(load(model, a["pool"], "mining_pool", POOL, FORM.size)), strict=True)
    )
    demand(a["pool"] == _find(b"Pool", fields["index"].to_bytes(8, "little"))[0], "not the pool's address")
    return fields


def _save_pool(model: Model, a: dict[str, Pubkey], fields: Fields) -> None:
    model.put(a["pool"], data=FORM.pack(*(fields[name] for name in NAMES)))


def _load_owned(model: Model, a: dict[str, Pubkey]) -> Fields:
    fields = _load_pool(model, a)
    demand(fields["authority"] == bytes(a["authority"]), "another's pool")
    return fields


def _load_lender(model: Model, a: dict[str, Pubkey]) -> tuple[int, int]:
    """What the user has lent and claimed."""
    data = load(model, a["lender"], "mining_pool", LENDER, LENDER_SIZE)
    demand(a["lender"] == _find(b"Lender", bytes(a["pool"]), bytes(a["user"]))[0], "another's record")
    return read_u64(data, 9), int.from_bytes(data[17:33], "little")


def _save_lender(model: Model, a: dict[str, Pubkey], deposited: int, claimed: int) -> None:
    data = model.get(a["lender"]).data[:9] + struct.pack("<Q", deposited) + claimed.to_bytes(16, "little")
    model.put(a["lender"], data=data)


def _put_metadata(fields: Fields, metadata: bytes) -> None:
    demand(len(metadata) <= MAX_METADATA, "metadata too long")
    fields |= {"metadata_length": len(metadata), "metadata": metadata}


@handler("mining_pool.pool_create")
def pool_create(model: Model, a: dict[str, Pubkey], args: Fields) -> None:
    """An empty pool that takes no deposits yet, and its vault."""
    address, bump = _find(b"Pool", args["index"].to_bytes(8, "little"))
    demand(a["pool"] == address, "not the pool's address")
    demand(a["system_program"] == SYSTEM_PROGRAM, "another program for the System program")
    fields: Fields = dict.fromkeys(NAMES, 0) | {"kind": POOL, "bump": bump, "index": args["index"]}
    keys = {
        "authority": "authority",
        "collateral_mint": "collateral_mint",
        "collateral_vault": "pool_collateral",
    }
    fields |= {name: bytes(a[slot]) for name, slot in keys.items()}
    fields |= {"redeemable_mint": b"", "redeemable_vault": b"", "claimed": b""}
    _put_metadata(fields, args["metadata"])
    model.create(a["payer"], address, get_program_id("mining_pool"), bytes(FORM.size))
    _save_pool(model, a, fields)
    create_vault(model, a, "pool_collateral", address, "collateral_mint")


@handler("mining_pool.pool_update")
def pool_update(model: Model, a: dict[str, Pubkey], args: Fields) -> None:
    """The limit, which never rises once anybody has lent; the freeze; the description."""
    fields, limit = _load_owned(model, a), args["max_deposit_collateral_amount"]
    if limit is not None:
        demand(limit >= fields["deposited"], "less than was lent")
        demand(limit <= fields["max_deposit"] or not fields["deposited"], "the limit rises")
        fields["max_deposit"] = limit
    if args["freeze"] is not None:
        fields["frozen"] = int(args["freeze"])
    if args["metadata"] is not None:
        _put_metadata(fields, args["metadata"])
    _save_pool(model, a, fields)


@handler("mining_pool.pool_extract")
def pool_extract(model: Model, a: dict[str, Pubkey], args: Fields) -> None:
    """The authority takes out of the vault, into an account of its own."""
    fields, amount = _load_owned(model, a), args["collateral_amount"]
    demand(not fields["frozen"], "frozen")
    mint = _check_vaults(model, a, fields)
    check_holds(model, a["authority_collateral"], a["authority"], mint)
    demand(a["collateral_mint"] == mint, "another mint")
    fields["extracted"] += amount
    demand(fields["extracted"] < 2**64, "a number leaves its range")
    _save_pool(model, a, fields)
    transfer(model, a, "pool_collateral", "authority_collateral", amount)


def _check_vaults(model: Model, a: dict[str, Pubkey], fields: Fields) -> Pubkey:
    """That the collateral is the pool's; returns its mint."""
    mint = Pubkey(fields["collateral_mint"])
    demand(bytes(a["pool_collateral"]) == fields["collateral_vault"], "another vault")
    check_holds(model, a["pool_collateral"], a["pool"], mint)
    return mint


@handler("mining_pool.pool_claimable")
def pool_claimable(model: Model, a: dict[str, Pubkey], args: Fields) -> None:
    """Once: deposits end, and the token of repayments and its vault are named."""
    fields = _load_owned(model, a)
    demand(not fields["frozen"] and not fields["enabled"] and fields["deposited"], "frozen, again, or empty")
    address, bump = _find(b"Redeemable", bytes(a["pool"]))
    demand(a["redeemable_authority"] == address, "another authority")
    keys = {"redeemable_mint": "redeemable_mint", "redeemable_vault": "pool_redeemable"}
    fields |= {name: bytes(a[slot]) for name, slot in keys.items()}
    _save_pool(model, a, {**fields, "enabled": 1, "redeemable_bump": bump})
    create_vault(model, a, "pool_redeemable", address, "redeemable_mint")


@handler("mining_pool.lender_create")
def lender_create(model: Model, a: dict[str, Pubkey], args: Fields) -> None:
    """An empty record."""
    _load_pool(model, a)
    demand(a["system_program"] == SYSTEM_PROGRAM, "another program for the System program")
    address, bump = _find(b"Lender", bytes(a["pool"]), bytes(a["user"]))
    demand(a["lender"] == address, "another's record")
    data = (LENDER + bytes([bump])).ljust(LENDER_SIZE, b"\0")
    model.create(a["payer"], address, get_program_id("mining_pool"), data)


@handler("mining_pool.lender_deposit")
def lender_deposit(model: Model, a: dict[str, Pubkey], args: Fields) -> None:
    """Collateral from the user's account, up to the limit, before claiming is enabled."""
    fields, amount = _load_pool(model, a), args["collateral_amount"]
    deposited, claimed = _load_lender(model, a)
    demand(not fields["frozen"] and not fields["enabled"], "frozen, or deposits have ended")
    mint = _check_vaults(model, a, fields)
    check_holds(model, a["user_collateral"], a["user"], mint)
    demand(a["collateral_mint"] == mint, "another mint")
    fields["deposited"] += amount
    demand(fields["deposited"] <= fields["max_deposit"], "beyond the limit")
    _save_pool(model, a, fields)
    _save_lender(model, a, deposited + amount, claimed)
    transfer(model, a, "user_collateral", "pool_collateral", amount)


@handler("mining_pool.lender_claim")
def lender_claim(model: Model, a: dict[str, Pubkey], args: Fields) -> None:
    """Of all that was ever repaid the lender's share, rounded down, less what it has had."""
    fields, amount = _load_pool(model, a), args["redeemable_amount"]
    deposited, claimed = _load_lender(model, a)
    demand(not fields["frozen"] and fields["enabled"], "frozen, or nothing to claim yet")
    mint = Pubkey(fields["redeemable_mint"])
    check_holds(model, a["user_redeemable"], a["user"], mint)
    demand(bytes(a["pool_redeemable"]) == fields["redeemable_vault"], "another vault")
    vault = check_holds(model, a["pool_redeemable"], a["redeemable_authority"], mint)
    paid = int.from_bytes(fields["claimed"], "little")
    share = (paid + vault.amount) * deposited // fields["deposited"]
    demand(amount <= share - claimed or not amount, "more than the share")
    demand(a["redeemable_mint"] == mint, "another mint")
    _save_pool(model, a, {**fields, "claimed": (paid + amount).to_bytes(16, "little")})
    _save_lender(model, a, deposited, claimed + amount)
    transfer(model, a, "pool_redeemable", "user_redeemable", amount, "redeemable_mint")
