"""Joining as, with the key of, or in the place of somebody else; being thrown out by a stranger."""

from __future__ import annotations

from attack_scenes import build_scene

from psyche_py.chain.pda import SYSTEM_PROGRAM


def test_a_stranger_cannot_remove_clients_of_a_migrated_run() -> None:
    """Entries of layout version 1 say nothing about their authorization: no account proves it gone."""
    scene = build_scene("older")
    chain, run = scene.chain, scene.run
    chain.commit(run.encode("migrate", scene.thief))
    for number in range(len(run.account.entries)):
        for address in (SYSTEM_PROGRAM, run.authorization):
            hostile = run.encode("remove_unauthorized", scene.thief, entry=number, authorization=address)
            names = ("WrongAccount", "AuthorizationStillValid")
            chain.attack("removing a client of a migrated run", names, hostile)
