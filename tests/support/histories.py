"""Random histories of a run that reach every rule: what participants would do, and what attackers would try.

Every event fits the state it meets, so that histories go far: in a Warmup clients report ready, in a round
the elected attest. A share of the events is wrong on purpose. All follows from one random.Random.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dispute_events import DisputeEvents
from history_accounts import BOND_FLAWS, SYSTEM_PROGRAM, get_authorization_address
from owner_events import OwnerEvents, make_plant
from rulebook_driver import Driver, Event, get_hint, get_p2p_key, make_join, rules

from psyche_py.coordinator.accusations import VOTE_STATES
from psyche_py.coordinator.layout import MAX_CLIENTS, CheckpointKind, RunState, get_bit_indices
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.coordinator.tick import get_healthy_bitmap, get_silent_witnesses
from psyche_py.coordinator.witness import compute_votes, get_quorum, is_client_unhealthy

INDICES = (0, 1, 2, 31, 32, 255, 256, 65535)
"""Client indices at the edges of what can be stored and of what can be said."""

ODD_EVENTS = ("tick", "advance", "leave_run", "join_run", "checkpoint", "health_check", "warmup_witness")
ODD_EVENTS += ("tick", "witness", "witness", "witness", "join_run", "remove_unauthorized", "migrate")
ODD_EVENTS += ("announce", "verdict", "verdict", "vote", "vote")

AUTHORIZATIONS = (0, 1, 2, 3, SYSTEM_PROGRAM)


@dataclass(frozen=True)
class Character:
    """What kind of history it is. The shares are chances between 0 and 1."""

    num_clients: int
    useful: float = 0.8
    """Share of events that an honest participant would send next."""
    lying: float = 0.1
    """Share of witnesses that attest something else than they saw."""
    silent: float = 0.1
    """Share of moments in which those who could act let time pass instead."""
    owner: float = 0.06
    """Share of events that are the owner's."""
    is_extreme: bool = True
    """Whether numbers at the ends of their range, planted state and closed runs are part of it."""


def draw_character(rng: random.Random) -> Character:
    """One of many: mostly small runs, since they go through more epochs; some of the largest size."""
    num_clients = rng.choice([1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 9, 12, 20, 33, 40])
    if rng.random() < 0.02:
        num_clients = 256
    return Character(
        num_clients,
        useful=rng.choice([0.7, 0.8, 0.9]),
        lying=rng.choice([0, 0.05, 0.2, 0.6]),
        silent=rng.choice([0, 0.05, 0.2, 0.5]) if num_clients < 256 else 0.01,
        owner=rng.choice([0.01, 0.03, 0.1]) if num_clients < 256 else 0.002,
        is_extreme=rng.random() < 0.7,
    )


def compute_num_events(character: Character) -> int:
    """Long enough for some epochs of this many clients."""
    return 150 + 8 * character.num_clients


def generate_events(driver: Driver, rng: random.Random, num: int, character: Character) -> Iterator[Event]:
    """Yield ``num`` events that fit the driver's present state.

    The caller applies each to ``driver`` before asking for the next.
    """
    author = Author(driver, rng, character)
    for _ in range(num):
        yield author.make_event()


