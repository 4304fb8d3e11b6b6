"""The coordinator refuses everything that is not exactly what it expects, before it reads a field."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from programs_harness import ProgramChain, RunHarness, make_config, make_model, refused
from solders.account import Account
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import SYSTEM_PROGRAM
from psyche_py.coordinator.layout import ACCOUNT_SIZE, CheckpointKind, OptimizerKind
from psyche_py.coordinator.model import Progress


@pytest.fixture
def run() -> RunHarness:
    run = RunHarness(ProgramChain())
    run.open(2)
    return run


def set_data(run: RunHarness, address: Pubkey, change: Callable[[bytearray], None], **fields: Pubkey) -> None:
    """Damage an account behind the program's back."""
    account = run.chain.svm.get_account(address)
    data = bytearray(account.data)
    change(data)
    owner = fields.get("owner", account.owner)
    run.chain.svm.set_account(address, Account(account.lamports, bytes(data), owner))


def zero_first(data: bytearray) -> None:
    data[0] ^= 1


def test_only_the_owner_owns(run: RunHarness) -> None:
    thief = run.chain.make_wallet("thief")
    for name, args in (
        ("set_paused", {"paused": True}),
        ("update_client_version", {"client_version": "x"}),
        ("set_future_epoch_rates", {"earning_rate_total_shared": 1, "slashing_rate_per_client": 1}),
        ("free_coordinator", {}),
    ):
        with refused("WrongAuthority"):
            run.own(name, signer=thief, **args)


def test_the_authority_must_sign(run: RunHarness) -> None:
    thief = run.chain.make_wallet("thief")
    data = run.encode("tick", thief).data
    metas = [
        AccountMeta(run.owner.pubkey(), False, False),
        AccountMeta(run.instance, False, False),
        AccountMeta(run.address, False, True),
    ]
    program = get_program_id("coordinator")
    with refused("NotSigner"):
        run.chain.send([Instruction(program, bytes(data), metas)], [thief])
    metas = [AccountMeta(thief.pubkey(), True, True), metas[1], AccountMeta(run.address, False, False)]
    with refused("NotWritable"):
        run.chain.send([Instruction(program, bytes(data), metas)], [thief])
    with refused("MissingAccount"):
        run.chain.send([Instruction(program, bytes(data), metas[:2])], [thief])


@pytest.mark.parametrize("data", [b"", b"\1\2\3", bytes(8), bytes(40)])
def test_unknown_instructions(run: RunHarness, data: bytes) -> None:
    with refused("InvalidInstructionData"):
        run.chain.send([Instruction(get_program_id("coordinator"), data, [])], [run.owner])


def test_arguments_must_fit_exactly(run: RunHarness) -> None:
    instruction = run.encode("warmup_witness", run.wallets[0], index=0)
    for data in (bytes(instruction.data) + b"\0", bytes(instruction.data)[:-1]):
        with refused("InvalidInstructionData"):
            run.chain.send(
                [Instruction(instruction.program_id, data, instruction.accounts)], [run.wallets[0]]
            )


def test_instance_and_account_must_belong_together(run: RunHarness) -> None:
    other = RunHarness(run.chain, "other")
    other.create()
    instance, run.instance = run.instance, other.instance
    with refused("WrongAccount"):
        run.act("tick", run.owner)
    with refused("WrongAccount"):
        run.own("set_paused", paused=True)
    run.instance = instance
    run.address = other.address
    with refused("WrongAccount"):
        run.act("tick", run.owner)


def test_a_run_account_of_a_stranger_is_no_instance(run: RunHarness) -> None:
    run.instance = run.address
    with refused("WrongDiscriminator"):
        run.act("tick", run.owner)


@pytest.mark.parametrize("target", ["instance", "address"])
def test_owner_discriminator_and_length(run: RunHarness, target: str) -> None:
    address = getattr(run, target)
    original = run.chain.svm.get_account(address)
    set_data(run, address, lambda data: None, owner=SYSTEM_PROGRAM)
    with refused("WrongOwner"):
        run.act("tick", run.owner)
    run.chain.svm.set_account(address, original)
    set_data(run, address, zero_first)
    with refused("WrongDiscriminator"):
        run.act("tick", run.owner)
    run.chain.svm.set_account(address, original)
    set_data(run, address, lambda data: data.append(0))
    with refused("WrongDiscriminator" if target == "instance" else "CoordinatorAccountIncorrectSize"):
        run.act("tick", run.owner)


def test_version(run: RunHarness) -> None:
    def age(data: bytearray) -> None:
        data[8] = 3

    set_data(run, run.address, age)
    with refused("WrongVersion"):
        run.act("tick", run.owner)


