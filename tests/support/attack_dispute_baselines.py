"""One honest call of every instruction about disputes, debts, bonds and addresses."""

from __future__ import annotations

from typing import Any

from attack_calls import baseline
from attack_disputes import list_duties, list_judges, make_verdict, make_vote
from attack_scenes import Scene


@baseline("coordinator", "verdict", "accusing")
def _verdict(scene: Scene) -> Any:
    return make_verdict(scene.run, list_duties(scene.run)[0])


@baseline("coordinator", "vote", "judging")
def _vote(scene: Scene) -> Any:
    """The vote that decides."""
    return make_vote(scene.run, list_judges(scene.run)[1], True)


@baseline("coordinator", "settle_debt", "indebted")
def _settle_debt(scene: Scene) -> Any:
    run = scene.run
    accounts = {
        "authority": run.owner.pubkey(),
        "instance": run.instance,
        "coordinator_account": run.address,
    }
    debtor = next(entry.signer for entry in run.account.entries if entry.debt)
    return accounts, {"user": debtor, "points": 10}


@baseline("coordinator", "announce", "training")
def _announce(scene: Scene) -> Any:
    return scene.run.encode("announce", scene.run.wallets[0], address_hint=b"\1" + bytes(range(63)))


@baseline("treasurer", "bond_post")
def _bond_post(scene: Scene) -> Any:
    """The first one, which makes the bond."""
    return scene.staked.make_post(scene.staked.poster, 30)


@baseline("treasurer", "bond_slash")
def _bond_slash(scene: Scene) -> Any:
    return scene.staked.make_slash(scene.staked.debtor)


@baseline("treasurer", "bond_return")
def _bond_return(scene: Scene) -> Any:
    return scene.staked.make_return(scene.staked.free)