class Author:
    """Decides what happens next."""

    def __init__(self, driver: Driver, rng: random.Random, character: Character) -> None:
        self.driver = driver
        self.rng = rng
        self.character = character
        self.num_clients = character.num_clients
        self.owner = OwnerEvents(driver, rng, self.num_clients, is_extreme=character.is_extreme)
        self.disputes = DisputeEvents(driver, rng, self._act)
        # the last wallet never joins by itself
        self.wallets = {driver.get_signer(client): client for client in range(self.num_clients + 1)}

    @property
    def account(self) -> CoordinatorAccount:
        """The run as the rule book has it."""
        return self.driver.account

    def make_event(self) -> Event:
        """The next event."""
        if self.driver.is_closed:
            return self.owner.make_init()
        if self.driver.old is not None and self.rng.random() < 0.7:
            return self._make_migrate()
        roll = self.rng.random()
        if roll < self.character.owner:
            return self.owner.make_event()
        if roll < self.character.owner + self.character.useful:
            return self._make_useful_event()
        return self._make_odd_event()

    # ---- what honest participants send --------------------------------------------------------------------

    def _make_useful_event(self) -> Event:
        state = self.account.run_state
        if self.account.is_halted:
            return self.owner.make_halted_event()
        if rules.is_tick_due(self.account, self.driver.now) and self.rng.random() < 0.7:
            return "tick", {}
        if self.rng.random() >= self.character.silent:
            event = self._make_dispute_event()
            if event is not None:
                return event
            makers = {
                RunState.WaitingForMembers: self._make_join_of_missing,
                RunState.Warmup: self._make_ready,
                RunState.RoundTrain: self._make_round_event,
                RunState.RoundWitness: self._make_round_event,
                RunState.Cooldown: self._make_checkpoint,
            }
            event = makers[state]()
            if event is not None:
                return event
        return self._make_advance()

    def _make_dispute_event(self) -> Event | None:
        """Where there are verifiers, they accuse more often than is good for a run."""
        roll = self.rng.random()
        if self.account.run_state not in VOTE_STATES or not self.account.config.verification_percent:
            return None
        if roll < 0.15 and self.account.run_state is not RunState.Cooldown:
            return self.disputes.make_verdict()
        return self.disputes.make_vote() if roll < 0.6 else None

    def _make_advance(self) -> Event:
        """To the next deadline, to the second before or after it, or any distance."""
        rng, now = self.rng, self.driver.now
        deadline = rules.compute_next_deadline(self.account)
        seconds = rng.choice([0, 1, 1, 2, 3, 7])
        if deadline is not None and now < deadline < now + 10**6:
            seconds = max(deadline - now + rng.choice([-1, 0, 0, 0, 1]), 0)
        elif self.character.is_extreme and rng.random() < 0.05:
            seconds = rng.choice([-1, 86_400, 10**9])
        return "advance", {"seconds": seconds, "slots": rng.choice([0, 1, 2, 5])}

    def _find_wallet(self, entry: int) -> int | None:
        return self.wallets.get(self.account.record["entries"][entry]["signer"].tobytes())

    def _act(self, name: str, index: int, arguments: dict[str, Any]) -> Event | None:
        """An event sent by epoch client ``index``."""
        entry = int(self.account.record["epoch_state"]["clients"][index]["entry"])
        client = self._find_wallet(entry)
        return None if client is None else (name, {"client": client, **arguments})

    def _make_join_of_missing(self) -> Event | None:
        account = self.account
        pending = {self._find_wallet(entry) for entry in account.pending}
        if self.rng.random() < 0.03:
            return self._make_removal()
        missing = [client for client in range(self.num_clients) if client not in pending]
        if account.record["num_entries"] == MAX_CLIENTS and self.rng.random() < 0.05:
            missing = [self.num_clients]  # a full list
        is_enough = len(pending) >= account.config.init_min_clients
        if not missing or (is_enough and self.rng.random() < 0.3):
            return None
        client = self.rng.choice(missing)
        signer = self.driver.get_signer(client)
        numbers = [n for n in self.driver.authorizations if self.driver.is_authorized(signer, n)]
        if not numbers and self.rng.random() < 0.5:
            return self.owner.open_run()
        join = make_join(client, self._draw_key_version()) | {
            "authorization": self.rng.choice(numbers or [0])
        }
        if account.config.required_bond:
            return self._make_bonded_join(client, join)
        return "join_run", join

    def _make_bonded_join(self, client: int, join: dict[str, Any]) -> Event:
        """With the client's bond; first it must post one, that may be too small or not what it should be."""
        rng, bond = self.rng, self.driver.bonds.get(client)
        required = self.account.config.required_bond
        is_enough = bond is not None and bond.flaw is None and bond.amount >= required
        if not is_enough and rng.random() < 0.9:
            amount = min(required + rng.choice([-1, 0, 0, 0, 1, 5]), 2**64 - 1)
            flaw = rng.choice(BOND_FLAWS) if rng.random() < 0.2 else None
            return "bond", {"bond": client, "user": client, "amount": amount, "flaw": flaw}
        other = rng.choice([client, client, client, client, rng.randrange(self.num_clients), None])
        return "join_run", join | {"bond": other}

    def _make_migrate(self) -> Event:
        old = self.driver.old
        if old is not None and old[8] != 1:  # no other version can become ours
            return make_plant(1, 8, "version")
        if old is not None and self.rng.random() < 0.4:  # version 1 kept a position there
            place = ("rounds", self.rng.randrange(4), "witnesses", self.rng.randrange(3))
            return make_plant(7, 2, "epoch_state", *place, "_pad0")
        return "migrate", {"client": self.rng.randrange(self.num_clients + 1)}

    def _draw_key_version(self) -> int:
        return 0 if self.rng.random() < 0.9 else self.rng.randrange(3)

    def _make_removal(self) -> Event:
        """Somebody shows that an entry's authorization lets it no more, or only says so."""
        rng, entries = self.rng, self.account.entries
        entry, number = rng.choice([*INDICES, len(entries)]), rng.choice(AUTHORIZATIONS)
        if entries and rng.random() < 0.8:
            entry = rng.randrange(len(entries))
            known = [
                n for n in AUTHORIZATIONS if get_authorization_address(n)[:24] == entries[entry].authorization
            ]
            number = known[0] if known and rng.random() < 0.9 else number
        client = rng.randrange(self.num_clients + 1)
        return "remove_unauthorized", {"client": client, "entry": entry, "authorization": number}

    def _make_ready(self) -> Event | None:
        late = get_bit_indices(get_healthy_bitmap(self.account.record) & ~self.account.warmup_ready)
        if not late:
            return None
        index = self.rng.choice(late)
        if self.rng.random() < 0.3 * self.character.silent:  # too few may be left to train
            return self._act("leave_run", index, {})
        return self._act("warmup_witness", index, {"index": index})

    def _make_round_event(self) -> Event | None:
        roll = self.rng.random()
        if roll < 0.1:
            event = self._make_right_health_check()
            if event is not None:
                return event
        if roll > 0.99:
            return self._make_removal()
        if roll > 0.985:
            return "leave_run", {"client": self.rng.randrange(self.num_clients)}
        waiting = get_bit_indices(get_silent_witnesses(self.account.record))
        if not waiting:
            return None
        index = self.rng.choice(waiting)
        return self._act("witness", index, self._make_witness(index))

    def _make_right_health_check(self) -> Event | None:
        account = self.account
        current, previous = account.current_round, account.previous_round
        judged = account.get_round_at(current.height - 2)
        if judged is None or previous is None:
            return None
        votes, quorum = compute_votes(previous), get_quorum(account, previous)
        unseen = [index for index in judged.healthy_indices if votes[index] < quorum]
        guilty = [index for index in unseen if is_client_unhealthy(account, index)]
        if not guilty:
            return None
        return "health_check", {
            "client": self.rng.randrange(self.num_clients),
            "index": self.rng.choice(guilty),
        }

    def _make_checkpoint(self) -> Event | None:
        healthy = get_bit_indices(get_healthy_bitmap(self.account.record))
        if not healthy or self.rng.random() < 0.6:
            return None
        kind = self.rng.choice([CheckpointKind.Hub, CheckpointKind.Gcs, CheckpointKind.Local])
        named = {"kind": int(kind), "repo": "someone/model", "revision": self.rng.choice(["", "abc"])}
        return self._act("checkpoint", self.rng.choice(healthy), named)

    # ---- witnesses ----------------------------------------------------------------------------------------

    def _make_witness(self, index: int) -> dict[str, Any]:
        """What epoch client ``index`` attests: what it saw, or a lie."""
        rng, previous = self.rng, self.account.previous_round
        seen = previous.healthy if previous is not None and not previous.apply_only else 0
        if rng.random() < self.character.lying:
            seen = self._bend(seen)
        bloom = [0] * 16
        bloom[rng.randrange(16)] = rng.getrandbits(64)
        step = self.account.current_round.step
        if rng.random() < 0.02:
            step = rng.choice([max(step - 1, 0), step + 1, 0, 2**32 - 1])
        return {
            "index": index,
            "step": step,
            "participants": [seen >> 64 * i & 2**64 - 1 for i in range(4)],
            "broadcast_bloom": bloom,
            "broadcast_merkle": rng.randbytes(4).ljust(32, b"\0").hex(),
            "state_digest": self._draw_state_digest().hex(),
        }

    def _draw_state_digest(self) -> bytes:
        """Mostly what all say whose weights are right; else zeros, or one of two other models."""
        account = self.account
        kind = self.rng.choices(("right", "none", "other", "another"), (16, 2, 1, 1))[0]
        name = f"{kind} {account.epoch} {account.current_round.height}"
        return bytes(32) if kind == "none" else hashlib.sha256(name.encode()).digest()

    def _bend(self, seen: int) -> int:
        """Another bitmap: somebody left out, all left out, half of them, somebody who was not there."""
        rng = self.rng
        wrong = 1 << rng.randrange(max(self.num_clients, 1))
        return rng.choice(
            [seen & ~wrong, seen & ~wrong, 0, seen & rng.getrandbits(256), seen ^ 1 << rng.randrange(256)]
        )

    # ---- what nobody should send --------------------------------------------------------------------------

    def _make_odd_event(self) -> Event:
        """Any instruction of any wallet at any time."""
        rng = self.rng
        client = rng.randrange(self.num_clients + 1)
        name = rng.choice(ODD_EVENTS)
        if name == "tick":
            return name, {}
        if name == "advance":
            return self._make_advance()
        if name == "leave_run":
            # leaving is always accepted: let it be rare enough for epochs to go on
            return name, {"client": client if rng.random() < 0.2 else self.num_clients}
        if name == "join_run":
            return name, self._make_odd_join(client)
        if name == "migrate":
            return self._make_migrate()
        if name == "remove_unauthorized":
            return self._make_removal()
        if name == "announce":
            hint = get_hint(rng.randrange(3), rng.choice([0, 1, 2, 3, 4, 255]))
            return name, {"client": client, "address_hint": hint.hex()}
        if name == "verdict":
            return self.disputes.make_odd_verdict(client, self._draw_index(client))
        if name == "vote":
            return self.disputes.make_odd_vote(client, self._draw_index(client))
        if name == "checkpoint":
            kind = rng.choice([*map(int, CheckpointKind), 8, 200])
            repo = rng.choice(["", "someone/model", "r" * 128])
            return name, {"client": client, "kind": kind, "repo": repo, "revision": rng.choice(["", "abc"])}
        if name == "witness":
            return name, self._make_odd_witness(client)
        return name, {"client": client, "index": rng.choice([*INDICES, rng.randrange(self.num_clients + 1)])}

    def _make_odd_join(self, client: int) -> dict[str, Any]:
        """With any address, authorization and p2p key: its own, another's, its wallet, none."""
        rng = self.rng
        arguments = make_join(client, rng.randrange(3), rng.choice([0, 1, 2, 3, 4, 255]))
        other = rng.randrange(self.num_clients + 1)
        if rng.random() < 0.3:
            keys = [get_p2p_key(other), self.driver.get_signer(client), self.driver.get_signer(other)]
            arguments["p2p_key"] = rng.choice(keys).hex()
        elif rng.random() < 0.1:
            arguments["is_unsigned"] = True
        return arguments | {"authorization": rng.randrange(4)}

    def _make_odd_witness(self, client: int) -> dict[str, Any]:
        """Its own index or another's, elected or not, once or twice."""
        return {"client": client, **self._make_witness(self._draw_index(client))}

    def _draw_index(self, client: int) -> int:
        """The client's own, if it has one, or any other."""
        index = self.account.find_epoch_client(self.driver.get_signer(client))
        if index is None or self.rng.random() < 0.3:
            return self.rng.choice([*INDICES, self.rng.randrange(self.num_clients + 1)])
        return index
