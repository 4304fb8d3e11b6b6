"""A mint in LiteSVM, of SPL Token or of Token-2022 with extensions, and token accounts of it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from programs_harness import ProgramChain
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from spl.token.instructions import (
    ApproveParams,
    FreezeAccountParams,
    InitializeMintParams,
    MintToParams,
    approve,
    create_associated_token_account,
    freeze_account,
    initialize_mint,
    mint_to,
)
from token_2022 import compute_mint_bytes, encode_extensions

from psyche_py.chain.pda import TOKEN_2022_PROGRAM, TOKEN_PROGRAM, find_token_account

DECIMALS = 6


class TokenMint:
    """A mint that ``authority`` mints and can freeze; it is made on first use of a name in a chain.

    With ``extensions`` (names of token_2022.EXTENSIONS) it is Token-2022's.
    """

    def __init__(
        self,
        chain: ProgramChain,
        authority: Keypair,
        name: str = "mint",
        *,
        token_program: Pubkey = TOKEN_PROGRAM,
        extensions: Sequence[str] = (),
    ) -> None:
        self.chain = chain
        self.authority = authority
        self.program = TOKEN_2022_PROGRAM if extensions else token_program
        self.keypair = Keypair.from_seed(hashlib.sha256(f"mint {name}".encode()).digest())
        self.address = self.keypair.pubkey()
        if chain.get_data(self.address) is None:
            self._create(extensions)

    def _create(self, extensions: Sequence[str]) -> None:
        space = compute_mint_bytes(extensions)
        allocate = self.chain.make_account(self.authority, self.keypair, space, self.program)
        initialise = initialize_mint(
            InitializeMintParams(
                decimals=DECIMALS,
                program_id=self.program,
                mint=self.address,
                mint_authority=self.authority.pubkey(),
                freeze_authority=self.authority.pubkey(),
            )
        )
        prepare = encode_extensions(self.address, extensions)
        self.chain.send([allocate, *prepare, initialise], [self.authority, self.keypair])

    def find_account(self, owner: Pubkey) -> Pubkey:
        """The associated token account of ``owner``."""
        return find_token_account(owner, self.address, self.program)

    def make_account(self, user: Keypair) -> Pubkey:
        """The user's own associated token account, made when it is missing."""
        address = self.find_account(user.pubkey())
        if self.chain.get_data(address) is None:
            create = create_associated_token_account(user.pubkey(), user.pubkey(), self.address, self.program)
            self.chain.send([create], [user])
        return address

    def make_account_of(self, owner: Pubkey, payer: Keypair) -> Pubkey:
        """The associated token account of ``owner``, paid by somebody else."""
        create = create_associated_token_account(payer.pubkey(), owner, self.address, self.program)
        self.chain.send([create], [payer])
        return self.find_account(owner)

    def fund(self, token_account: Pubkey, amount: int) -> None:
        """New tokens, in base units."""
        params = MintToParams(
            program_id=self.program,
            mint=self.address,
            dest=token_account,
            mint_authority=self.authority.pubkey(),
            amount=amount,
        )
        self.chain.send([mint_to(params)], [self.authority])

    def freeze(self, token_account: Pubkey) -> None:
        """By the freeze authority."""
        params = FreezeAccountParams(self.program, token_account, self.address, self.authority.pubkey())
        self.chain.send([freeze_account(params)], [self.authority])

    def approve(self, user: Keypair, delegate: Pubkey, amount: int) -> None:
        """``delegate`` may spend from the user's associated token account."""
        source = self.find_account(user.pubkey())
        params = ApproveParams(self.program, source, delegate, user.pubkey(), amount)
        self.chain.send([approve(params)], [user])

    def get_amount(self, token_account: Pubkey) -> int:
        """Base units in a token account."""
        data = self.chain.get_data(token_account)
        assert data is not None
        return int.from_bytes(data[64:72], "little")
