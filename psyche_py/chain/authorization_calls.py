"""Who may join: giving, delegating, revoking and reading authorizations."""

from __future__ import annotations

from collections.abc import Sequence

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer

from psyche_py.chain.accounts import Authorization
from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import SYSTEM_PROGRAM, find_authorization
from psyche_py.chain.port import AccountInfo, Memcmp, TransactionResult
from psyche_py.chain.runs import RunReader
from psyche_py.coordinator.pda import ANYBODY, JOIN_SCOPE
from psyche_py.errors import RunStateError

ANYBODY_KEY = Pubkey(ANYBODY)
"""The grantee that stands for everybody; people write ``permissionless``."""
_GRANTOR_OFFSET = 8 + 1
_INSTRUCTIONS_PER_TRANSACTION = 12
"""Each names a run of its own at worst: 2 keys of 32 bytes, of a transaction's 1,232."""


class AuthorizationCalls(RunReader):
    """Mixed into ProgramClient. ``grantee`` None is everybody (permissionless)."""

    async def authorization_create(
        self,
        grantee: Pubkey | None = None,
        *,
        scope: bytes = JOIN_SCOPE,
        active: bool = True,
        expires_unix_timestamp: int = 0,
    ) -> Pubkey:
        """Let ``grantee`` join the runs whose join authority is the payer, until the expiry (0: for ever).

        Returns the authorization's address. One that exists is only switched on (or off) and gets the expiry.
        """
        grantor = self.payer.pubkey()
        address = find_authorization(grantor, grantee or ANYBODY_KEY, scope)
        info = await self.backend.get_account(address)
        instructions = []
        # somebody may have sent lamports to an address that holds nothing yet
        if info is None or info.owner != get_program_id("authorizer"):
            accounts = {
                "payer": grantor,
                "grantor": grantor,
                "authorization": address,
                "system_program": SYSTEM_PROGRAM,
            }
            args = {"grantee": grantee or ANYBODY_KEY, "scope": scope}
            instructions.append(get_program("authorizer").encode("authorization_create", accounts, args))
        elif expires_unix_timestamp:
            instructions += await self._pay_for_expiry(info)
        instructions.append(self._encode_grantor_update(address, active, expires_unix_timestamp))
        await self._send(instructions, "create authorization")
        return address

    async def _pay_for_expiry(self, info: AccountInfo) -> list[Instruction]:
        """The rent that an account of the older layout lacks for an expiry."""
        if not Authorization.lacks_expiry(info.data):
            return []
        rent = await self.backend.get_minimum_balance(len(info.data) + Authorization.EXPIRY_BYTES)
        payer = self.payer.pubkey()
        params = TransferParams(
            from_pubkey=payer, to_pubkey=info.pubkey, lamports=max(rent - info.lamports, 0)
        )
        return [transfer(params)]

    def _encode_grantor_update(self, address: Pubkey, active: bool, expires: int) -> Instruction:
        accounts = {"grantor": self.payer.pubkey(), "authorization": address}
        args = {"active": active, "expires_unix_timestamp": expires}
        return get_program("authorizer").encode("authorization_grantor_update", accounts, args)

    async def authorization_set_active(
        self, grantee: Pubkey | None, active: bool, *, scope: bytes = JOIN_SCOPE
    ) -> TransactionResult:
        """Switch an authorization of the payer on or off; its expiry stays. Raises RunStateError."""
        authorization = await self._fetch_own(grantee, scope)
        address = find_authorization(self.payer.pubkey(), authorization.grantee, scope)
        update = self._encode_grantor_update(address, active, authorization.expires_unix_timestamp)
        return await self._send([update], "update authorization")

    async def authorization_revoke(self, grantee: Pubkey | None, *, scope: bytes = JOIN_SCOPE) -> int:
        """Switch an authorization of the payer off, and take who joined with it out of the next epoch.

        Both happen in one transaction, as far as it has room. Returns how many entries were taken out, of all
        runs whose join authority the payer is; a client that is in an epoch ends it. Raises RunStateError.
        """
        authorization = await self._fetch_own(grantee, scope)
        address = find_authorization(self.payer.pubkey(), authorization.grantee, scope)
        instructions = [self._encode_grantor_update(address, False, authorization.expires_unix_timestamp)]
        removals = await self._encode_removals(address)
        instructions += removals
        for start in range(0, len(instructions), _INSTRUCTIONS_PER_TRANSACTION):
            batch = instructions[start : start + _INSTRUCTIONS_PER_TRANSACTION]
            await self._send(batch, "revoke authorization")
        return len(removals)

    async def _encode_removals(self, address: Pubkey) -> list[Instruction]:
        """One for each entry of the payer's runs that joined with the authorization at ``address``."""
        instructions = []
        for run in (await self.list_runs(join_authority=self.payer.pubkey())).runs:
            accounts = {
                "user": self.payer.pubkey(),
                "instance": run.instance,
                "coordinator_account": run.coordinator_account,
                "authorization": address,
            }
            for entry in run.account.entries:
                if entry.active and entry.authorization == bytes(address)[: len(entry.authorization)]:
                    args = {"entry": entry.index}
                    encode = get_program("coordinator").encode
                    instructions.append(encode("remove_unauthorized", accounts, args))
        return instructions

    async def _fetch_own(self, grantee: Pubkey | None, scope: bytes) -> Authorization:
        grantor = self.payer.pubkey()
        found = await self.fetch_authorization(grantor, grantee, scope=scope)
        if found is None:
            whom = "everybody" if grantee in (None, ANYBODY_KEY) else grantee
            raise RunStateError(
                f"{grantor} has not authorized {whom}.", "See run-manager join-authorization-list."
            )
        return found

    async def authorization_delegate(
        self, grantor: Pubkey, added: Sequence[Pubkey], *, clear: bool = False, scope: bytes = JOIN_SCOPE
    ) -> TransactionResult:
        """The payer, as grantee of ``grantor``, lets ``added`` wallets join in its name."""
        payer = self.payer.pubkey()
        accounts = {
            "payer": payer,
            "grantee": payer,
            "authorization": find_authorization(grantor, payer, scope),
            "system_program": SYSTEM_PROGRAM,
        }
        args = {"delegates_clear": clear, "delegates_added": list(added)}
        instruction = get_program("authorizer").encode("authorization_grantee_update", accounts, args)
        return await self._send([instruction], "delegate authorization")

    async def authorization_close(
        self, grantee: Pubkey | None, *, scope: bytes = JOIN_SCOPE
    ) -> TransactionResult:
        """Close an inactive authorization of the payer, which gets its rent back."""
        accounts = {
            "grantor": self.payer.pubkey(),
            "spill": self.payer.pubkey(),
            "authorization": find_authorization(self.payer.pubkey(), grantee or ANYBODY_KEY, scope),
        }
        instruction = get_program("authorizer").encode("authorization_close", accounts, {})
        return await self._send([instruction], "close authorization")

    async def fetch_authorization(
        self, grantor: Pubkey, grantee: Pubkey | None, *, scope: bytes = JOIN_SCOPE
    ) -> Authorization | None:
        """What ``grantor`` gave ``grantee``; None when it gave nothing."""
        info = await self.backend.get_account(find_authorization(grantor, grantee or ANYBODY_KEY, scope))
        if info is None or info.owner != get_program_id("authorizer"):
            return None
        return Authorization.decode(info)

    async def list_authorizations(self, grantor: Pubkey) -> list[Authorization]:
        """Every authorization that ``grantor`` gave."""
        found = await self.backend.get_program_accounts(
            get_program_id("authorizer"),
            memcmp=[
                Memcmp(0, Authorization.get_discriminator()),
                Memcmp(_GRANTOR_OFFSET, bytes(grantor)),
            ],
        )
        return [Authorization.decode(info) for info in found]
