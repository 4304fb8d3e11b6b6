"""What the engine adds to LiteSVM: slots, blockhashes, one landing per signature, fees, ledgers."""

from __future__ import annotations

import pytest
from solders.account import Account
from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import Message, MessageV0
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction

from psyche_py.chain.engine_snapshot import MAGIC
from psyche_py.chain.errors import AirdropRefused
from psyche_py.chain.litesvm_engine import LAMPORTS_PER_SIGNATURE, MAX_BLOCKHASH_AGE_SLOTS, LiteSvmEngine
from psyche_py.errors import StorageError

SOL = 10**9
SLOT_HASHES = Pubkey.from_string("SysvarS1otHashes111111111111111111111111111")


@pytest.fixture
def engine() -> LiteSvmEngine:
    return LiteSvmEngine(unix_timestamp=1000)


@pytest.fixture
def payer(engine: LiteSvmEngine) -> Keypair:
    keypair = Keypair.from_seed(bytes([7] * 32))
    engine.airdrop(keypair.pubkey(), 10 * SOL)
    return keypair


def pay(
    engine: LiteSvmEngine, payer: Keypair, lamports: int, to: Pubkey | None = None
) -> VersionedTransaction:
    to = to or Pubkey([9] * 32)
    params = TransferParams(from_pubkey=payer.pubkey(), to_pubkey=to, lamports=lamports)
    blockhash = engine.get_latest_blockhash().blockhash
    return VersionedTransaction(
        Message.new_with_blockhash([transfer(params)], payer.pubkey(), blockhash), [payer]
    )


def test_a_transaction_lands_once(engine: LiteSvmEngine, payer: Keypair) -> None:
    transaction = pay(engine, payer, SOL)
    done = engine.process_transaction(transaction)
    assert (done.err, done.is_landed, done.fee) == (None, True, LAMPORTS_PER_SIGNATURE)
    assert done.pre_balances[0] - done.post_balances[0] == SOL + LAMPORTS_PER_SIGNATURE
    assert set(done.changed) == {payer.pubkey(), Pubkey([9] * 32)}
    again = engine.process_transaction(transaction)
    assert (again.err, again.is_landed, again.fee, again.changed) == ("AlreadyProcessed", False, 0, ())
    assert engine.get_transaction(done.signature) is done
    assert engine.get_signature_status(done.signature) == (1, None)


def test_a_blockhash_lasts_150_slots(engine: LiteSvmEngine, payer: Keypair) -> None:
    early, late = pay(engine, payer, SOL), pay(engine, payer, SOL + 1)
    last_valid = engine.get_latest_blockhash().last_valid_block_height
    while engine.block_height < last_valid:
        engine.advance_slot(1000)
    assert engine.process_transaction(early).err is None
    engine.advance_slot(1000)
    assert engine.process_transaction(late).err == "BlockhashNotFound"
    assert engine.slot == MAX_BLOCKHASH_AGE_SLOTS + 1


def test_a_failed_transaction_pays_its_fee(engine: LiteSvmEngine, payer: Keypair) -> None:
    failed = engine.process_transaction(pay(engine, payer, 10**15))
    assert failed.err == {"InstructionError": [0, {"Custom": 1}]}
    assert (failed.is_landed, failed.fee, failed.changed) == (True, LAMPORTS_PER_SIGNATURE, (payer.pubkey(),))
    assert any("insufficient lamports" in line for line in failed.logs)


def test_turned_away(engine: LiteSvmEngine, payer: Keypair) -> None:
    message = pay(engine, payer, SOL).message
    forged = VersionedTransaction.populate(message, [Signature.default()])
    assert engine.process_transaction(forged).err == "SignatureFailure"
    poor = Keypair()
    refused = engine.process_transaction(pay(engine, poor, 1))
    assert (refused.err, refused.is_landed) == ("AccountNotFound", False)
    assert engine.get_signature_status(refused.signature) is None
    nowhere = Instruction(Pubkey.new_unique(), b"", [AccountMeta(payer.pubkey(), True, True)])
    blockhash = engine.get_latest_blockhash().blockhash
    lost = VersionedTransaction(Message.new_with_blockhash([nowhere], payer.pubkey(), blockhash), [payer])
    assert engine.process_transaction(lost).err in ("ProgramAccountNotFound", "InvalidProgramForExecution")


def test_simulation_changes_nothing(engine: LiteSvmEngine, payer: Keypair) -> None:
    before = engine.snapshot()
    result = engine.simulate_transaction(pay(engine, payer, SOL), verify_signatures=True)
    assert (result.err, result.compute_units) == (None, 150)
    assert result.post_accounts[Pubkey([9] * 32)].lamports == SOL
    assert engine.snapshot() == before
    stale = VersionedTransaction(
        Message.new_with_blockhash(
            [transfer(TransferParams(from_pubkey=payer.pubkey(), to_pubkey=Pubkey([9] * 32), lamports=SOL))],
            payer.pubkey(),
            Hash([1] * 32),
        ),
        [payer],
    )
    assert engine.simulate_transaction(stale).err == "BlockhashNotFound"
    assert engine.simulate_transaction(stale, replace_recent_blockhash=True).err is None


