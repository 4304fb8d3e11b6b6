"""Our programs as methods: fetch runs, take part in one, own one, get paid, lend to a pool, airdrops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_py.chain.accounts import Authorization
from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.authorization_calls import ANYBODY_KEY, AuthorizationCalls
from psyche_py.chain.bonds import BondCalls
from psyche_py.chain.distributor import DistributorCalls
from psyche_py.chain.mining_pool import PoolCalls
from psyche_py.chain.owner import OwnerCalls
from psyche_py.chain.pda import find_authorization, find_bond
from psyche_py.chain.port import TransactionResult
from psyche_py.chain.runs import RunHandle, RunListing, UnreadableRun
from psyche_py.chain.treasury import Claimable
from psyche_py.coordinator.layout import CheckpointKind, pad_text
from psyche_py.coordinator.pda import JOIN_SCOPE
from psyche_py.errors import RunStateError, UsageError

__all__ = ["Claimable", "ProgramClient", "RunHandle", "RunListing", "UnreadableRun"]

_REPO_BYTES = 128
_REVISION_BYTES = 64
_MAX_F32 = 3.4028234e38


class ProgramClient(AuthorizationCalls, OwnerCalls, BondCalls, PoolCalls, DistributorCalls):
    """Everything a wallet can do with our programs; ``payer`` signs and pays.

    Besides what each method names, sending raises what ``ChainBackend.send`` does.
    """

    # ---- authorization ------------------------------------------------------------------------------

    async def find_join_authorization(
        self, run: RunHandle, authorizer: Pubkey | None = None
    ) -> tuple[Pubkey, Authorization]:
        """The authorization by which the payer may join: its own, else everybody's.

        ``authorizer``: a grantee that has made the payer its delegate; then only its authorization counts.
        Raises RunStateError saying what is missing.
        """
        user = self.payer.pubkey()
        grantees = [user, ANYBODY_KEY] if authorizer is None else [authorizer]
        addresses = [find_authorization(run.join_authority, grantee) for grantee in grantees]
        found = await self.backend.get_multiple_accounts(addresses)
        now = (await self.backend.get_chain_time()).unix_timestamp
        problem = "is missing"
        for address, info in zip(addresses, found, strict=True):
            if info is None or info.owner != get_program_id("authorizer"):
                continue
            authorization = Authorization.decode(info)
            if not _covers(authorization, user):
                continue
            if authorization.active and not authorization.is_expired(now):
                return address, authorization
            problem = "has expired" if authorization.active else "is switched off"
        raise RunStateError(
            f"Wallet {user} may not join run {run.run_id!r}: its authorization {problem}.",
            f"Ask the run's join authority {run.join_authority} for one, or name with --authorizer a wallet "
            "that has made this one its delegate.",
        )

    async def check_authorization(self, run: RunHandle, authorizer: Pubkey | None = None) -> Pubkey:
        """Address of the authorization that lets the payer join. Raises RunStateError when there is none."""
        address, _ = await self.find_join_authorization(run, authorizer)
        return address

    # ---- taking part --------------------------------------------------------------------------------

    async def join_run(
        self,
        run: RunHandle,
        *,
        p2p_key: Keypair,
        address_hint: bytes,
        authorizer: Pubkey | None = None,
        bond: Pubkey | None = None,
    ) -> TransactionResult:
        """Take part from the next epoch on.

        ``p2p_key`` is the ed25519 key of our libp2p identity, which signs to show that it is ours,
        ``address_hint`` the packed 64 bytes, and ``bond`` the treasurer's account of our bond, in a run that
        asks for one. Raises RunStateError when the payer is not authorized; ProgramError BondMissing,
        ClientsFull, ClientKeysInUse, P2pKeyInUse.
        """
        address, _ = await self.find_join_authorization(run, authorizer)
        accounts = {
            "user": self.payer.pubkey(),
            "p2p": p2p_key.pubkey(),
            "instance": run.instance,
            "coordinator_account": run.coordinator_account,
            "authorization": address,
        }
        if bond is None and run.treasurer_run is not None:
            bond = find_bond(run.treasurer_run, self.payer.pubkey())
        if bond is not None:
            accounts["bond"] = bond
        args = {"address_hint": address_hint}
        instruction = get_program("coordinator").encode("join_run", accounts, args)
        return await self._send([instruction], f"join run {run.run_id}", p2p_key)

    async def migrate(self, run_id: str) -> TransactionResult:
        """Bring the account of a run made by an older release to this version; anybody may.

        Raises AccountNotFound; ProgramError NothingToMigrate.
        """
        address, instance = await self.fetch_instance(run_id)
        accounts = {
            "user": self.payer.pubkey(),
            "instance": address,
            "coordinator_account": instance.coordinator_account,
        }
        instruction = get_program("coordinator").encode("migrate", accounts, {})
        return await self._send([instruction], f"migrate run {run_id}")

    async def leave_run(self, run: RunHandle) -> TransactionResult:
        """Withdraw; what was earned stays."""
        return await self._act(run, "leave_run", {})

    async def tick(self, run: RunHandle) -> TransactionResult:
        """Let time act on the run. Raises ProgramError Halted."""
        return await self._act(run, "tick", {})

    async def warmup_witness(self, run: RunHandle, *, index: int) -> TransactionResult:
        """Our model is in place; ``index`` is our place in the epoch."""
        return await self._act(run, "warmup_witness", {"index": index})

    async def witness(
        self,
        run: RunHandle,
        *,
        index: int,
        step: int,
        participants: Sequence[int],
        broadcast_bloom: Sequence[int],
        broadcast_merkle: bytes,
        state_digest: bytes,
        tokens_per_second: float,
        bandwidth_per_second: float,
        loss: float,
        efficiency: float,
    ) -> TransactionResult:
        """Attest the previous round's results: bitmap as 4 words of 64 bits, bloom filter as 16.

        Raises ProgramError DuplicateWitness, InvalidWitness, WitnessesFull, InvalidRunState.
        """
        metadata = {
            "tokens_per_sec": _to_f32(tokens_per_second),
            "bandwidth_per_sec": _to_f32(bandwidth_per_second),
            "loss": _to_f32(loss),
            "efficiency": _to_f32(efficiency),
        }
        args = {
            "index": index,
            "step": step,
            "participants": [int(word) for word in participants],
            "broadcast_bloom": [int(word) for word in broadcast_bloom],
            "broadcast_merkle": broadcast_merkle,
            "state_digest": state_digest,
            "metadata": metadata,
        }
        return await self._act(run, "witness", args)

    async def health_check(self, run: RunHandle, *, index: int) -> TransactionResult:
        """Report epoch client ``index``, which the witnesses did not see. Raises InvalidHealthCheck."""
        return await self._act(run, "health_check", {"index": index})

    async def announce(self, run: RunHandle, *, address_hint: bytes) -> TransactionResult:
        """Say where we are to be reached from now on (packed, 64 bytes). Raises InvalidAddressHint."""
        return await self._act(run, "announce", {"address_hint": address_hint})

    async def verdict(
        self, run: RunHandle, *, index: int, trainer: int, height: int, reason: int, evidence_hash: bytes
    ) -> TransactionResult:
        """Accuse epoch client ``trainer`` for its result of the round of ``height``, as ``index`` (ours).

        Raises ProgramError NotTheVerifier, DuplicateVerdict, DisputesFull, ClientNotInEpoch, InvalidRunState.
        """
        args = {
            "index": index,
            "trainer": trainer,
            "height": height,
            "reason": reason,
            "evidence_hash": evidence_hash,
        }
        return await self._act(run, "verdict", args)

    async def vote(
        self, run: RunHandle, *, index: int, evidence_hash: bytes, is_guilty: bool
    ) -> TransactionResult:
        """Decide, as tie-breaker ``index`` (ours), the dispute with this evidence.

        Raises ProgramError NoSuchDispute (settled meanwhile), VotingOver, NotATieBreaker, DuplicateVote.
        """
        args = {"index": index, "evidence_hash": evidence_hash, "is_guilty": is_guilty}
        return await self._act(run, "vote", args)

    async def checkpoint(
        self, run: RunHandle, *, kind: CheckpointKind | str, repo: str, revision: str = ""
    ) -> TransactionResult:
        """Name the place of a new checkpoint. Raises UsageError when a text is too long."""
        kind = CheckpointKind[kind] if isinstance(kind, str) else kind
        try:
            args = {
                "kind": int(kind),
                "repo": pad_text(repo, _REPO_BYTES),
                "revision": pad_text(revision, _REVISION_BYTES),
            }
        except ValueError as error:
            raise UsageError(f"The checkpoint's place is too long: {error}.", "Use a shorter path.") from None
        return await self._act(run, "checkpoint", args)

    async def _act(self, run: RunHandle, name: str, args: dict[str, Any]) -> TransactionResult:
        return await self._send([self._build(name, run, "user", args)], f"{name} of run {run.run_id}")


def _to_f32(value: float) -> float:
    """A number that a 32-bit float holds; Borsh has no NaN, so what is none of these becomes 0."""
    return value if abs(value) <= _MAX_F32 else 0.0


def _covers(authorization: Authorization, user: Pubkey) -> bool:
    return authorization.scope == JOIN_SCOPE and (
        authorization.grantee in (user, ANYBODY_KEY) or user in authorization.delegates
    )
