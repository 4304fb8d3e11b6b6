"""No instruction about money costs more than a default transaction may (200,000 compute units).

256 entries, the payee last among them, tokens of either program; run with -s to see the figures.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from programs_harness import ProgramChain
from solders.account import Account
from token_harness import TokenMint
from treasury_harness import Treasury

from psyche_py.chain.pda import TOKEN_2022_PROGRAM, TOKEN_PROGRAM, find_participant
from psyche_py.chain.treasury import WITHDRAW_DELAY_SECONDS
from psyche_py.coordinator.layout import MAX_CLIENTS

LIMIT = 200_000
OVERHEAD = 150
"""Units of the compute budget instruction that the harness adds."""
FIGURES: dict[str, dict[str, int]] = {}


@pytest.fixture(params=["spl-token", "token-2022", "token-2022 with metadata pointers"])
def full(request: pytest.FixtureRequest) -> Iterator[Treasury]:
    """Two clients have earned; 254 more entries are owed something too."""
    chain = ProgramChain()
    program = TOKEN_PROGRAM if request.param == "spl-token" else TOKEN_2022_PROGRAM
    extensions = ["MetadataPointer", "GroupPointer", "GroupMemberPointer"] * ("pointers" in request.param)
    owner = chain.make_wallet("owner")
    treasury = Treasury(chain, mint=TokenMint(chain, owner, token_program=program, extensions=extensions))
    treasury.create()
    FIGURES[request.param] = {"run_create": chain.units - OVERHEAD}
    treasury.open_funded(is_created=True)
    treasury.play_paid_epoch()
    account = chain.svm.get_account(treasury.address)
    record = treasury.account.copy().record
    record["num_entries"] = MAX_CLIENTS
    for number in range(MAX_CLIENTS - 1, -1, -1):
        record["entries"][number]["earned"] = 3
        if number < MAX_CLIENTS - 1:
            record["entries"][number]["signer"] = list(number.to_bytes(32, "little"))
    record["entries"][MAX_CLIENTS - 1]["signer"] = list(bytes(treasury.wallets[0].pubkey()))
    chain.svm.set_account(treasury.address, Account(account.lamports, record.tobytes(), account.owner))
    yield treasury
    print(f"\ncompute units, {MAX_CLIENTS} entries, {request.param}: {FIGURES[request.param]}")


def test_every_instruction_fits(full: Treasury, request: pytest.FixtureRequest) -> None:
    chain, payee = full.chain, full.wallets[0]
    figures = FIGURES[request.node.callspec.params["full"]]

    def note(name: str) -> None:
        figures[name] = chain.units - OVERHEAD

    full.fund(10_000)
    for wallet in (payee, full.owner):
        full.mint.make_account(wallet)
    full.create_participant(payee)
    note("participant_create")
    address = find_participant(full.run, payee.pubkey())
    record = chain.svm.get_account(address)
    aged = bytes(record.data)[:9] + (1).to_bytes(8, "little") * 2
    chain.svm.set_account(address, Account(10**6, aged, record.owner))
    full.migrate_participant(payee.pubkey(), payee)
    note("participant_migrate")
    full.claim(payee, 2)
    note("participant_claim")
    full.change(paused=True)
    note("run_update")
    full.change(paused=False)
    full.finish()
    chain.advance(WITHDRAW_DELAY_SECONDS)
    promised = 3 * (MAX_CLIENTS - 1)
    full.withdraw(10_000 - 2 - promised)
    note("run_withdraw")
    for number in range(MAX_CLIENTS - 1):
        full.set_entry(number, earned=0)
    full.withdraw(promised)
    full.close()
    note("run_close")
    assert {name: units for name, units in figures.items() if units >= LIMIT} == {}
