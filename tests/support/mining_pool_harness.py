"""A mining pool in LiteSVM: each of its instructions as a method that can replace any account."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from programs_harness import ProgramChain
from solders.account import Account
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from spl.token.instructions import (
    FreezeAccountParams,
    InitializeAccountParams,
    InitializeMintParams,
    MintToParams,
    TransferParams,
    create_idempotent_associated_token_account,
    freeze_account,
    initialize_account,
    initialize_mint,
    mint_to,
    transfer,
)
from token_2022 import compute_mint_bytes, encode_extensions

from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.mining_pool import Lender, Pool
from psyche_py.chain.pda import (
    ASSOCIATED_TOKEN_PROGRAM,
    SYSTEM_PROGRAM,
    TOKEN_PROGRAM,
    find_lender,
    find_pool,
    find_redeemable_authority,
    find_token_account,
)
from psyche_py.chain.port import AccountInfo

U64_MAX = 2**64 - 1
PROGRAMS = {
    "associated_token_program": ASSOCIATED_TOKEN_PROGRAM,
    "token_program": TOKEN_PROGRAM,
    "system_program": SYSTEM_PROGRAM,
}


class TokenBank:
    """Mints of our own, of ``program`` (SPL Token or Token-2022), and token accounts."""

    def __init__(self, chain: ProgramChain, program: Pubkey = TOKEN_PROGRAM) -> None:
        self.chain = chain
        self.program = program
        self.issuer = chain.make_wallet("issuer")

    def make_mint(self, name: str, extensions: Sequence[str] = ()) -> Pubkey:
        """A new mint that follows from its name; ``extensions`` are names of token_2022.EXTENSIONS."""
        mint = Keypair.from_seed(hashlib.sha256(f"mint {name}".encode()).digest())
        space = compute_mint_bytes(extensions)
        allocate = self.chain.make_account(self.issuer, mint, space, self.program)
        issuer = self.issuer.pubkey()
        params = InitializeMintParams(6, self.program, mint.pubkey(), issuer, issuer)
        prepare = encode_extensions(mint.pubkey(), extensions)
        self.chain.send([allocate, *prepare, initialize_mint(params)], [self.issuer, mint])
        return mint.pubkey()

    def find(self, owner: Pubkey, mint: Pubkey) -> Pubkey:
        """Where the associated token account of ``owner`` is."""
        return find_token_account(owner, mint, self.program)

    def open(self, owner: Pubkey, mint: Pubkey) -> Pubkey:
        """The associated token account of ``owner``."""
        payer = self.issuer.pubkey()
        create = create_idempotent_associated_token_account(payer, owner, mint, self.program)
        self.chain.send([create], [self.issuer])
        return self.find(owner, mint)

    def issue(self, mint: Pubkey, owner: Pubkey, amount: int) -> Pubkey:
        """New tokens for ``owner``."""
        address = self.open(owner, mint)
        params = MintToParams(self.program, mint, address, self.issuer.pubkey(), amount)
        self.chain.send([mint_to(params)], [self.issuer])
        return address

    def move(self, source: Pubkey, to: Pubkey, owner: Keypair, amount: int) -> None:
        """A plain transfer, past our programs."""
        self.chain.send([transfer(TransferParams(self.program, source, to, owner.pubkey(), amount))], [owner])

    def open_spare(self, owner: Pubkey, mint: Pubkey, amount: int) -> Pubkey:
        """A token account of ``owner`` that is not the associated one; anybody can make it."""
        spare = Keypair.from_seed(hashlib.sha256(b"spare" + bytes(owner) + bytes(mint)).digest())
        allocate = self.chain.make_account(self.issuer, spare, 165, self.program)
        initialise = initialize_account(
            InitializeAccountParams(account=spare.pubkey(), mint=mint, owner=owner, program_id=self.program)
        )
        fill = mint_to(MintToParams(self.program, mint, spare.pubkey(), self.issuer.pubkey(), amount))
        self.chain.send([allocate, initialise, fill], [self.issuer, spare])
        return spare.pubkey()

    def freeze(self, address: Pubkey, mint: Pubkey) -> None:
        """By the mint's freeze authority."""
        params = FreezeAccountParams(self.program, address, mint, self.issuer.pubkey())
        self.chain.send([freeze_account(params)], [self.issuer])

    def get_amount(self, address: Pubkey) -> int:
        """Base units in a token account."""
        data = self.chain.get_data(address)
        assert data is not None
        return int.from_bytes(data[64:72], "little")


