"""Real client processes in a run that verifies: who cheats is ejected and loses, the others learn on."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from client_processes import RUN_ID, ProcessClient, ProcessRun, start_run

from psyche_py.chain.client import ProgramClient
from psyche_py.client.checkpoint import find_latest_checkpoint
from psyche_py.coordinator.layout import ClientState, DisputeState, RunState
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.data.prepare import prepare_shards
from psyche_py.data.shards import TokenShards
from psyche_py.errors import RunStateError
from psyche_py.model.loader import load_from_directory
from psyche_py.observe.tally import are_digests_equal

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(3600)]

SUPPORT = Path(__file__).parents[1] / "support"
SLASHING_RATE = 300
NATS = 0.02
STEPS = 90
VERIFIED = {
    "verification_percent": 40,
    "global_batch_size_start": 10,
    "global_batch_size_end": 10,
    "init_min_clients": 5,
    "total_steps": STEPS,
    # a slow machine makes rounds longer and loses none: a round ends when everybody has finished it
    "epoch_time": 20_000,
    "warmup_time": 300,
    "max_round_train_time": 120,
    "round_witness_time": 30,
    # where the learning rate falls, old momentum decides honest messages too (docs/verification.md)
    "min_alignment": 0,
}
FLATTENING = f"""
[model.LLM.lr_schedule.Linear]
base_lr = 0.004
warmup_steps = 5
final_lr = 0.0
total_steps = {STEPS}
"""
WAIT_SECONDS = 1500


@dataclass(frozen=True)
class Language:
    """Token shards, and what a model that has learned all that there is in them says: nats per token."""

    shards: Path
    floor: float


@pytest.fixture(scope="module")
def language(tmp_path_factory: pytest.TempPathFactory) -> Language:
    """Words drawn independently, some more often than others.

    A model can know how often each comes, and no more. So the loss of a short run flattens, and runs can be
    compared to a hundredth: while it falls, it depends on who trains what and on whose results are there in
    time for a lookahead by more than on a cheat. (On the licence's text two honest runs differ by .05.)
    """
    words = ["the", "run", "a", "client", "trains", "its", "batch", "and", "sends", "what", "it", "found"]
    shares = 1 / np.arange(1, len(words) + 1)
    shares /= shares.sum()
    directory = tmp_path_factory.mktemp("language")
    drawn = np.random.default_rng(1).choice(len(words), size=20_000, p=shares)
    text = directory / "text.txt"
    text.write_text(" ".join(words[i] for i in drawn))
    prepare_shards([text], directory / "shards", vocab_size=512)
    return Language(directory / "shards", float(-(shares * np.log(shares)).sum()))


def add_cheat(run: ProcessRun, kind: str) -> ProcessClient:
    """A client with a mode that no configuration has."""
    return run.add_client(command=[sys.executable, str(SUPPORT / "cheating_jobs.py"), kind])


def compute_loss(client: ProcessClient, shards: Path) -> float:
    """Nats per token of a client's last checkpoint, over the same samples for everybody."""
    checkpoint = find_latest_checkpoint(client.checkpoints, RUN_ID)
    assert checkpoint is not None
    model = load_from_directory(checkpoint).model.float()
    tokens = torch.from_numpy(TokenShards(shards, 32).get_batch(0, 255))
    with torch.no_grad():
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten()))


def check_honest(clients: list[ProcessClient], account: CoordinatorAccount) -> None:
    """They went on to the end, with one model, and nobody of them lost a point."""
    assert account.run_state is RunState.Finished
    assert {c.tally.outcome for c in clients} == {"finished"}
    assert are_digests_equal([c.tally for c in clients])
    for client in clients:
        index = account.find_entry(bytes(client.wallet.pubkey()))
        assert index is not None
        assert account.entries[index].slashed == 0
        assert account.entries[index].earned > 0


def check_cheat(run: ProcessRun, cheat: ProcessClient, account: CoordinatorAccount) -> None:
    """It was ejected in the epoch, its points are slashed, and its claim pays nothing."""
    index = account.find_epoch_client(bytes(cheat.wallet.pubkey()))
    assert index is not None
    client = account.epoch_clients[index]
    assert client.state is ClientState.Ejected
    entry = account.entries[client.entry]
    # two rounds may have been looked at before the first was judged: each conviction costs the rate
    assert (entry.slashed, entry.claimable) == (SLASHING_RATE * len(account.disputes), 0)

    async def claim(user: ProgramClient) -> None:
        with pytest.raises(RunStateError, match="nothing to claim"):
            await user.claim(await user.fetch_run(RUN_ID))

    run.call(claim, cheat.wallet)
    assert cheat.tally.outcome == "ejected"
    assert cheat.process.wait(60) != 0
    text = cheat.log.read_text()
    assert "run-manager join" in text, text[-2000:]


def run_honest(directory: Path, language: Language, model: Path) -> float:
    """Loss of four honest clients alone."""
    directory.mkdir()
    settings = VERIFIED | {"init_min_clients": 4}
    with start_run(directory, language.shards, model, lr_schedule=FLATTENING, **settings) as run:
        clients = [run.add_client() for _ in range(4)]
        run.wait_for_end(clients, WAIT_SECONDS)
        account = run.get_account()
        check_honest(clients, account)
        assert account.disputes == ()
        return compute_loss(clients[0], language.shards)


def test_negated_gradients_lose(tmp_path: Path, language: Language, nano: Path) -> None:
    """Ejected within the epoch; the model is as good as without it.

    A cheat that stayed would cost .04 nats, and one that stays for a third of the run costs .01: so the limit
    shows that it was ejected in time.
    """
    alone = run_honest(tmp_path / "alone", language, nano)
    options = {"slashing_rate": SLASHING_RATE, "lr_schedule": FLATTENING}
    with start_run(tmp_path, language.shards, nano, **options, **VERIFIED) as run:
        clients = [run.add_client() for _ in range(4)]
        cheat = add_cheat(run, "negate")
        run.wait_for_end(clients, WAIT_SECONDS)
        account = run.get_account()
        check_honest(clients, account)
        check_cheat(run, cheat, account)
        assert {d.state for d in account.disputes} == {DisputeState.Guilty}
        loss = compute_loss(clients[0], language.shards)
    rounds = cheat.tally.num_rounds
    print(
        f"loss without {alone:.4f}, with the cheat in {rounds} rounds {loss:.4f}, floor {language.floor:.4f}"
    )
    assert alone < language.floor + 2 * NATS, "the loss has not flattened: the comparison says nothing"
    assert loss < alone + NATS


def test_a_false_accuser_loses(tmp_path: Path, language: Language, nano: Path) -> None:
    """Its accusation is judged, it is ejected, and the accused go on."""
    settings = VERIFIED | {"total_steps": 60}
    with start_run(tmp_path, language.shards, nano, slashing_rate=SLASHING_RATE, **settings) as run:
        clients = [run.add_client() for _ in range(4)]
        cheat = add_cheat(run, "accuse")
        run.wait_for_end(clients, WAIT_SECONDS)
        account = run.get_account()
        check_honest(clients, account)
        check_cheat(run, cheat, account)
        assert {d.state for d in account.disputes} == {DisputeState.NotGuilty}
