"""The dearest call of each instruction of the authorizer program."""

from __future__ import annotations

from typing import Any

from bump_search import find_worst_wallet, make_candidate
from programs_harness import ProgramChain
from recording_svm import RecordingSvm
from solders.pubkey import Pubkey

from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import SYSTEM_PROGRAM, find_authorization
from psyche_py.coordinator.pda import get_authorization_seeds

MAX_SCOPE = bytes(range(32))
MAX_DELEGATES = 256
DELEGATES_BY_TRANSACTION = 20
DELEGATE_PROTECTION_SECONDS = 30 * 24 * 3600


def find_authorizer_costs() -> dict[str, int]:
    """Compute units by instruction: the longest scope, 256 delegates, an address that is hard to derive."""
    chain = ProgramChain()
    svm = chain.svm = RecordingSvm(chain.svm)
    authorizer, grantor = get_program("authorizer"), chain.make_wallet("grantor")
    owner = bytes(grantor.pubkey())
    program = get_program_id("authorizer")
    grantee = find_worst_wallet(lambda key: [(get_authorization_seeds(owner, key, MAX_SCOPE), program)])
    svm.airdrop(grantee.pubkey(), 10**12)
    address = find_authorization(grantor.pubkey(), grantee.pubkey(), MAX_SCOPE)

    def send(name: str, accounts: dict[str, Pubkey], **args: Any) -> None:
        signer = grantee if "grantee" in accounts else grantor
        known = authorizer.get_argument_names(name)
        call = authorizer.encode(
            name,
            {**accounts, "authorization": address},
            {key: value for key, value in args.items() if key in known},
        )
        chain.send([call], [signer])

    by_grantor, system = {"grantor": grantor.pubkey()}, {"system_program": SYSTEM_PROGRAM}
    by_grantee = {"grantee": grantee.pubkey(), "payer": grantee.pubkey(), **system}
    create = {**by_grantor, "payer": grantor.pubkey(), **system}
    send("authorization_create", create, grantee=grantee.pubkey(), scope=MAX_SCOPE)
    keys = [make_candidate(number).pubkey() for number in range(MAX_DELEGATES)]
    for start in range(0, MAX_DELEGATES, DELEGATES_BY_TRANSACTION):
        added = keys[start : start + DELEGATES_BY_TRANSACTION]
        send("authorization_grantee_update", by_grantee, delegates_clear=False, delegates_added=added)
    for active in (True, False):
        send("authorization_grantor_update", by_grantor, active=active, expires_unix_timestamp=2**62)
    few = keys[:DELEGATES_BY_TRANSACTION]
    send("authorization_grantee_update", by_grantee, delegates_clear=True, delegates_added=few)
    chain.advance(DELEGATE_PROTECTION_SECONDS)
    send("authorization_close", {**by_grantor, "spill": grantor.pubkey()})
    return svm.worst["authorizer"]
