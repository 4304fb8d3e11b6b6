"""A localnet's ledger from a chain in LiteSVM, so that a process can go on where a test has brought it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from programs_harness import ProgramChain
from solders.pubkey import Pubkey

from psyche_py.chain.localnet.ledger import Ledger
from psyche_py.chain.localnet.records import AccountRecord


def write_ledger(directory: Path, chain: ProgramChain, pubkeys: Iterable[Pubkey]) -> None:
    """The accounts at ``pubkeys``; start the localnet with ``--ledger`` and the directory."""
    ledger = Ledger.open(directory, reset=True, new_genesis_seed=bytes(range(32)))
    for pubkey in pubkeys:
        account = chain.svm.get_account(pubkey)
        ledger.append(
            AccountRecord(pubkey, account.lamports, account.owner, account.executable, bytes(account.data))
        )
    ledger.close()
