"""What no transaction of ours may do to money and points, whatever its instruction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from attack_chain import ABSENT, AccountState, AttackChain, Outcome
from attack_tokens import TOKEN_PROGRAMS, TOKEN_SIZE, read_u64
from solders.pubkey import Pubkey

from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import SYSTEM_PROGRAM, find_token_account
from psyche_py.coordinator.layout import ACCOUNT_SIZE, compute_account_discriminator
from psyche_py.coordinator.state import AccountFormatError, Entry, read_account

BOND = compute_account_discriminator("Bond")


def find_lawless(chain: AttackChain, outcome: Outcome) -> list[str]:
    """Each breach in words.

    Tokens are neither made nor lost; lamports neither; only those who sign, or accounts of our own programs
    (which have their own rules), get poorer; nothing is left without rent. Nobody's points shrink but by
    being slashed. A bond pays its user, or the vault, and the vault only what its user is relieved of.
    """
    return [*_find_lost_tokens(outcome), *_find_shrunk_points(outcome), *_find_robbed_bonds(chain, outcome)]


def _is_token(state: AccountState) -> bool:
    return state.owner in TOKEN_PROGRAMS and len(state.data) == TOKEN_SIZE


def _find_lost_tokens(outcome: Outcome) -> Iterator[str]:
    tokens: Counter[bytes] = Counter()
    for address, (before, after) in outcome.changes.items():
        for state, sign in ((before, -1), (after, 1)):
            if _is_token(state):
                tokens[state.data[:32]] += sign * read_u64(state.data, 64)
        is_poorer = after.lamports < before.lamports
        if is_poorer and before.owner == SYSTEM_PROGRAM and address not in outcome.signers:
            yield f"{address} pays without signing"
    total = sum(after.lamports - before.lamports for before, after in outcome.changes.values())
    if total:
        yield f"{total} lamports out of nowhere"
    if any(tokens.values()):
        yield f"tokens out of nowhere: {tokens}"


def _read_entries(state: AccountState) -> dict[bytes, Entry]:
    if state.owner != get_program_id("coordinator") or len(state.data) != ACCOUNT_SIZE:
        return {}
    try:
        return {entry.signer: entry for entry in read_account(state.data).entries}
    except AccountFormatError:
        return {}


def _find_shrunk_points(outcome: Outcome) -> Iterator[str]:
    """What was earned and what was claimed only grows; an entry that is owed something stays."""
    for address, (before, after) in outcome.changes.items():
        if after == ABSENT:
            continue
        now = _read_entries(after)
        for signer, old in _read_entries(before).items():
            entry = now.get(signer)
            if entry is None and old.claimable:
                yield f"{address} forgets what it owes {signer.hex()}"
            if entry is not None and (entry.earned < old.earned or entry.claimed < old.claimed):
                yield f"{address} takes earned or claimed points from {signer.hex()}"
            if entry is not None and entry.slashed < old.slashed - old.debt:
                yield f"{address} gives back more than was owed by {signer.hex()}"


def _find_robbed_bonds(chain: AttackChain, outcome: Outcome) -> Iterator[str]:
    for address, (before, _) in outcome.changes.items():
        if before.owner != get_program_id("treasurer") or before.data[:8] != BOND:
            continue
        run, user, account = (Pubkey(before.data[at : at + 32]) for at in (9, 41, 73))
        relieved = _get_slashed(outcome, account, user)
        for held, mint in _find_tokens_of(outcome, address):
            lost = -_get_change(outcome, held)
            vault = find_token_account(run, mint, chain.get_state(mint).owner)
            to_vault = _get_change(outcome, vault)
            is_returned = user in outcome.signers
            is_right = lost == to_vault == (lost if relieved is None else relieved)
            if lost > 0 and not is_returned and not is_right:
                yield f"bond {address} lost {lost}: {to_vault} to the vault, for {relieved} points"


def _find_tokens_of(outcome: Outcome, owner: Pubkey) -> Iterator[tuple[Pubkey, Pubkey]]:
    """Token accounts of ``owner`` that changed, with their mints."""
    for address, (before, _) in outcome.changes.items():
        if _is_token(before) and before.data[32:64] == bytes(owner):
            yield address, Pubkey(before.data[:32])


def _get_change(outcome: Outcome, address: Pubkey) -> int:
    before, after = outcome.changes.get(address, (ABSENT, ABSENT))
    amounts = [read_u64(state.data, 64) if _is_token(state) else 0 for state in (before, after)]
    return amounts[1] - amounts[0]


def _get_slashed(outcome: Outcome, account: Pubkey, user: Pubkey) -> int | None:
    """Slashed points that ``user`` was relieved of; None when another has got its entry meanwhile."""
    before, after = outcome.changes.get(account, (ABSENT, ABSENT))
    old, new = (_read_entries(state).get(bytes(user)) for state in (before, after))
    if old is not None and new is None:
        return None
    return old.slashed - new.slashed if old is not None and new is not None else 0
