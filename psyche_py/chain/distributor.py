"""Airdrops: create one for a list of allocations, redeem from it, and what its authority may do.

``chain.allocations`` has the list and ``chain.allocation_tree`` its tree; docs/distributor.md says what
the program promises to whom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche_py.chain import token
from psyche_py.chain.accounts import BorshAccount
from psyche_py.chain.allocation_tree import AllocationTree
from psyche_py.chain.allocations import Allocation
from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.errors import AccountNotFound, InsufficientFunds, WrongCluster
from psyche_py.chain.pda import ASSOCIATED_TOKEN_PROGRAM, SYSTEM_PROGRAM, find_airdrop, find_claim
from psyche_py.chain.port import AccountInfo, TransactionResult
from psyche_py.chain.token_calls import MintInfo, TokenCalls
from psyche_py.errors import RunStateError, UsageError

MAX_METADATA_BYTES = 300


@dataclass(frozen=True, slots=True)
class Airdrop(BorshAccount):
    """An airdrop. Amounts are in base units of ``collateral_mint``.

    ``reserved_collateral_amount`` is what the list still promises; until the guarantee ends, the authority
    can withdraw only what the vault holds beyond it. ``metadata`` is whatever the authority wrote.
    """

    PROGRAM: ClassVar[str] = "distributor"

    id: int
    authority: Pubkey
    collateral_mint: Pubkey
    total_claimed_collateral_amount: int
    claim_freeze: bool
    merkle_root: bytes
    allocated_collateral_amount: int
    reserved_collateral_amount: int
    guaranteed_until_unix_timestamp: int
    frozen_unix_timestamp: int
    metadata: bytes

    def __post_init__(self) -> None:
        object.__setattr__(self, "merkle_root", bytes(self.merkle_root))

    def is_guaranteed(self, now: int) -> bool:
        """Whether the guarantee holds at unix second ``now``; a freeze stops its clock."""
        clock = self.frozen_unix_timestamp if self.claim_freeze else now
        return clock < self.guaranteed_until_unix_timestamp

    def compute_withdrawable(self, vault_amount: int, now: int) -> int:
        """Base units that the authority can withdraw at ``now`` from a vault of ``vault_amount``."""
        kept = self.reserved_collateral_amount if self.is_guaranteed(now) else 0
        return max(vault_amount - kept, 0)


@dataclass(frozen=True, slots=True)
class Claim(BorshAccount):
    """What a claimer has redeemed of one allocation."""

    PROGRAM: ClassVar[str] = "distributor"

    claimed_collateral_amount: int


@dataclass(frozen=True, slots=True)
class AirdropHandle:
    """An airdrop as it stood when it was fetched, at unix second ``now`` of the chain."""

    address: Pubkey
    account: Airdrop
    mint: MintInfo
    vault_amount: int
    now: int

    @property
    def vault(self) -> Pubkey:
        """The token account that claims are paid from."""
        return self.mint.find_token_account(self.address)

    @property
    def id(self) -> int:
        """The number that its address follows from."""
        return self.account.id

    @property
    def withdrawable_amount(self) -> int:
        """Base units that the authority can withdraw now."""
        return self.account.compute_withdrawable(self.vault_amount, self.now)

    def check_list(self, tree: AllocationTree) -> None:
        """Raises UsageError unless ``tree`` is the airdrop's list; RunStateError when no proof can hold."""
        if tree.merkle_root != self.account.merkle_root:
            raise UsageError(
                f"The list given is not the list of airdrop {self.id}: its root is {tree.merkle_root.hex()}, "
                f"the airdrop's is {self.account.merkle_root.hex()}.",
                f"Get the list that its authority {self.account.authority} published.",
            )
        if tree.total_amount != self.account.allocated_collateral_amount:
            raise RunStateError(
                f"Nobody can redeem from airdrop {self.id}: its list adds up to {tree.total_amount}, but it "
                f"was made for {self.account.allocated_collateral_amount}.",
                f"Its authority {self.account.authority} must make another.",
            )


