"""What the authorizer's instructions may do, and whom an authorization lets join."""

from __future__ import annotations

import struct
from typing import Any

from attack_model import Model, Refusal, demand, handler
from solders.pubkey import Pubkey

from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import SYSTEM_PROGRAM
from psyche_py.coordinator.layout import compute_account_discriminator
from psyche_py.coordinator.pda import ANYBODY, JOIN_SCOPE

AUTHORIZATION = compute_account_discriminator("Authorization")
THIRTY_DAYS = 30 * 24 * 3600


def is_authorized(model: Model, a: dict[str, Pubkey], user: bytes) -> bool:
    """Whether the account in the place of the authorization lets ``user`` join."""
    state, grantor = model.get(a["authorization"]), model.get(a["instance"]).data[41:73]
    if state.owner != get_program_id("authorizer"):
        return False
    try:
        found = read_authorization(state.data)
    except Refusal:
        return False
    is_named = found["grantee"] in (ANYBODY, user) or user in found["delegates"]
    is_for_this = found["grantor"] == grantor and found["scope"] == JOIN_SCOPE
    is_on = found["active"] and (not found["expires"] or model.chain.now < found["expires"])
    return bool(is_named and is_for_this and is_on)


def read_authorization(data: bytes) -> dict[str, Any]:
    """Fields of an authorization; Refusal when there are none. ``expires`` is None in the older layout."""
    demand(data[:8] == AUTHORIZATION and len(data) >= 90, "no authorization")
    scope_end = 77 + int.from_bytes(data[73:77], "little")
    num = int.from_bytes(data[scope_end + 1 : scope_end + 5], "little")
    end = scope_end + 5 + 32 * num
    demand(len(data) in (end + 8, end + 16), "an authorization of another length")
    has_expiry = len(data) == end + 16
    delegates = data[scope_end + 5 : end]
    return {
        "bump": data[8],
        "grantor": data[9:41],
        "grantee": data[41:73],
        "scope": data[77:scope_end],
        "active": data[scope_end] == 1,
        "delegates": [delegates[i : i + 32] for i in range(0, len(delegates), 32)],
        "updated": int.from_bytes(data[end : end + 8], "little", signed=True),
        "expires": int.from_bytes(data[end + 8 :], "little", signed=True) if has_expiry else None,
    }


def write_authorization(f: dict[str, Any]) -> bytes:
    """The inverse of :func:`read_authorization`."""
    return b"".join(
        (
            AUTHORIZATION,
            bytes([f["bump"]]),
            f["grantor"],
            f["grantee"],
            struct.pack("<I", len(f["scope"])) + f["scope"],
            bytes([f["active"]]),
            struct.pack("<I", len(f["delegates"])) + b"".join(f["delegates"]),
            struct.pack("<q", f["updated"]),
            b"" if f["expires"] is None else struct.pack("<q", f["expires"]),
        )
    )


def _load_authorization(model: Model, address: Pubkey) -> dict[str, Any]:
    state = model.get(address)
    demand(state.owner == get_program_id("authorizer"), "authorization of another program")
    return read_authorization(state.data)


@handler("authorizer.authorization_create")
def authorization_create(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """A new authorization, switched off."""
    program, grantor, scope = get_program_id("authorizer"), bytes(a["grantor"]), args["scope"]
    demand(len(scope) <= 32 and a["system_program"] == SYSTEM_PROGRAM, "scope or System program")
    seeds = [b"Authorization", grantor, args["grantee"], scope]
    address, bump = Pubkey.find_program_address(seeds, program)
    demand(address == a["authorization"], "not the authorization's address")
    fields = {"bump": bump, "grantor": grantor, "active": False, "delegates": [], "expires": 0}
    data = write_authorization({**fields, **args, "updated": model.chain.now})
    model.create(a["payer"], address, program, data)


@handler("authorizer.authorization_grantor_update")
def authorization_grantor_update(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """The grantor's switch, and until when it counts."""
    expires = args["expires_unix_timestamp"]
    demand(expires >= 0, "an expiry before 1970")
    fields = _load_authorization(model, a["authorization"])
    demand(fields["grantor"] == bytes(a["grantor"]), "another's authorization")
    is_older = fields["expires"] is None and not expires
    changes = {"active": args["active"], "expires": None if is_older else expires}
    data = write_authorization({**fields, **changes, "updated": model.chain.now})
    minimum = model.chain.svm.minimum_balance_for_rent_exemption(len(data))
    grows = len(data) > len(model.get(a["authorization"]).data)
    demand(not grows or model.get(a["authorization"]).lamports >= minimum, "no rent for the expiry")
    model.put(a["authorization"], data=data)


@handler("authorizer.authorization_grantee_update")
def authorization_grantee_update(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """The grantee's delegates; the payer funds the growth."""
    fields = _load_authorization(model, a["authorization"])
    demand(fields["grantee"] == bytes(a["grantee"]), "another's authorization")
    kept = [] if args["delegates_clear"] else fields["delegates"]
    delegates = kept + args["delegates_added"]
    demand(len(delegates) <= 256, "too many delegates")
    data = write_authorization({**fields, "delegates": delegates, "expires": fields["expires"] or 0})
    lamports = model.get(a["authorization"]).lamports
    missing = max(model.chain.svm.minimum_balance_for_rent_exemption(len(data)) - lamports, 0)
    demand(not missing or a["system_program"] == SYSTEM_PROGRAM, "another program for the System program")
    model.move(a["payer"], a["authorization"], missing)
    model.put(a["authorization"], data=data)


@handler("authorizer.authorization_close")
def authorization_close(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """The grantor takes an authorization back, not from under its delegates."""
    fields = _load_authorization(model, a["authorization"])
    demand(fields["grantor"] == bytes(a["grantor"]) and not fields["active"], "another's, or switched on")
    is_protected = fields["delegates"] and model.chain.now < fields["updated"] + THIRTY_DAYS
    demand(not is_protected and a["spill"] != a["authorization"], "delegates are protected")
    model.move(a["authorization"], a["spill"], model.get(a["authorization"]).lamports)
