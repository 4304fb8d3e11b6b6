"""Throws damaged instructions at the programs, by seed, and judges every outcome by the rules.

An execution is one transaction with one instruction: random bytes and accounts, or an honest call of
attack_baselines with some damage, in a scene of any run state at any second. Some accepted ones are kept for
the rest of an episode, so that damage builds on damage; afterwards the scene is put back.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from attack_baselines import BASELINES
from attack_chain import CRASHES, LAMPORTS_PER_SIGNATURE, AccountState, AttackChain, Outcome
from attack_oracle import find_breaches
from attack_scenes import STATES, build_scene
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from psyche_py.chain.artifacts import PROGRAM_NAMES, get_program_id
from psyche_py.chain.pda import ASSOCIATED_TOKEN_PROGRAM, SYSTEM_PROGRAM, TOKEN_PROGRAM
from psyche_py.coordinator.layout import ACCOUNT_SIZE

EPISODE = 40
KEEP = 0.3
AT_HOME = 0.25
"""Share of the instructions that are made from those that are right in the scene."""
MAX_DATA = 900
"""Bytes; with the accounts a transaction of 1,232 holds no more."""
EVIL = Pubkey(bytes([0xE7] * 32))
"""Address of a program of the attacker's, who can own accounts of any content."""
NUMBERS = (0, 1, 2, 31, 32, 33, 255, 256, 2**16 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
DISTANCES = (0, 1, 2, 3, 4, 5, 9, 10, 19, 20, 21, 29, 30, 31, 99, 100, 101, 3_600, 40 * 24 * 3_600)
"""Seconds that pass before an episode: around the scenes' timers, and beyond a delegate's protection."""


@dataclass
class Finding:
    """An outcome that the rules do not allow."""

    execution: int
    state: str
    what: str
    instruction: str
    breaches: list[str]


@dataclass
class Report:
    """Counts of a fuzzing run."""

    executions: int = 0
    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    crashes: int = 0
    max_units: int = 0


@dataclass
class Seed:
    """An honest call to damage."""

    name: str
    instruction: Instruction
    state: str
    """The scene in which it is right."""


class Fuzzer:
    """Everything follows from ``seed``."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.report = Report()
        self.scenes = {state: build_scene(state, is_signed=False) for state in STATES}
        self.seeds = [
            Seed(f"{base.program}.{base.name}", base.build(self.scenes[base.state]), base.state)
            for base in BASELINES.values()
        ]
        self._share_accounts()
        self.keys = {key: pair for scene in self.scenes.values() for key, pair in scene.chain.keys.items()}
        for scene in self.scenes.values():
            scene.chain.keys.update(self.keys)
        self.pool = self._make_pool()

    def _share_accounts(self) -> None:
        """What an honest call needs in its own scene is put into the others."""
        for base, seed in zip(BASELINES.values(), self.seeds, strict=True):
            home = self.scenes[base.state].chain
            for meta in seed.instruction.accounts:
                state = home.get_state(meta.pubkey)
                for scene in self.scenes.values():
                    if state.lamports and not scene.chain.get_state(meta.pubkey).lamports:
                        scene.chain.set_state(meta.pubkey, state)

    def _make_pool(self) -> list[Pubkey]:
        """Accounts to put where they do not belong: everybody's, forged copies, empty and odd-sized ones."""
        known = {meta.pubkey for seed in self.seeds for meta in seed.instruction.accounts}
        scene = self.scenes["training"]
        known |= {scene.run.address, scene.run.instance, scene.rival.address, scene.rival.instance}
        known |= set(scene.rival_funded.get_claim_accounts(scene.rival_funded.wallets[0]).values())
        known |= set(self.keys)
        forged = {Pubkey(bytes(31 * [1]) + bytes([i])): key for i, key in enumerate(sorted(known, key=bytes))}
        owners = [*map(get_program_id, PROGRAM_NAMES), TOKEN_PROGRAM, EVIL]
        sizes = (0, 1, 8, 25, 90, 141, 165, 193, ACCOUNT_SIZE - 8, ACCOUNT_SIZE, ACCOUNT_SIZE + 8)
        odd = {
            Pubkey(bytes(30 * [2]) + bytes([i, j])): AccountState(10**9, owner, bytes(size))
            for i, owner in enumerate(owners)
            for j, size in enumerate(sizes)
        }
        for scene in self.scenes.values():
            for address, original in forged.items():
                state = scene.chain.get_state(original)
                if state.data and state.owner in owners:
                    scene.chain.set_state(address, state._replace(owner=EVIL))
            for address, state in odd.items():
                scene.chain.set_state(address, state)
        programs = [*map(get_program_id, PROGRAM_NAMES), TOKEN_PROGRAM, ASSOCIATED_TOKEN_PROGRAM]
        return sorted({*known, *forged, *odd, *programs, SYSTEM_PROGRAM}, key=bytes)

    # ---- running ------------------------------------------------------------------------------------------

    def run(self, executions: int, progress: Callable[[Report], None] | None = None) -> Report:
        """At least so many executions; ``progress`` is called after every hundredth of them."""
        mark = 0
        while self.report.executions < executions:
            self._run_episode(self.rng.choice(STATES))
            if progress is not None and self.report.executions * 100 // executions > mark:
                mark = self.report.executions * 100 // executions
                progress(self.report)
        return self.report

    def _run_episode(self, state: str) -> None:
        scene = self.scenes[state]
        chain, originals = scene.chain, dict[Pubkey, AccountState]()
        now, slot = chain.now, chain.slot
        chain.advance(self.rng.choice(DISTANCES))
        for _ in range(EPISODE):
            name, instruction = self._make_instruction(state)
            outcome = chain.attempt(instruction)
            self._judge(chain, state, name, instruction, outcome)
            if outcome.error is None and outcome.changes and self.rng.random() < KEEP:
                for address, (before, _) in outcome.changes.items():
                    originals.setdefault(address, before)
                chain.commit(instruction)
                self._refund(chain, outcome)
        for address, original in originals.items():
            chain.set_state(address, original)
        chain.now, chain.slot = now, slot
        chain.advance(0)
        chain.slot = slot

    def _refund(self, chain: AttackChain, outcome: Outcome) -> None:
        """The fee, so that the payer never runs dry."""
        payer = chain.payer.pubkey()
        state = chain.get_state(payer)
        fee = LAMPORTS_PER_SIGNATURE * len(outcome.signers)
        chain.set_state(payer, state._replace(lamports=state.lamports + fee))

    def _judge(
        self, chain: AttackChain, state: str, name: str, instruction: Instruction, outcome: Outcome
    ) -> None:
        report = self.report
        report.executions += 1
        report.max_units = max(report.max_units, outcome.units)
        if outcome.error is None:
            report.accepted[name] += 1
        else:
            report.refused[outcome.error] += 1
            report.crashes += outcome.error in CRASHES
        breaches = find_breaches(chain, instruction, outcome)
        if breaches:
            text = describe_instruction(instruction)
            report.findings.append(Finding(report.executions, state, name, text, breaches))

    # ---- damage -------------------------------------------------------------------------------------------

    def _make_instruction(self, state: str) -> tuple[str, Instruction]:
        rng = self.rng
        at_home = [seed for seed in self.seeds if seed.state == state] if rng.random() < AT_HOME else []
        seed = rng.choice(at_home or self.seeds)
        data, metas = bytearray(seed.instruction.data), list(seed.instruction.accounts)
        program = seed.instruction.program_id
        roll = rng.random()
        if roll < 0.08:
            data = bytearray(rng.randbytes(rng.randrange(200)))
            metas = [self._make_meta() for _ in range(rng.randrange(20))]
        elif roll < 0.16:
            data = data[:8] + rng.randbytes(rng.choice([len(data) - 8, rng.randrange(300)]))
        elif roll < 0.9:
            for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 5])):
                data, metas = self._damage(data, metas)
        if rng.random() < 0.02:
            program = get_program_id(rng.choice(PROGRAM_NAMES))
        return seed.name, Instruction(program, bytes(data[:MAX_DATA]), metas)

    def _make_meta(self) -> AccountMeta:
        key = self.rng.choice(self.pool)
        return AccountMeta(key, key in self.keys and self.rng.random() < 0.5, self.rng.random() < 0.7)

    def _damage(self, data: bytearray, metas: list[AccountMeta]) -> tuple[bytearray, list[AccountMeta]]:
        rng = self.rng
        kinds = (*3 * (_flip_bits,), *6 * (_set_number,), _cut, _extend, _splice)
        if not metas or rng.random() < 0.4:
            return rng.choice(kinds)(self, bytearray(data)), metas
        metas, slot = list(metas), rng.randrange(len(metas))
        old, kind = metas[slot], rng.randrange(8)
        if kind <= 1:
            pubkey = rng.choice(self.pool)
            is_signer = old.is_signer and pubkey in self.keys
            metas[slot] = AccountMeta(pubkey, is_signer, old.is_writable)
        elif kind == 2:
            other = metas[rng.randrange(len(metas))].pubkey
            metas[slot] = AccountMeta(other, old.is_signer and other in self.keys, old.is_writable)
        elif kind == 3:
            other_slot = rng.randrange(len(metas))
            metas[slot], metas[other_slot] = metas[other_slot], metas[slot]
        elif kind == 4:
            metas[slot] = AccountMeta(
                old.pubkey, old.pubkey in self.keys and not old.is_signer, old.is_writable
            )
        elif kind == 5:
            metas[slot] = AccountMeta(old.pubkey, old.is_signer, not old.is_writable)
        elif kind == 6:
            del metas[slot]
        else:
            metas.insert(slot, self._make_meta())
        return data, metas


