"""Whose fault a transaction error is."""

from __future__ import annotations

import pytest
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.decode_error import to_exception
from psyche_py.chain.errors import InsufficientFunds, ProgramError, TransactionFailed, WrongCluster
from psyche_py.chain.pda import SYSTEM_PROGRAM, TOKEN_PROGRAM

STRANGER = Pubkey([3] * 32)


def call(program_id: Pubkey) -> list[Instruction]:
    return [Instruction(STRANGER, b"", []), Instruction(program_id, b"", [])]


def custom(code: int) -> dict:
    return {"InstructionError": [1, {"Custom": code}]}


def test_program_error_by_outer_program() -> None:
    error = to_exception(custom(6003), (), call(get_program_id("coordinator")))
    assert isinstance(error, ProgramError)
    assert (error.code, error.name, error.program) == (6003, "ClientsFull", "coordinator")
    assert error.remedy


def test_the_innermost_program_decides() -> None:
    coordinator, treasurer = get_program_id("coordinator"), get_program_id("treasurer")
    logs = [
        f"Program {treasurer} invoke [1]",
        f"Program {coordinator} invoke [2]",
        f"Program {coordinator} failed: custom program error: 0x1771",
        f"Program {treasurer} failed: custom program error: 0x1771",
    ]
    error = to_exception(custom(6001), logs, call(treasurer))
    assert isinstance(error, ProgramError)
    assert (error.program, error.name) == ("coordinator", "UpdateConfigNotHalted")
    by_outer = to_exception(custom(6001), logs[:2], call(treasurer))
    assert isinstance(by_outer, ProgramError)
    assert by_outer.program == "treasurer"


def test_each_program_has_its_own_remedy_for_a_name_that_two_share() -> None:
    for program, code, command in (("distributor", 6003, "airdrop show"), ("mining_pool", 6000, "pool show")):
        error = to_exception(custom(code), (), call(get_program_id(program)))
        assert isinstance(error, ProgramError)
        assert (error.name, error.program) == ("ParamsCollateralAmountIsTooLarge", program)
        assert command in error.remedy


def test_unknown_codes_and_programs() -> None:
    unknown = to_exception(custom(9999), (), call(get_program_id("coordinator")))
    assert isinstance(unknown, ProgramError)
    assert (unknown.code, unknown.name) == (9999, "")
    other = to_exception(custom(5), (), call(STRANGER))
    assert isinstance(other, ProgramError)
    assert other.program == str(STRANGER)


@pytest.mark.parametrize("program", [SYSTEM_PROGRAM, TOKEN_PROGRAM])
def test_too_little_money_in_a_program(program: Pubkey) -> None:
    assert isinstance(to_exception(custom(1), (), call(program)), InsufficientFunds)


@pytest.mark.parametrize(
    ("err", "kind"),
    [
        ("AccountNotFound", InsufficientFunds),
        ("InsufficientFundsForFee", InsufficientFunds),
        ({"InsufficientFundsForRent": {"account_index": 1}}, InsufficientFunds),
        ("ProgramAccountNotFound", WrongCluster),
        ({"InstructionError": [1, "UnsupportedProgramId"]}, WrongCluster),
        ({"InstructionError": [1, "ComputationalBudgetExceeded"]}, TransactionFailed),
        ({"InstructionError": [7, {"BorshIoError": "x"}]}, TransactionFailed),
        ("WouldExceedMaxBlockCostLimit", TransactionFailed),
        ({"DuplicateInstruction": 3}, TransactionFailed),
    ],
)
def test_runtime_errors(err: object, kind: type) -> None:
    error = to_exception(err, (), call(STRANGER), label="tick", payer="wallet")
    assert type(error) is kind
    assert error.what.startswith("tick")
