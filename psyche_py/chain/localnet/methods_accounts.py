"""RPC methods about accounts and token accounts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from solders.pubkey import Pubkey

from psyche_py.chain.localnet.bank import Bank
from psyche_py.chain.localnet.encode_account import encode_account
from psyche_py.chain.localnet.filters import is_match, parse_filters
from psyche_py.chain.localnet.methods_cluster import with_context
from psyche_py.chain.localnet.params import Config, Params, parse_pubkey
from psyche_py.chain.localnet.rpc_errors import invalid_params
from psyche_py.chain.localnet.token_json import PROGRAM_NAMES, to_ui_amount
from psyche_py.chain.port import AccountInfo
from psyche_py.chain.token_state import Mint, TokenAccount, read_mint

MAX_MULTIPLE_ACCOUNTS = 100
MAX_ACCOUNT_BYTES = 10 << 20
NUM_LARGEST_ACCOUNTS = 20


def _encode(bank: Bank, account: AccountInfo, config: Config, encoding: str) -> dict[str, Any]:
    return encode_account(account, encoding, config.get_data_slice(), bank.get_decimals)


def get_account_info(bank: Bank, params: Params) -> dict[str, Any]:
    """One account, or null."""
    pubkey, config = params.get_pubkey(0), params.get_config(1)
    encoding = config.get_encoding()
    config.get_commitment()
    config.check_min_context_slot(bank.slot)
    account = bank.get_account(pubkey)
    return with_context(bank, None if account is None else _encode(bank, account, config, encoding))


def get_multiple_accounts(bank: Bank, params: Params) -> dict[str, Any]:
    """Several accounts of one slot; null where there is none."""
    pubkeys = [parse_pubkey(item) for item in params.get_list(0, limit=MAX_MULTIPLE_ACCOUNTS)]
    config = params.get_config(1)
    encoding = config.get_encoding("base64")
    config.check_min_context_slot(bank.slot)
    accounts = [bank.get_account(pubkey) for pubkey in pubkeys]
    return with_context(
        bank,
        [None if account is None else _encode(bank, account, config, encoding) for account in accounts],
    )


def get_program_accounts(bank: Bank, params: Params) -> Any:
    """The accounts a program owns that pass the filters."""
    program_id, config = params.get_pubkey(0), params.get_config(1)
    filters, encoding = parse_filters(config.get("filters")), config.get_encoding()
    config.check_min_context_slot(bank.slot)
    found = [
        {"pubkey": str(account.pubkey), "account": _encode(bank, account, config, encoding)}
        for account in bank.iter_owned_by(program_id)
        if is_match(filters, account)
    ]
    return with_context(bank, found) if config.get_bool("withContext") else found


def get_balance(bank: Bank, params: Params) -> dict[str, Any]:
    """Lamports of an account; 0 when there is none."""
    pubkey = params.get_pubkey(0)
    params.get_config(1).check_min_context_slot(bank.slot)
    account = bank.get_account(pubkey)
    return with_context(bank, 0 if account is None else account.lamports)


def get_minimum_balance_for_rent_exemption(bank: Bank, params: Params) -> int:
    """Lamports that keep an account of so many bytes alive."""
    return bank.engine.get_minimum_balance(params.get_int(0, maximum=MAX_ACCOUNT_BYTES))


# ---- tokens ------------------------------------------------------------------------------------------


def _get_mint(bank: Bank, pubkey: Pubkey) -> Mint:
    account = bank.get_account(pubkey)
    mint = read_mint(account.owner, account.data) if account is not None else None
    if mint is None:
        raise invalid_params("Invalid param: could not find mint" if account is None else _NOT_A_MINT)
    return mint


_NOT_A_MINT = "Invalid param: not a Token mint"


def get_token_account_balance(bank: Bank, params: Params) -> dict[str, Any]:
    """Amount in a token account."""
    pubkey = params.get_pubkey(0)
    params.get_config(1)
    token = bank.get_token_account(pubkey)
    if token is None:
        missing = bank.get_account(pubkey) is None
        reason = "could not find account" if missing else "not a Token account"
        raise invalid_params(f"Invalid param: {reason}")
    return with_context(bank, to_ui_amount(token.amount, _get_mint(bank, token.mint).decimals))


def get_token_supply(bank: Bank, params: Params) -> dict[str, Any]:
    """Supply of a mint."""
    pubkey = params.get_pubkey(0)
    account = bank.get_account(pubkey)
    if account is None:
        raise invalid_params("Invalid param: could not find account")
    mint = _get_mint(bank, pubkey)
    return with_context(bank, to_ui_amount(mint.supply, mint.decimals))


def get_token_largest_accounts(bank: Bank, params: Params) -> dict[str, Any]:
    """The accounts that hold most of a mint."""
    pubkey = params.get_pubkey(0)
    mint = _get_mint(bank, pubkey)
    held = [(token.amount, str(key)) for key, token in bank.get_token_accounts() if token.mint == pubkey]
    held.sort(reverse=True)
    return with_context(
        bank,
        [
            {"address": address} | to_ui_amount(amount, mint.decimals)
            for amount, address in held[:NUM_LARGEST_ACCOUNTS]
        ],
    )


def _find_token_accounts(
    bank: Bank, params: Params, is_wanted: Callable[[TokenAccount], bool]
) -> dict[str, Any]:
    selector, config = params.require(1), params.get_config(2)
    if not isinstance(selector, dict) or not ({"mint", "programId"} & selector.keys()):
        raise invalid_params("Invalid params: expected `mint` or `programId`.")
    mint = program_id = None
    if "mint" in selector:
        mint = parse_pubkey(selector["mint"])
        _get_mint(bank, mint)
    else:
        program_id = parse_pubkey(selector["programId"])
        if program_id not in PROGRAM_NAMES:
            raise invalid_params("Invalid param: unrecognized Token program id")
    encoding = config.get_encoding()
    config.check_min_context_slot(bank.slot)
    found = []
    for pubkey, token in bank.get_token_accounts():
        if not is_wanted(token) or (mint is not None and token.mint != mint):
            continue
        account = bank.get_account(pubkey)
        if account is None or (program_id is not None and account.owner != program_id):
            continue
        # token accounts are 165 bytes, over the base58 limit: a node answers with an error there, too
        found.append({"pubkey": str(pubkey), "account": _encode(bank, account, config, encoding)})
    return with_context(bank, found)


def get_token_accounts_by_owner(bank: Bank, params: Params) -> dict[str, Any]:
    """Token accounts of an owner, by mint or token program."""
    owner = params.get_pubkey(0)
    return _find_token_accounts(bank, params, lambda token: token.owner == owner)


def get_token_accounts_by_delegate(bank: Bank, params: Params) -> dict[str, Any]:
    """Token accounts that a delegate may spend from, by mint or token program."""
    delegate = params.get_pubkey(0)
    return _find_token_accounts(bank, params, lambda token: token.delegate == delegate)


METHODS = {
    "getAccountInfo": get_account_info,
    "getMultipleAccounts": get_multiple_accounts,
    "getProgramAccounts": get_program_accounts,
    "getBalance": get_balance,
    "getMinimumBalanceForRentExemption": get_minimum_balance_for_rent_exemption,
    "getTokenAccountBalance": get_token_account_balance,
    "getTokenSupply": get_token_supply,
    "getTokenLargestAccounts": get_token_largest_accounts,
    "getTokenAccountsByOwner": get_token_accounts_by_owner,
    "getTokenAccountsByDelegate": get_token_accounts_by_delegate,
}
