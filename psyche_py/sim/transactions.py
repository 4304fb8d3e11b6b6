"""A machine's transactions as calls of the rule book."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psyche_py.client import actions as act
from psyche_py.client import verification_actions as ver
from psyche_py.coordinator import transition as rules
from psyche_py.coordinator.layout import get_bit_indices
from psyche_py.sim.bank import Process

if TYPE_CHECKING:
    from psyche_py.sim.client import SimClient

MASK = 2**64 - 1


def make_call(client: SimClient, action: act.Action) -> tuple[Process, dict[str, Any]]:
    """The rule of a transaction and its arguments."""
    signer: dict[str, Any] = {"signer": client.signer}
    match action:
        case act.SendJoin():
            joined = {"p2p_key": client.p2p_key, "address_hint": client.address_hint}
            return rules.process_join, signer | joined
        case act.SendAnnounce():
            return rules.process_announce, signer | {"address_hint": client.address_hint}
        case act.SendLeave():
            return rules.process_leave, signer
        case act.SendTick():
            return rules.process_tick, {}
        case act.SendWarmupWitness(index):
            return rules.process_warmup_witness, signer | {"index": index}
        case act.SendHealthCheck(_, index):
            return rules.process_health_check, signer | {"index": index}
        case act.SendWitness():
            return rules.process_witness, signer | make_witness(client, action)
        case ver.SendVerdict():
            names = ("index", "trainer", "height", "reason")
            said = {name: getattr(action, name) for name in names}
            return rules.process_verdict, signer | said | {"evidence_hash": action.evidence}
        case ver.SendVote(index, evidence, is_guilty):
            said = {"index": index, "evidence_hash": evidence, "is_guilty": is_guilty}
            return rules.process_vote, signer | said
        case _:
            raise TypeError(f"not a transaction: {action}")


def make_witness(client: SimClient, action: act.SendWitness) -> dict[str, Any]:
    """Arguments of a witness, true or, from a liar, not: it denies every second client it saw."""
    action = client.trainer.attest(action)
    participants = list(action.participants)
    if client.world.clock.now < client.wrong.lies_until:
        seen = sum(word << 64 * i for i, word in enumerate(participants))
        denied = sum(1 << index for index in get_bit_indices(seen)[client.world.rng.randrange(2) :: 2])
        participants = [(seen & ~denied) >> 64 * i & MASK for i in range(4)]
    return {
        "index": action.index,
        "step": action.step,
        "participants": participants,
        "broadcast_bloom": list(action.broadcast_bloom),
        "broadcast_merkle": action.broadcast_merkle,
        "state_digest": action.state_digest,
    }