class PoolHarness:
    """One pool of the wallet "authority"; ``same_mint`` repays in the token that was lent."""

    def __init__(
        self,
        chain: ProgramChain,
        index: int = 1,
        *,
        same_mint: bool = False,
        token_program: Pubkey = TOKEN_PROGRAM,
        extensions: Sequence[str] = (),
    ) -> None:
        self.chain = chain
        self.tokens = TokenBank(chain, token_program)
        self.programs = PROGRAMS | {"token_program": token_program}
        self.index = index
        self.address = find_pool(index)
        self.authority = chain.make_wallet("authority")
        self.collateral = self.tokens.make_mint(f"collateral {index}", extensions)
        self.redeemable = self.collateral
        if not same_mint:
            self.redeemable = self.tokens.make_mint(f"redeemable {index}", extensions)
        self.redeemable_authority = find_redeemable_authority(self.address)
        self.vault = self.tokens.find(self.address, self.collateral)
        self.redeemable_vault = self.tokens.find(self.redeemable_authority, self.redeemable)
        self.newest: Instruction | None = None
        """What was sent last, for tests that damage it."""

    def _send(
        self, name: str, signers: list[Keypair], accounts: dict[str, Pubkey], args: Any, changes: Any
    ) -> None:
        unknown = set(changes) - set(accounts)
        assert not unknown, unknown
        instruction = get_program("mining_pool").encode(name, {**accounts, **changes}, args)
        self.newest = instruction
        self.chain.send([instruction], signers)

    # ---- authority ----------------------------------------------------------------------------------

    def create(self, index: int | None = None, metadata: str = "a pool", **changes: Pubkey) -> None:
        owner = self.authority.pubkey()
        accounts = {
            "payer": owner,
            "authority": owner,
            "pool": self.address,
            "pool_collateral": self.vault,
            "collateral_mint": self.collateral,
            **self.programs,
        }
        args = {"index": self.index if index is None else index, "metadata": metadata}
        self._send("pool_create", [self.authority], accounts, args, changes)

    def update(
        self,
        max_deposit: int | None = None,
        freeze: bool | None = None,
        metadata: str | None = None,
        signer: Keypair | None = None,
        **changes: Pubkey,
    ) -> None:
        signer = signer or self.authority
        accounts = {"authority": signer.pubkey(), "pool": self.address}
        args = {"max_deposit_collateral_amount": max_deposit, "freeze": freeze, "metadata": metadata}
        self._send("pool_update", [signer], accounts, args, changes)

    def extract(self, amount: int, signer: Keypair | None = None, **changes: Pubkey) -> None:
        signer = signer or self.authority
        accounts = {
            "authority": signer.pubkey(),
            "authority_collateral": self.tokens.find(signer.pubkey(), self.collateral),
            "pool": self.address,
            "pool_collateral": self.vault,
            "collateral_mint": self.collateral,
            "token_program": self.tokens.program,
        }
        self._send("pool_extract", [signer], accounts, {"collateral_amount": amount}, changes)

    def enable(self, signer: Keypair | None = None, **changes: Pubkey) -> None:
        signer = signer or self.authority
        accounts = {
            "payer": signer.pubkey(),
            "authority": signer.pubkey(),
            "pool": self.address,
            "redeemable_authority": self.redeemable_authority,
            "pool_redeemable": self.redeemable_vault,
            "redeemable_mint": self.redeemable,
            **self.programs,
        }
        self._send("pool_claimable", [signer], accounts, {}, changes)

    def repay(self, amount: int) -> None:
        """Tokens out of nowhere for the lenders."""
        self.tokens.issue(self.redeemable, self.redeemable_authority, amount)

    # ---- lenders ------------------------------------------------------------------------------------

    def make_lender(self, name: str, amount: int = 0) -> Keypair:
        """A wallet with ``amount`` of collateral, both token accounts and a record."""
        user = self.chain.make_wallet(name)
        self.tokens.open(user.pubkey(), self.redeemable)
        self.tokens.issue(self.collateral, user.pubkey(), amount)
        self.enter(user)
        return user

    def enter(self, user: Keypair, **changes: Pubkey) -> None:
        """lender_create"""
        accounts = {
            "payer": user.pubkey(),
            "user": user.pubkey(),
            "pool": self.address,
            "lender": find_lender(self.address, user.pubkey()),
            "system_program": SYSTEM_PROGRAM,
        }
        self._send("lender_create", [user], accounts, {}, changes)

    def deposit(self, user: Keypair, amount: int, **changes: Pubkey) -> None:
        accounts = {
            "user": user.pubkey(),
            "user_collateral": self.tokens.find(user.pubkey(), self.collateral),
            "pool": self.address,
            "pool_collateral": self.vault,
            "collateral_mint": self.collateral,
            "lender": find_lender(self.address, user.pubkey()),
            "token_program": self.tokens.program,
        }
        self._send("lender_deposit", [user], accounts, {"collateral_amount": amount}, changes)

    def claim(self, user: Keypair, amount: int, **changes: Pubkey) -> None:
        accounts = {
            "user": user.pubkey(),
            "user_redeemable": self.tokens.find(user.pubkey(), self.redeemable),
            "pool": self.address,
            "redeemable_authority": self.redeemable_authority,
            "pool_redeemable": self.redeemable_vault,
            "redeemable_mint": self.redeemable,
            "lender": find_lender(self.address, user.pubkey()),
            "token_program": self.tokens.program,
        }
        self._send("lender_claim", [user], accounts, {"redeemable_amount": amount}, changes)

    # ---- reading ------------------------------------------------------------------------------------

    def _read(self, address: Pubkey) -> AccountInfo:
        data = self.chain.get_data(address)
        assert data is not None
        return AccountInfo(address, 1, get_program_id("mining_pool"), data, 1)

    @property
    def pool(self) -> Pool:
        """The account as it is now."""
        return Pool.decode(self._read(self.address))

    def get_lender(self, user: Keypair) -> Lender:
        """A lender's record as it is now."""
        return Lender.decode(self._read(find_lender(self.address, user.pubkey())))

    def get_paid(self, user: Keypair) -> int:
        """What is in a lender's redeemable token account."""
        return self.tokens.get_amount(self.tokens.find(user.pubkey(), self.redeemable))

    def forge(self, original: Pubkey, at: Pubkey, **changes: Any) -> None:
        """A copy of an account elsewhere, as nobody could make it; ``changes``: owner, data."""
        account = self.chain.svm.get_account(original)
        data, owner = changes.get("data", bytes(account.data)), changes.get("owner", account.owner)
        self.chain.svm.set_account(at, Account(account.lamports, data, owner))