def test_slots_and_sysvars(engine: LiteSvmEngine) -> None:
    seen: list[int] = []
    stop = engine.add_slot_listener(seen.append)
    first = engine.get_latest_blockhash()
    engine.advance_slot(1001)
    assert engine.advance_slot(900) == 3
    stop()
    engine.advance_slot(1001)
    assert seen == [2, 3]
    assert (engine.slot, engine.unix_timestamp) == (4, 1001)
    newest = engine.get_latest_blockhash()
    assert (newest.last_valid_block_height, newest.blockhash != first.blockhash) == (3 + 150, True)
    info = engine.get_account(SLOT_HASHES)
    assert info is not None
    assert info.data[8:16] == (3).to_bytes(8, "little")
    assert info.data[16:48] == bytes(newest.blockhash)


def test_the_next_blockhash_depends_on_the_transactions(payer: Keypair) -> None:
    hashes = set()
    for lamports in (SOL, 2 * SOL):
        engine = LiteSvmEngine(unix_timestamp=1000)
        engine.airdrop(payer.pubkey(), lamports)
        engine.advance_slot(1000)
        hashes.add(engine.get_latest_blockhash().blockhash)
    assert len(hashes) == 2


def test_equal_airdrops_are_two(engine: LiteSvmEngine) -> None:
    to = Pubkey([9] * 32)
    assert engine.airdrop(to, SOL).signature != engine.airdrop(to, SOL).signature
    assert engine.get_account(to).lamports == 2 * SOL  # type: ignore[union-attr]
    for lamports in (0, -1, 10**18):
        with pytest.raises(AirdropRefused):
            engine.airdrop(to, lamports)


def test_accounts_of_address_tables_are_tracked(engine: LiteSvmEngine, payer: Keypair) -> None:
    to, table = Pubkey([9] * 32), Pubkey([8] * 32)
    program = Pubkey.from_string("AddressLookupTab1e1111111111111111111111111")
    meta = (1).to_bytes(4, "little") + (2**64 - 1).to_bytes(8, "little") + bytes(44)
    engine.set_account(table, Account(10 * SOL, meta + bytes(to), program))
    instruction = transfer(TransferParams(from_pubkey=payer.pubkey(), to_pubkey=to, lamports=SOL))
    message = MessageV0.try_compile(
        payer.pubkey(),
        [instruction],
        [AddressLookupTableAccount(table, [to])],
        engine.get_latest_blockhash().blockhash,
    )
    engine.advance_slot(1000)
    done = engine.process_transaction(VersionedTransaction(message, [payer]))
    assert done.err is None
    assert done.account_keys[-1] == to
    assert to in done.changed
    assert to in {info.pubkey for info in engine.iter_accounts()}


def test_ledger(engine: LiteSvmEngine, payer: Keypair) -> None:
    transaction = pay(engine, payer, SOL)
    failed = pay(engine, payer, 10**15)
    engine.process_transaction(transaction)
    engine.process_transaction(failed)
    engine.advance_slot(1005)
    saved = engine.snapshot()
    restored = LiteSvmEngine(unix_timestamp=0, genesis_seed=b"other")
    stray = Pubkey([5] * 32)
    restored.set_account(stray, Account(SOL, b"", payer.pubkey()))
    restored.restore(saved)
    assert restored.get_account(stray) is None
    assert restored.snapshot() == saved
    assert (restored.slot, restored.unix_timestamp) == (2, 1005)
    assert restored.get_account(payer.pubkey()) == engine.get_account(payer.pubkey())
    assert restored.process_transaction(transaction).err == "AlreadyProcessed"
    status = restored.get_signature_status(failed.signatures[0])
    assert status is not None
    assert status[1] == {"InstructionError": [0, {"Custom": 1}]}
    assert restored.process_transaction(pay(restored, payer, SOL)).err is None


@pytest.mark.parametrize(
    "damage", [lambda d: b"", lambda d: d[:-1], lambda d: MAGIC + bytes(40), lambda d: d + b"x"]
)
def test_damaged_ledger(engine: LiteSvmEngine, damage) -> None:
    saved = engine.snapshot()
    with pytest.raises(StorageError):
        engine.restore(damage(saved))
    assert engine.snapshot() == saved


def test_history_forgets_only_what_can_no_longer_land(payer: Keypair) -> None:
    engine = LiteSvmEngine(unix_timestamp=0, history_capacity=2)
    engine.airdrop(payer.pubkey(), SOL)
    first = [engine.airdrop(Pubkey([9] * 32), SOL + n).transaction for n in range(4)]
    assert engine.process_transaction(first[0]).err == "AlreadyProcessed"
    for _ in range(MAX_BLOCKHASH_AGE_SLOTS + 1):
        engine.advance_slot(0)
    engine.airdrop(Pubkey([9] * 32), SOL)
    assert len(list(engine.iter_history())) == 2
    assert engine.process_transaction(first[0]).err == "BlockhashNotFound"