def test_creation_is_strict() -> None:
    chain = ProgramChain()
    with refused("CoordinatorAccountIncorrectSize"):
        RunHarness(chain).create(space=ACCOUNT_SIZE - 8)
    with refused("WrongOwner"):
        RunHarness(chain).create(program=get_program_id("authorizer"))
    with refused("WrongPda"):
        RunHarness(chain).create(run_id="another")
    for run_id in ("", "x" * 33, "nul\0"):
        with refused("RunIdInvalidLength"):
            RunHarness(chain).create(run_id=run_id)
    with refused("InvalidInstructionData"):
        RunHarness(chain).create(client_version="v" * 97)
    run = RunHarness(chain)
    run.create()
    second = RunHarness(chain)
    second.account_key = chain.make_wallet("other account")
    second.address = second.account_key.pubkey()
    run.chain.svm.set_account(second.address, Account(0, b"", SYSTEM_PROGRAM))
    with refused("AlreadyInitialized"):
        second.create()


def test_an_account_is_initialised_once(run: RunHarness) -> None:
    other = RunHarness(run.chain, "other")
    other.account_key, other.address = run.account_key, run.address
    with pytest.raises(pytest.fail.Exception, match="already in use"):
        other.create()


@pytest.mark.parametrize(
    "change",
    [
        {"epoch_time": 0},
        {"warmup_time": 100},
        {"max_round_train_time": 0},
        {"max_round_train_time": 100},
        {"round_witness_time": 0},
        {"min_clients": 0},
        {"init_min_clients": 1},
        {"init_min_clients": 257},
        {"global_batch_size_start": 0},
        {"global_batch_size_end": 7},
        {"total_steps": 0},
        {"witness_nodes": 3},
        {"min_clients": 40, "init_min_clients": 40, "witness_nodes": 33},
        {"cooldown_time": 0},
        {"waiting_for_members_extra_time": 0},
        {"verification_percent": 51},
        {"verification_percent": 1, "verified_tiles": 0},
        {"verification_percent": 1, "verified_tiles": 1025},
        {"verification_percent": 1, "num_tie_breakers": 0},
        {"verification_percent": 1, "num_tie_breakers": 10},
    ],
)
def test_config_rules(change: dict[str, int]) -> None:
    run = RunHarness(ProgramChain())
    run.create()
    with refused("ConfigSanityCheckFailed"):
        run.update(config=make_config(**change).to_bytes())


def test_model_rules() -> None:
    run = RunHarness(ProgramChain())
    run.create()
    run.update(config=make_config().to_bytes())
    for change in (
        {"max_seq_len": 0},
        {"optimizer_kind": OptimizerKind.AdamW},
        *({"checkpoint_kind": CheckpointKind(kind)} for kind in (0, 1, 3, 5)),
        {"checkpoint_repo": ""},
        {"data_path": ""},
        {"compression_topk": 0},
        {"compression_chunk": 0},
        {"data_token_size": 3},
        {"quantize_1bit": False},
        {"cold_start_warmup_steps": 4},
    ):
        with refused("ModelSanityCheckFailed"):
            run.update(model=make_model(**change).to_bytes())
    run.update(model=make_model(cold_start_warmup_steps=3).to_bytes())


def test_progress_rules() -> None:
    run = RunHarness(ProgramChain())
    run.create()
    for progress in (Progress(step=0), Progress(step=1, epoch_start_data_index=2**62 + 1)):
        with refused("ProgressSanityCheckFailed"):
            run.update(progress=progress.to_bytes())
    run.update(progress=Progress(step=7, epoch_start_data_index=2**62).to_bytes())
    assert (run.account.step, run.account.epoch_start_data_index) == (7, 2**62)


def test_wallets_are_limited(run: RunHarness) -> None:
    for i in range(2, 256):
        run.join(run.chain.make_wallet(f"client {i}"))
    with refused("ClientsFull"):
        run.join(run.chain.make_wallet("one too many"))
    run.join(run.wallets[0])


def test_spill_may_not_be_what_is_closed(run: RunHarness) -> None:
    run.own("set_paused", paused=True)
    metas = [
        AccountMeta(run.owner.pubkey(), True, True),
        AccountMeta(run.address, False, True),
        AccountMeta(run.instance, False, True),
        AccountMeta(run.address, False, True),
    ]
    from psyche_py.chain.anchor import get_program

    accounts = {
        "authority": run.owner.pubkey(),
        "spill": run.address,
        "instance": run.instance,
        "coordinator_account": run.address,
    }
    data = bytes(get_program("coordinator").encode("free_coordinator", accounts, {}).data)
    with refused("WrongAccount"):
        run.chain.send([Instruction(get_program_id("coordinator"), data, metas)], [run.owner])