@dataclass(frozen=True, slots=True)
class Redeemable:
    """One allocation as it stands: base units ``vested`` and ``claimed`` by now."""

    allocation: Allocation
    vested: int
    claimed: int

    @property
    def amount(self) -> int:
        """Base units that can be redeemed now, if the vault holds them."""
        return max(self.vested - self.claimed, 0)


class DistributorCalls(TokenCalls):
    """Mixed into ProgramClient."""

    async def fetch_airdrop(self, airdrop_id: int) -> AirdropHandle:
        """Airdrop number ``airdrop_id``. Raises AccountNotFound, WrongCluster, ChainError."""
        address = find_airdrop(airdrop_id)
        info = await self.backend.get_account(address)
        if info is None or info.owner == SYSTEM_PROGRAM:
            await self._check_distributor()
            raise AccountNotFound(
                f"There is no airdrop {airdrop_id} on this cluster.",
                "Check its id; -u chooses the cluster.",
                pubkey=str(address),
            )
        account = Airdrop.decode(info)
        mint = await self.fetch_mint(account.collateral_mint)
        amount = await self.fetch_token_amount(mint.find_token_account(address))
        time = await self.backend.get_chain_time()
        return AirdropHandle(address, account, mint, amount, time.unix_timestamp)

    async def fetch_redeemable(self, airdrop: AirdropHandle, allocation: Allocation) -> Redeemable:
        """How an allocation stands."""
        address = find_claim(airdrop.address, allocation.wallet, allocation.nonce)
        info = await self.backend.get_account(address)
        claimed = 0
        if info is not None and info.owner != SYSTEM_PROGRAM:
            claimed = Claim.decode(info).claimed_collateral_amount
        return Redeemable(allocation, allocation.compute_vested(airdrop.now), claimed)

    async def check_airdrop_id_is_free(self, airdrop_id: int) -> None:
        """Raises RunStateError when there is such an airdrop."""
        if not _is_missing(await self.backend.get_account(find_airdrop(airdrop_id))):
            raise RunStateError(f"There is an airdrop {airdrop_id} already.", "Choose another id.")

    async def create_airdrop(
        self,
        airdrop_id: int,
        mint: Pubkey,
        tree: AllocationTree,
        *,
        guaranteed_until: int,
        metadata: bytes = b"",
        fund: bool = False,
    ) -> AirdropHandle:
        """A new airdrop whose authority is the payer; ``fund`` puts all that is promised into its vault.

        Both happen in one transaction: somebody who takes the id first does not get the money.
        Raises RunStateError when the id is taken, InsufficientFunds, UsageError for metadata too long.
        """
        await self.check_airdrop_id_is_free(airdrop_id)
        payer, address = self.payer.pubkey(), find_airdrop(airdrop_id)
        collateral = await self.fetch_mint(mint)
        vault = collateral.find_token_account(address)
        accounts = {
            "payer": payer,
            "authority": payer,
            "airdrop": address,
            "airdrop_collateral": vault,
            "collateral_mint": mint,
            "associated_token_program": ASSOCIATED_TOKEN_PROGRAM,
            "token_program": collateral.token_program,
            "system_program": SYSTEM_PROGRAM,
        }
        args = {
            "id": airdrop_id,
            "list": _make_list(tree),
            "guaranteed_until_unix_timestamp": guaranteed_until,
            "metadata": _check_metadata(metadata),
        }
        instructions = [get_program("distributor").encode("airdrop_create", accounts, args)]
        if fund:
            instructions.append(await self._transfer_to_vault(collateral, vault, tree.total_amount))
        await self._send(instructions, f"create airdrop {airdrop_id}")
        return await self.fetch_airdrop(airdrop_id)

    async def fund_airdrop(self, airdrop: AirdropHandle, amount: int) -> TransactionResult:
        """Move ``amount`` base units from the payer's token account into the vault; anybody may.

        Raises InsufficientFunds.
        """
        instruction = await self._transfer_to_vault(airdrop.mint, airdrop.vault, amount)
        return await self._send([instruction], f"fund airdrop {airdrop.id}")

    async def update_airdrop(
        self,
        airdrop: AirdropHandle,
        *,
        claim_freeze: bool | None = None,
        tree: AllocationTree | None = None,
        guaranteed_until: int | None = None,
        metadata: bytes | None = None,
    ) -> TransactionResult:
        """Change an airdrop of the payer's; what is None stays.

        Raises ProgramError AirdropIsGuaranteed (another list during the guarantee) and
        ParamsGuaranteeIsTooShort; RunStateError when the airdrop is somebody else's.
        """
        self._check_authority(airdrop)
        accounts = {"authority": self.payer.pubkey(), "airdrop": airdrop.address}
        args = {
            "claim_freeze": claim_freeze,
            "list": _make_list(tree) if tree is not None else None,
            "guaranteed_until_unix_timestamp": guaranteed_until,
            "metadata": _check_metadata(metadata) if metadata is not None else None,
        }
        instruction = get_program("distributor").encode("airdrop_update", accounts, args)
        return await self._send([instruction], f"update airdrop {airdrop.id}")

    async def withdraw_airdrop(
        self, airdrop: AirdropHandle, amount: int, *, recipient: Pubkey | None = None
    ) -> TransactionResult:
        """Pay ``amount`` base units from the vault to wallet ``recipient`` (the payer).

        Raises RunStateError when the airdrop is somebody else's; ProgramError AirdropIsGuaranteed.
        """
        self._check_authority(airdrop)
        payer, mint = self.payer.pubkey(), airdrop.mint
        owner = recipient or payer
        accounts = {
            "authority": payer,
            "airdrop": airdrop.address,
            "airdrop_collateral": airdrop.vault,
            "recipient_collateral": mint.find_token_account(owner),
            "collateral_mint": mint.address,
            "token_program": mint.token_program,
        }
        withdraw = get_program("distributor").encode(
            "airdrop_withdraw", accounts, {"collateral_amount": amount}
        )
        account = token.create_token_account(payer, owner, mint.address, mint.token_program)
        instructions = [account, withdraw]
        return await self._send(instructions, f"withdraw from airdrop {airdrop.id}")

    async def redeem(
        self, airdrop: AirdropHandle, tree: AllocationTree, allocation: Allocation, amount: int | None = None
    ) -> int:
        """Pay out the payer's ``allocation``: all that can be redeemed now, unless ``amount`` is given.

        Token account and claim record are made when they are missing, in a transaction before: a long proof
        needs the room. Returns the base units paid.
        Raises UsageError when ``tree`` is not the airdrop's list; RunStateError when that much cannot be
        redeemed or claims are frozen; ProgramError AirdropVaultIsTooSmall.
        """
        airdrop.check_list(tree)
        if airdrop.account.claim_freeze:
            raise RunStateError(
                f"Claims of airdrop {airdrop.id} are frozen.",
                f"Ask its authority {airdrop.account.authority}; what has vested stays yours.",
            )
        due = await self.fetch_redeemable(airdrop, allocation)
        amount = due.amount if amount is None else amount
        if not 0 < amount <= due.amount:
            raise RunStateError(
                f"{due.amount} base units of allocation {allocation.nonce} can be redeemed from airdrop "
                f"{airdrop.id} now: {due.vested} have vested, {due.claimed} were redeemed.",
                "Wait until more has vested." if due.vested < allocation.amount else "There is no more.",
            )
        setup = await self._prepare_redeem(airdrop, allocation)
        if setup:
            await self._send(setup, f"prepare claim of airdrop {airdrop.id}")
        args = {
            "nonce": allocation.nonce,
            "start_unix_timestamp": allocation.start,
            "duration_seconds": allocation.duration,
            "end_collateral_amount": allocation.amount,
            "collateral_amount": amount,
            "merkle_proof": tree.get_proof(allocation),
        }
        accounts = self._get_redeem_accounts(airdrop, allocation)
        instruction = get_program("distributor").encode("claim_redeem", accounts, args)
        await self._send([instruction], f"redeem from airdrop {airdrop.id}")
        return amount

    def _get_redeem_accounts(self, airdrop: AirdropHandle, allocation: Allocation) -> dict[str, Pubkey]:
        claimer, mint = self.payer.pubkey(), airdrop.mint
        return {
            "claimer": claimer,
            "claimer_collateral": mint.find_token_account(claimer),
            "airdrop": airdrop.address,
            "airdrop_collateral": airdrop.vault,
            "collateral_mint": mint.address,
            "claim": find_claim(airdrop.address, claimer, allocation.nonce),
            "token_program": mint.token_program,
        }

    async def _prepare_redeem(self, airdrop: AirdropHandle, allocation: Allocation) -> list[Instruction]:
        """What is missing of token account and claim record."""
        accounts = self._get_redeem_accounts(airdrop, allocation)
        claimer, mint = accounts["claimer"], airdrop.mint
        keys = [accounts["claimer_collateral"], accounts["claim"]]
        collateral, claim = await self.backend.get_multiple_accounts(keys)
        instructions = []
        if _is_missing(collateral):
            instructions.append(
                token.create_token_account(claimer, claimer, mint.address, mint.token_program)
            )
        if _is_missing(claim):
            names: dict[str, Any] = {"payer": claimer, "system_program": SYSTEM_PROGRAM}
            names |= {name: accounts[name] for name in ("claimer", "airdrop", "claim")}
            args = {"nonce": allocation.nonce}
            instructions.append(get_program("distributor").encode("claim_create", names, args))
        return instructions

    async def _transfer_to_vault(self, mint: MintInfo, vault: Pubkey, amount: int) -> Instruction:
        payer = self.payer.pubkey()
        source = mint.find_token_account(payer)
        held = await self.fetch_token_amount(source)
        if held < amount:
            raise InsufficientFunds(
                f"Wallet {payer} holds {held} base units of {mint.address}, not {amount}.",
                "Send it some first.",
            )
        return token.transfer_tokens(
            source,
            vault,
            payer,
            amount,
            mint=mint.address,
            decimals=mint.decimals,
            token_program=mint.token_program,
        )

    def _check_authority(self, airdrop: AirdropHandle) -> None:
        authority = airdrop.account.authority
        if authority != self.payer.pubkey():
            raise RunStateError(
                f"Airdrop {airdrop.id} belongs to {authority}, not to {self.payer.pubkey()}.",
                "Sign with its authority's wallet: -k.",
            )

    async def _check_distributor(self) -> None:
        program_id = get_program_id("distributor")
        if await self.backend.get_account(program_id) is None:
            raise WrongCluster(
                f"The distributor program {program_id} is not on this cluster.",
                "Choose the airdrop's cluster with -u, or start a local one: run-manager localnet.",
            )


def _is_missing(info: AccountInfo | None) -> bool:
    """No account, or only lamports that somebody sent to its address before it was made."""
    return info is None or info.owner == SYSTEM_PROGRAM


def _make_list(tree: AllocationTree) -> dict[str, Any]:
    return {"merkle_root": tree.merkle_root, "allocated_collateral_amount": tree.total_amount}


def _check_metadata(metadata: bytes) -> bytes:
    if len(metadata) > MAX_METADATA_BYTES:
        raise UsageError(
            f"Metadata of {len(metadata)} bytes is too long.", f"It has at most {MAX_METADATA_BYTES} bytes."
        )
    return metadata
