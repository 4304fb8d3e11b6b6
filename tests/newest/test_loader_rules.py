"""Who may upgrade, what the cluster takes, and that it is the loader who says so."""

from __future__ import annotations

from typing import Any

import loader_chain
import pytest
from loader_chain import AUTHORITY, OTHER
from solders.account import Account
from solders.instruction import Instruction
from solders.litesvm import LiteSVM
from solders.pubkey import Pubkey

from psyche_py.chain import upgradeable_loader as loader
from psyche_py.chain.artifacts import PROGRAM_NAMES, SBPF_VERSIONS, get_program_id, read_program

ENABLE_V3 = Pubkey.from_string("5cC3foj77CWun58pC51ebHFUWavHWKarWyR5UUik7dnC")
DISABLE_OLDER = Pubkey.from_string("B8JJXCy5amZyWG9r7EnUYLwzXSXTxG7GZ1qZ1qggo83g")
"""SIMD-0500: no more deployments of SBPF v0, v1 and v2. Not active on any public cluster as of 2026-07."""

PROGRAM = get_program_id("authorizer")
SOONER = read_program("treasurer", 3)
LATER = read_program("authorizer", 3)


def make_chain(*, active: tuple[Pubkey, ...] = (), inactive: tuple[Pubkey, ...] = ()) -> Any:
    """A chain with mainnet's features and these changes."""
    factory: Any = LiteSVM
    features = factory.mainnet_feature_set()
    for feature in active:
        features.activate(feature, 0)
    for feature in inactive:
        features.deactivate(feature)
    return loader_chain.make_svm(features)


@pytest.mark.parametrize("version", SBPF_VERSIONS)
@pytest.mark.parametrize("name", PROGRAM_NAMES)
def test_every_program_passes_the_loaders_verifier(name: str, version: int) -> None:
    svm, elf = loader_chain.make_svm(), read_program(name, version)
    assert loader_chain.deploy(svm, get_program_id(name), elf) is None
    assert loader_chain.read_code(svm, get_program_id(name)) == elf.rstrip(b"\0")
    assert svm.get_account(get_program_id(name)).executable


