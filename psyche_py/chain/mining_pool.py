"""Mining pools: lenders deposit collateral, an authority works with it, repayments belong to the lenders.

A pool has two vaults. Deposits go into the collateral vault, from which the authority extracts; repayments go
into the redeemable vault, from which only lenders are paid. docs/mining-pool.md says who can do what.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_py.chain import token
from psyche_py.chain.accounts import BorshAccount
from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.errors import AccountNotFound, InsufficientFunds, WrongCluster
from psyche_py.chain.pda import (
    ASSOCIATED_TOKEN_PROGRAM,
    SYSTEM_PROGRAM,
    TOKEN_PROGRAM,
    find_lender,
    find_pool,
    find_redeemable_authority,
)
from psyche_py.chain.port import AccountInfo, Memcmp, TransactionResult
from psyche_py.chain.token_calls import MintInfo, TokenCalls
from psyche_py.chain.token_state import MINT_BYTES, read_token_account
from psyche_py.errors import RunStateError, UsageError

MAX_METADATA_BYTES = 400
_U64_MAX = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Pool(BorshAccount):
    """A pool; amounts are base units. ``redeemable_*`` are zero until claiming is enabled."""

    PROGRAM: ClassVar[str] = "mining_pool"

    index: int
    authority: Pubkey
    collateral_mint: Pubkey
    collateral_vault: Pubkey
    max_deposit_collateral_amount: int
    total_deposited_collateral_amount: int
    total_extracted_collateral_amount: int
    claiming_enabled: bool
    redeemable_mint: Pubkey
    redeemable_vault: Pubkey
    redeemable_bump: int
    total_claimed_redeemable_amount: int
    freeze: bool
    metadata_length: int
    metadata: tuple[int, ...]

    @property
    def metadata_text(self) -> str:
        """The metadata as text; bytes that are no UTF-8 are replaced."""
        return bytes(self.metadata[: self.metadata_length]).decode("utf-8", errors="replace")


@dataclass(frozen=True, slots=True)
class Lender(BorshAccount):
    """What one user has put into a pool and claimed from it, in base units."""

    PROGRAM: ClassVar[str] = "mining_pool"

    deposited_collateral_amount: int
    claimed_redeemable_amount: int


@dataclass(frozen=True, slots=True)
class PoolHandle:
    """A pool and its vaults as they stood at one slot.

    ``lender`` is the record of the user asked for, None when it never lent.
    """

    address: Pubkey
    pool: Pool
    collateral_amount: int
    redeemable_amount: int
    lender: Lender | None

    @property
    def total_repaid(self) -> int:
        """Everything ever repaid: what the redeemable vault holds and what was claimed from it."""
        return self.pool.total_claimed_redeemable_amount + self.redeemable_amount

    @property
    def claimable(self) -> int:
        """What the lender can claim now: the floor of its share of what was repaid, less what it claimed."""
        if self.lender is None:
            return 0
        return compute_pool_claimable(
            total_repaid=self.total_repaid,
            deposited=self.lender.deposited_collateral_amount,
            total_deposited=self.pool.total_deposited_collateral_amount,
            claimed=self.lender.claimed_redeemable_amount,
        )


def compute_pool_claimable(*, total_repaid: int, deposited: int, total_deposited: int, claimed: int) -> int:
    """floor(total_repaid x deposited / total_deposited) - claimed, in base units, never below zero.

    The rule of ``programs/mining_pool/src/claim.rs``; 0 when nothing was deposited.
    """
    if total_deposited == 0:
        return 0
    return max(total_repaid * deposited // total_deposited - claimed, 0)


class PoolCalls(TokenCalls):
    """Mixed into ProgramClient; the payer is the pool's authority, or a lender.

    Amounts are base units. Besides what each method names, sending raises what ``ChainBackend.send`` does;
    a frozen pool refuses with ProgramError PoolFreezeIsTrue.
    """

    # ---- reading ------------------------------------------------------------------------------------

    async def fetch_pool(self, index: int, user: Pubkey | None = None) -> PoolHandle:
        """Pool number ``index`` with its vaults and the record of lender ``user`` (the payer).

        Raises AccountNotFound when there is no such pool, WrongCluster when the program is not there,
        UsageError when the index is no u64, ChainError when an account is not readable.
        """
        address = find_pool(_check_u64(index, "index"))
        info = await self.backend.get_account(address)
        if info is None or info.owner == SYSTEM_PROGRAM:  # somebody may have sent SOL to the address
            await self._check_pool_program()
            raise AccountNotFound(
                f"There is no mining pool {index} on this cluster.",
                "See run-manager pool list; -u chooses the cluster.",
                pubkey=str(address),
            )
        pool = Pool.decode(info)
        keys = [address, pool.collateral_vault, find_lender(address, user or self.payer.pubkey())]
        if pool.claiming_enabled:
            keys.append(pool.redeemable_vault)
        # one request, one slot: a share of what was repaid needs vault and totals of the same moment
        pool_info, collateral, lender, *redeemable = await self.backend.get_multiple_accounts(keys)
        now = Pool.decode(pool_info or info)
        if now.claiming_enabled != pool.claiming_enabled:  # between the two requests, and only once
            return await self.fetch_pool(index, user)
        has_lent = lender is not None and lender.owner == get_program_id("mining_pool")
        return PoolHandle(
            address=address,
            pool=now,
            collateral_amount=_read_amount(collateral),
            redeemable_amount=_read_amount(redeemable[0]) if redeemable else 0,
            lender=Lender.decode(lender) if lender is not None and has_lent else None,
        )

    async def list_pools(self) -> list[Pool]:
        """Every pool of the cluster, by index."""
        found = await self.backend.get_program_accounts(
            get_program_id("mining_pool"), memcmp=[Memcmp(0, Pool.get_discriminator())]
        )
        if not found:
            await self._check_pool_program()
        return sorted((Pool.decode(info) for info in found), key=lambda pool: pool.index)

    async def _check_pool_program(self) -> None:
        program_id = get_program_id("mining_pool")
        if await self.backend.get_account(program_id) is None:
            raise WrongCluster(
                f"The mining pool program {program_id} is not on this cluster.",
                "Choose the pool's cluster with -u, or start a local one: run-manager localnet.",
            )

    # ---- the authority ------------------------------------------------------------------------------

    async def pool_create(
        self, index: int, collateral_mint: Pubkey | None, *, max_deposit: int = 0, metadata: str = ""
    ) -> Pubkey:
        """A new pool that takes up to ``max_deposit`` of ``collateral_mint``; returns its address.

        None makes a new mint, which the payer can mint, in the same transaction.
        Raises RunStateError when the index is taken, UsageError when a number or the metadata is too long.
        """
        address, payer = find_pool(_check_u64(index, "index")), self.payer.pubkey()
        _check_metadata(metadata)
        existing = await self.backend.get_account(address)
        if existing is not None and existing.owner != SYSTEM_PROGRAM:
            raise RunStateError(f"There is a mining pool {index} already.", "Choose another name or index.")
        mint, instructions, signers = await self._take_mint(collateral_mint)
        accounts = {
            "payer": payer,
            "authority": payer,
            "pool": address,
            "pool_collateral": mint.find_token_account(address),
            "collateral_mint": mint.address,
            "associated_token_program": ASSOCIATED_TOKEN_PROGRAM,
            "token_program": mint.token_program,
            "system_program": SYSTEM_PROGRAM,
        }
        args = {"index": index, "metadata": metadata}
        instructions.append(get_program("mining_pool").encode("pool_create", accounts, args))
        if max_deposit:
            instructions.append(self._build_pool_update(address, max_deposit=max_deposit))
        await self._send(instructions, f"create mining pool {index}", *signers)
        return address

    async def _take_mint(self, mint: Pubkey | None) -> tuple[MintInfo, list[Instruction], list[Keypair]]:
        """The mint, what makes it if it is None, and who must sign that."""
        if mint is not None:
            return await self.fetch_mint(mint), [], []
        new, payer = Keypair(), self.payer.pubkey()
        rent = await self.backend.get_minimum_balance(MINT_BYTES)
        make = token.create_mint(payer, new.pubkey(), payer, decimals=0, rent_lamports=rent)
        return MintInfo(new.pubkey(), TOKEN_PROGRAM, decimals=0, supply=0), make, [new]

    async def pool_update(
        self,
        handle: PoolHandle,
        *,
        max_deposit: int | None = None,
        freeze: bool | None = None,
        metadata: str | None = None,
    ) -> TransactionResult:
        """Change a pool; what is None stays.

        Once something was deposited ``max_deposit`` can only be lowered, and not below the deposits. Raises
        ProgramError WrongAuthority, ParamsMaxDepositIsRaised, ParamsMaxDepositIsBelowTotalDeposited.
        """
        instruction = self._build_pool_update(
            handle.address, max_deposit=max_deposit, freeze=freeze, metadata=metadata
        )
        return await self._send([instruction], f"update mining pool {handle.pool.index}")

    def _build_pool_update(
        self,
        address: Pubkey,
        *,
        max_deposit: int | None = None,
        freeze: bool | None = None,
        metadata: str | None = None,
    ) -> Instruction:
        if max_deposit is not None:
            _check_u64(max_deposit, "limit of deposits")
        _check_metadata(metadata or "")
        accounts = {"authority": self.payer.pubkey(), "pool": address}
        args = {"max_deposit_collateral_amount": max_deposit, "freeze": freeze, "metadata": metadata}
        return get_program("mining_pool").encode("pool_update", accounts, args)

    async def pool_extract(self, handle: PoolHandle, amount: int | None = None) -> TransactionResult:
        """Take collateral out to the payer's token account, which is made when it is missing.

        ``amount`` is all that the vault holds unless given. Raises RunStateError when that is nothing,
        ProgramError WrongAuthority, ParamsCollateralAmountIsTooLarge.
        """
        if amount is None:
            amount = handle.collateral_amount
            if amount == 0:
                raise RunStateError(
                    f"The vault of mining pool {handle.pool.index} is empty.", "Wait until somebody deposits."
                )
        payer, mint = self.payer.pubkey(), await self.fetch_mint(handle.pool.collateral_mint)
        accounts = {
            "authority": payer,
            "authority_collateral": mint.find_token_account(payer),
            "pool": handle.address,
            "pool_collateral": handle.pool.collateral_vault,
            "collateral_mint": mint.address,
            "token_program": mint.token_program,
        }
        args = {"collateral_amount": _check_u64(amount, "amount")}
        instructions = [
            token.create_token_account(payer, payer, mint.address, mint.token_program),
            get_program("mining_pool").encode("pool_extract", accounts, args),
        ]
        return await self._send(instructions, f"extract from mining pool {handle.pool.index}")

    async def pool_claimable(self, handle: PoolHandle, redeemable_mint: Pubkey | None) -> TransactionResult:
        """End deposits and let lenders claim ``redeemable_mint`` tokens: once, for ever.

        None makes a new mint, which the payer can mint, in the same transaction.
        Raises ProgramError WrongAuthority, PoolClaimingEnabledIsTrue,
        PoolTotalDepositedCollateralAmountIsZero.
        """
        mint, instructions, signers = await self._take_mint(redeemable_mint)
        payer, owner = self.payer.pubkey(), find_redeemable_authority(handle.address)
        accounts = {
            "payer": payer,
            "authority": payer,
            "pool": handle.address,
            "redeemable_authority": owner,
            "pool_redeemable": mint.find_token_account(owner),
            "redeemable_mint": mint.address,
            "associated_token_program": ASSOCIATED_TOKEN_PROGRAM,
            "token_program": mint.token_program,
            "system_program": SYSTEM_PROGRAM,
        }
        instructions.append(get_program("mining_pool").encode("pool_claimable", accounts, {}))
        return await self._send(instructions, f"enable claims from mining pool {handle.pool.index}", *signers)

    async def pool_repay(self, handle: PoolHandle, amount: int) -> TransactionResult:
        """Move the payer's tokens into the redeemable vault, for the lenders; anybody may, it is a transfer.

        Raises UsageError for less than 1, RunStateError before claiming is enabled, InsufficientFunds.
        """
        if not 0 < amount <= _U64_MAX:
            raise UsageError(f"{amount} cannot be repaid.", "Give a number above zero.")
        if not handle.pool.claiming_enabled:
            raise RunStateError(
                f"Mining pool {handle.pool.index} has no redeemable vault yet.",
                "Its authority makes one: run-manager pool enable-claims.",
            )
        payer, mint = self.payer.pubkey(), await self.fetch_mint(handle.pool.redeemable_mint)
        await self._check_holds(mint, amount)
        instruction = token.transfer_tokens(
            mint.find_token_account(payer),
            handle.pool.redeemable_vault,
            payer,
            amount,
            mint=mint.address,
            decimals=mint.decimals,
            token_program=mint.token_program,
        )
        return await self._send([instruction], f"repay mining pool {handle.pool.index}")

    # ---- lenders ------------------------------------------------------------------------------------

    async def lender_deposit(self, handle: PoolHandle, amount: int) -> TransactionResult:
        """Lend ``amount`` of the payer's collateral; its record is made when it is missing.

        Raises UsageError for less than 1, InsufficientFunds, ProgramError PoolClaimingEnabledIsTrue and
        ParamsCollateralAmountIsTooLarge (above what the pool still takes).
        """
        if not 0 < amount <= _U64_MAX:
            raise UsageError(f"{amount} cannot be deposited.", "Give a number above zero.")
        user, mint = self.payer.pubkey(), await self.fetch_mint(handle.pool.collateral_mint)
        await self._check_holds(mint, amount)
        accounts = {
            "user": user,
            "user_collateral": mint.find_token_account(user),
            "pool": handle.address,
            "pool_collateral": handle.pool.collateral_vault,
            "collateral_mint": mint.address,
            "lender": find_lender(handle.address, user),
            "token_program": mint.token_program,
        }
        program = get_program("mining_pool")
        instructions = [program.encode("lender_deposit", accounts, {"collateral_amount": amount})]
        if handle.lender is None:
            instructions.insert(0, self._build_lender_create(handle))
        return await self._send(instructions, f"deposit into mining pool {handle.pool.index}")

    def _build_lender_create(self, handle: PoolHandle) -> Instruction:
        user = self.payer.pubkey()
        accounts = {
            "payer": user,
            "user": user,
            "pool": handle.address,
            "lender": find_lender(handle.address, user),
            "system_program": SYSTEM_PROGRAM,
        }
        return get_program("mining_pool").encode("lender_create", accounts, {})

    async def lender_claim(self, handle: PoolHandle, amount: int | None = None) -> TransactionResult:
        """Pay the payer's share out to its token account, which is made when it is missing.

        ``amount`` is all of ``handle.claimable`` unless given. Raises RunStateError when there is nothing to
        claim or claiming is not enabled, ProgramError ParamsRedeemableAmountIsTooLarge.
        """
        is_nothing = handle.lender is None or (amount is None and handle.claimable == 0)
        if is_nothing or not handle.pool.claiming_enabled:
            raise RunStateError(
                f"There is nothing to claim from mining pool {handle.pool.index}.",
                "Lenders have a share of what is repaid once claiming is enabled.",
            )
        amount = handle.claimable if amount is None else amount
        user, mint = self.payer.pubkey(), await self.fetch_mint(handle.pool.redeemable_mint)
        accounts = {
            "user": user,
            "user_redeemable": mint.find_token_account(user),
            "pool": handle.address,
            "redeemable_authority": find_redeemable_authority(handle.address),
            "pool_redeemable": handle.pool.redeemable_vault,
            "redeemable_mint": mint.address,
            "lender": find_lender(handle.address, user),
            "token_program": mint.token_program,
        }
        args = {"redeemable_amount": _check_u64(amount, "amount")}
        instructions = [
            token.create_token_account(user, user, mint.address, mint.token_program),
            get_program("mining_pool").encode("lender_claim", accounts, args),
        ]
        return await self._send(instructions, f"claim from mining pool {handle.pool.index}")

    async def _check_holds(self, mint: MintInfo, amount: int) -> None:
        """Raises InsufficientFunds when the payer's token account holds less than ``amount``."""
        payer = self.payer.pubkey()
        held = await self.fetch_token_amount(mint.find_token_account(payer))
        if held < amount:
            raise InsufficientFunds(
                f"Wallet {payer} holds {held} base units of {mint.address}, not {amount}.",
                "Send it some first.",
            )


def _read_amount(info: AccountInfo | None) -> int:
    """Base units in one of a pool's vaults, which the program has checked."""
    found = read_token_account(info.owner, info.data) if info is not None else None
    return found.amount if found is not None else 0


def _check_u64(value: int, what: str) -> int:
    if not 0 <= value <= _U64_MAX:
        raise UsageError(f"{value} is no {what}.", f"It is a whole number from 0 to {_U64_MAX}.")
    return value


def _check_metadata(metadata: str) -> None:
    size = len(metadata.encode())
    if size > MAX_METADATA_BYTES:
        raise UsageError(
            f"The metadata has {size} bytes.", f"A pool holds {MAX_METADATA_BYTES} bytes: put a link there."
        )