def _flip_bits(fuzzer: Fuzzer, data: bytearray) -> bytearray:
    for _ in range(fuzzer.rng.choice([1, 1, 2, 4])):
        if data:
            data[fuzzer.rng.randrange(len(data))] ^= 1 << fuzzer.rng.randrange(8)
    return data


def _set_number(fuzzer: Fuzzer, data: bytearray) -> bytearray:
    """A number at the edge of a range, somewhere behind the discriminator."""
    size = fuzzer.rng.choice([1, 2, 4, 8])
    if len(data) >= 8 + size:
        at = fuzzer.rng.randrange(8, len(data) - size + 1)
        data[at : at + size] = (fuzzer.rng.choice(NUMBERS) % 256**size).to_bytes(size, "little")
    return data


def _cut(fuzzer: Fuzzer, data: bytearray) -> bytearray:
    return data[: fuzzer.rng.randrange(len(data) + 1)]


def _extend(fuzzer: Fuzzer, data: bytearray) -> bytearray:
    return data + fuzzer.rng.randbytes(fuzzer.rng.choice([1, 1, 4, 8, 32, 100]))


def _splice(fuzzer: Fuzzer, data: bytearray) -> bytearray:
    """The arguments of another instruction."""
    return data[:8] + bytes(fuzzer.rng.choice(fuzzer.seeds).instruction.data)[8:]


def describe_instruction(instruction: Instruction) -> str:
    """Enough to send it again."""
    metas = " ".join(
        f"{meta.pubkey}:{'s' * meta.is_signer}{'w' * meta.is_writable}" for meta in instruction.accounts
    )
    return f"{instruction.program_id} {bytes(instruction.data).hex()} [{metas}]"