def test_a_damaged_program_is_refused() -> None:
    elf = bytearray(LATER)
    elf[len(elf) // 2 : len(elf) // 2 + 64] = b"\xff" * 64
    assert loader_chain.deploy(loader_chain.make_svm(), PROGRAM, bytes(elf)) == "InvalidAccountData"


@pytest.mark.parametrize(("version", "error"), [(0, "InvalidAccountData"), (3, None)])
def test_only_v3_can_be_deployed_once_older_formats_are_disabled(version: int, error: str | None) -> None:
    svm = make_chain(active=(DISABLE_OLDER,))
    assert loader_chain.deploy(svm, PROGRAM, read_program("authorizer", version)) == error


def test_a_program_deployed_as_v0_keeps_running_once_older_formats_are_disabled() -> None:
    svm = make_chain(active=(DISABLE_OLDER,))
    svm.add_program(PROGRAM, read_program("authorizer", 0))
    assert loader_chain.send(svm, [Instruction(PROGRAM, b"", [])]) == "InstructionErrorCustom(6100)"


@pytest.mark.parametrize(("version", "error"), [(0, None), (3, "InvalidAccountData")])
def test_only_v0_can_be_deployed_where_v3_is_not_enabled(version: int, error: str | None) -> None:
    svm = make_chain(inactive=(ENABLE_V3,))
    assert loader_chain.deploy(svm, PROGRAM, read_program("authorizer", version)) == error


def test_the_upgrade_authority_and_nobody_else_may_upgrade() -> None:
    svm = loader_chain.make_svm()
    assert loader_chain.deploy(svm, PROGRAM, SOONER) is None
    svm.warp_to_slot(svm.get_clock().slot + 1)
    buffer = loader_chain.fill_buffer(svm, LATER)
    wrong = loader.upgrade(PROGRAM, buffer, OTHER, OTHER)
    assert loader_chain.send(svm, [wrong], OTHER) == "IncorrectAuthority"
    assert loader_chain.read_code(svm, PROGRAM) == SOONER.rstrip(b"\0")
    right = loader.upgrade(PROGRAM, buffer, AUTHORITY, AUTHORITY)
    assert loader_chain.send(svm, [right]) is None
    assert loader_chain.read_code(svm, PROGRAM) == LATER.rstrip(b"\0")


def test_an_authority_that_did_not_sign_is_none() -> None:
    svm = loader_chain.make_svm()
    assert loader_chain.deploy(svm, PROGRAM, SOONER) is None
    svm.warp_to_slot(svm.get_clock().slot + 1)
    buffer = loader_chain.fill_buffer(svm, LATER)
    unsigned = loader.upgrade(PROGRAM, buffer, AUTHORITY, OTHER)
    accounts = list(unsigned.accounts)
    accounts[-1] = type(accounts[-1])(AUTHORITY, False, False)
    forged = type(unsigned)(loader.LOADER, bytes(unsigned.data), accounts)
    assert loader_chain.send(svm, [forged], OTHER) == "MissingRequiredSignature"


def test_a_buffer_of_another_authority_cannot_be_used_or_written() -> None:
    svm = loader_chain.make_svm()
    assert loader_chain.deploy(svm, PROGRAM, SOONER) is None
    svm.warp_to_slot(svm.get_clock().slot + 1)
    rent = svm.minimum_balance_for_rent_exemption(loader.BUFFER_HEADER_BYTES + len(LATER))
    assert loader_chain.send(svm, loader.open_buffer(OTHER, LATER, OTHER, rent), OTHER) is None
    buffer = loader.find_buffer(OTHER, LATER, OTHER)
    assert loader_chain.send(svm, [loader.write(buffer, AUTHORITY, 0, b"x")]) == "IncorrectAuthority"
    upgrade = loader.upgrade(PROGRAM, buffer, AUTHORITY, AUTHORITY)
    assert loader_chain.send(svm, [upgrade]) == "IncorrectAuthority"


def test_authority_is_handed_over_and_given_up_for_ever() -> None:
    svm = loader_chain.make_svm()
    assert loader_chain.deploy(svm, PROGRAM, SOONER) is None
    svm.warp_to_slot(svm.get_clock().slot + 1)
    assert loader_chain.send(svm, [loader.set_upgrade_authority(PROGRAM, AUTHORITY, OTHER)]) is None
    assert loader_chain.upgrade(svm, PROGRAM, LATER) == "IncorrectAuthority"
    assert loader_chain.send(svm, [loader.set_upgrade_authority(PROGRAM, OTHER, None)], OTHER) is None
    for authority in (AUTHORITY, OTHER):
        back = loader.set_upgrade_authority(PROGRAM, authority, AUTHORITY)
        assert loader_chain.send(svm, [back], authority) == "Immutable"
    late = loader.upgrade(PROGRAM, loader.find_buffer(AUTHORITY, LATER, AUTHORITY), AUTHORITY, AUTHORITY)
    assert loader_chain.send(svm, [late]) == "Immutable"
    assert loader_chain.read_code(svm, PROGRAM) == SOONER.rstrip(b"\0")


def test_a_larger_build_needs_an_extension_of_at_least_ten_kibibytes() -> None:
    svm = loader_chain.make_svm()
    assert loader_chain.deploy(svm, PROGRAM, LATER) is None
    svm.warp_to_slot(svm.get_clock().slot + 1)
    assert loader_chain.upgrade(svm, PROGRAM, SOONER) == "AccountDataTooSmall"
    assert loader_chain.send(svm, [loader.extend(PROGRAM, AUTHORITY, 1)]) == "InvalidArgument"
    missing = max(len(SOONER) - len(LATER), loader.MIN_EXTENSION_BYTES)
    assert loader_chain.send(svm, [loader.extend(PROGRAM, AUTHORITY, missing)]) is None
    buffer = loader.find_buffer(AUTHORITY, SOONER, AUTHORITY)
    upgrade = loader.upgrade(PROGRAM, buffer, AUTHORITY, AUTHORITY)
    assert loader_chain.send(svm, [upgrade]) == "InvalidArgument"  # in the slot of the extension
    svm.warp_to_slot(svm.get_clock().slot + 1)
    assert loader_chain.send(svm, [upgrade]) is None
    assert loader_chain.read_code(svm, PROGRAM) == SOONER.rstrip(b"\0")


def test_a_lamport_from_a_stranger_stops_no_deployment() -> None:
    """create_account would fail for good on an address that holds lamports already."""
    svm = loader_chain.make_svm()
    for address in (PROGRAM, loader.find_buffer(AUTHORITY, LATER, AUTHORITY)):
        svm.set_account(address, Account(1_000_000, b"", Pubkey.default()))
    assert loader_chain.deploy(svm, PROGRAM, LATER) is None
