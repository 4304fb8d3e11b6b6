"""One airdrop of the distributor program on a ProgramChain, with a method for each instruction.

``changes`` of a method replace accounts or arguments of the right instruction by name; ``unsigned`` names an
account whose signature is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from programs_harness import ProgramChain
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from token_harness import TokenMint

from psyche_py.chain.allocation_tree import AllocationTree
from psyche_py.chain.allocations import Allocation
from psyche_py.chain.anchor import get_program, to_snake
from psyche_py.chain.artifacts import read_idl
from psyche_py.chain.pda import (
    ASSOCIATED_TOKEN_PROGRAM,
    SYSTEM_PROGRAM,
    find_airdrop,
    find_claim,
    find_token_account,
)

NO_GUARANTEE = -(2**63)


class AirdropHarness:
    """An airdrop of the wallet "authority", with a mint of its own and lines for three wallets."""

    def __init__(self, chain: ProgramChain, airdrop_id: int = 7, mint: TokenMint | None = None) -> None:
        self.chain = chain
        self.id = airdrop_id
        self.authority = chain.make_wallet("authority")
        self.wallets = [chain.make_wallet(f"claimer {i}") for i in range(3)]
        self.token = mint or TokenMint(chain, self.authority, "collateral")
        self.mint = self.token.address
        self.address = find_airdrop(airdrop_id)
        self.vault = self.token.find_account(self.address)
        keys = [wallet.pubkey() for wallet in self.wallets]
        self.lines = [
            Allocation(keys[0], 1000, 0, chain.now, 100),
            Allocation(keys[1], 500),
            Allocation(keys[2], 500, 3),
            Allocation(keys[2], 40, 4),
        ]
        """1000 over 100 seconds from now, 500 at once, and two lines of one wallet."""
        self.tree = AllocationTree(self.lines)

    # ---- sending ------------------------------------------------------------------------------------------

    def encode(
        self, name: str, accounts: dict[str, Any], args: dict[str, Any], changes: dict[str, Any]
    ) -> Instruction:
        unsigned = changes.pop("unsigned", None)
        unknown = set(changes) - set(accounts) - set(args)
        assert not unknown, unknown
        accounts = {key: changes.get(key, value) for key, value in accounts.items()}
        args = {key: changes.get(key, value) for key, value in args.items()}
        instruction = get_program("distributor").encode(name, accounts, args)
        if unsigned is None:
            return instruction
        entry = next(e for e in read_idl("distributor")["instructions"] if to_snake(e["name"]) == name)
        at = [to_snake(meta["name"]) for meta in entry["accounts"]].index(unsigned)
        metas = list(instruction.accounts)
        metas[at] = AccountMeta(metas[at].pubkey, False, metas[at].is_writable)
        return Instruction(instruction.program_id, bytes(instruction.data), metas)

    def send(self, instruction: Instruction, signers: Sequence[Keypair | None]) -> None:
        """Signed by those of ``signers`` whose signature it asks for, or by a bystander; the first pays."""
        asked = {meta.pubkey for meta in instruction.accounts if meta.is_signer}
        wallets = {key.pubkey(): key for key in signers if key is not None and key.pubkey() in asked}
        self.chain.send([instruction], list(wallets.values()) or [self.chain.make_wallet("bystander")])

    def create(
        self,
        *,
        guaranteed_until: int = NO_GUARANTEE,
        signer: Keypair | None = None,
        payer: Keypair | None = None,
        **changes: Any,
    ) -> None:
        """airdrop_create; ``signer`` is the authority, and pays unless ``payer`` does."""
        signer = signer or self.authority
        payer = payer or signer
        accounts = {
            "payer": payer.pubkey(),
            "authority": signer.pubkey(),
            "airdrop": self.address,
            "airdrop_collateral": self.vault,
            "collateral_mint": self.mint,
            "associated_token_program": ASSOCIATED_TOKEN_PROGRAM,
            "token_program": self.token.program,
            "system_program": SYSTEM_PROGRAM,
        }
        args = {
            "id": self.id,
            "list": self.pack_list(self.tree),
            "guaranteed_until_unix_timestamp": guaranteed_until,
            "metadata": b"about",
        }
        self.send(self.encode("airdrop_create", accounts, args, changes), [payer, signer])

    def create_id(self, airdrop_id: int, **changes: Any) -> None:
        """airdrop_create of another airdrop of this mint; a vault of None is the right one for its mint."""
        address = find_airdrop(airdrop_id)
        mint = changes.get("collateral_mint", self.mint)
        vault = changes.get("airdrop_collateral") or find_token_account(address, mint, self.token.program)
        changes["airdrop_collateral"] = vault
        self.create(**{"id": airdrop_id, "airdrop": address, **changes})

    @staticmethod
    def pack_list(tree: AllocationTree) -> bytes:
        return tree.merkle_root + tree.total_amount.to_bytes(8, "little")

    def open(self, amount: int = 2040, **changes: Any) -> None:
        """Create it, fill its vault, and make token accounts and claims of all lines."""
        self.create(**changes)
        self.fund(amount)
        for wallet in self.wallets:
            self.make_collateral(wallet)
        for line in self.tree.allocations:
            self.create_claim(self.get_wallet(line), line.nonce)

    def update(self, signer: Keypair | None = None, **changes: Any) -> None:
        """airdrop_update; everything left out is absent."""
        signer = signer or self.authority
        accounts = {"authority": signer.pubkey(), "airdrop": self.address}
        names = ("claim_freeze", "list", "guaranteed_until_unix_timestamp", "metadata")
        self.send(self.encode("airdrop_update", accounts, dict.fromkeys(names), changes), [signer])

    def withdraw(self, amount: int, signer: Keypair | None = None, **changes: Any) -> None:
        """airdrop_withdraw to the authority's token account."""
        signer = signer or self.authority
        accounts = {
            "authority": signer.pubkey(),
            "airdrop": self.address,
            "airdrop_collateral": self.vault,
            "recipient_collateral": self.token.find_account(self.authority.pubkey()),
            "collateral_mint": self.mint,
            "token_program": self.token.program,
        }
        args = {"collateral_amount": amount}
        self.send(self.encode("airdrop_withdraw", accounts, args, changes), [signer])

    def create_claim(
        self, claimer: Keypair, nonce: int, payer: Keypair | None = None, **changes: Any
    ) -> None:
        """claim_create."""
        accounts = {
            "payer": (payer or claimer).pubkey(),
            "claimer": claimer.pubkey(),
            "airdrop": self.address,
            "claim": find_claim(self.address, claimer.pubkey(), nonce),
            "system_program": SYSTEM_PROGRAM,
        }
        self.send(self.encode("claim_create", accounts, {"nonce": nonce}, changes), [payer, claimer])

    def encode_redeem(self, line: Allocation, amount: int, **changes: Any) -> Instruction:
        """claim_redeem by the line's wallet."""
        accounts = {
            "claimer": line.wallet,
            "claimer_collateral": self.token.find_account(line.wallet),
            "airdrop": self.address,
            "airdrop_collateral": self.vault,
            "collateral_mint": self.mint,
            "claim": find_claim(self.address, line.wallet, line.nonce),
            "token_program": self.token.program,
        }
        args = {
            "nonce": line.nonce,
            "start_unix_timestamp": line.start,
            "duration_seconds": line.duration,
            "end_collateral_amount": line.amount,
            "collateral_amount": amount,
        }
        proof = changes.get("merkle_proof")
        args["merkle_proof"] = self.tree.get_proof(line) if proof is None else proof
        return self.encode("claim_redeem", accounts, args, changes)

    def redeem(self, line: Allocation, amount: int, signer: Keypair | None = None, **changes: Any) -> None:
        """claim_redeem, signed by the line's wallet, or by another one that poses as claimer."""
        if signer is not None:
            changes.setdefault("claimer", signer.pubkey())
        self.send(self.encode_redeem(line, amount, **changes), [signer or self.get_wallet(line)])

    # ---- around it ----------------------------------------------------------------------------------------

    def get_wallet(self, line: Allocation) -> Keypair:
        """Who can sign for a line."""
        return next(wallet for wallet in self.wallets if wallet.pubkey() == line.wallet)

    def make_collateral(self, owner: Keypair) -> Pubkey:
        """The owner's associated token account."""
        return self.token.make_account(owner)

    def fund(self, amount: int, account: Pubkey | None = None) -> None:
        """Mint collateral into the vault, or into another token account."""
        self.token.fund(account or self.vault, amount)

    def get_amount(self, token_account: Pubkey | None = None) -> int:
        """Base units in a token account; the vault's unless another is named."""
        return self.token.get_amount(token_account or self.vault)

    def get_paid(self, wallet: Keypair) -> int:
        """Base units in a wallet's own token account."""
        return self.get_amount(self.token.find_account(wallet.pubkey()))

    def get_airdrop(self) -> dict[str, Any]:
        """The airdrop's account."""
        data = self.chain.get_data(self.address)
        assert data is not None
        return get_program("distributor").decode_account("Airdrop", data)

    def get_claimed(self, line: Allocation) -> int:
        """What a line's claim account says."""
        data = self.chain.get_data(find_claim(self.address, line.wallet, line.nonce))
        assert data is not None
        claimed = get_program("distributor").decode_account("Claim", data)["claimed_collateral_amount"]
        return int(claimed)
