"""Clients behind two real NATs (network namespaces, nft masquerade) and one public client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from nat_homes import Node, open_homes
from nat_world import PUBLIC_IP

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node, Node]]:
    with open_homes() as homes:
        yield homes


def test_both_homes_take_part_fully(nodes: tuple[Node, Node, Node]) -> None:
    a, b, p = nodes
    assert a(state=1)["connected"] == b(state=1)["connected"] == [p.key]
    for speaker, hearers in ((a, (b, p)), (p, (a, b))):
        speaker(publish="hello")
        assert [hearer(hear=1)["heard"] for hearer in hearers] == ["hello", "hello"]
    size = 2_000_000
    digest = a(put=size)["digest"]
    for node in (p, b):
        assert node(fetch=digest, size=size, **{"from": a.key}) == {"size": size}
    assert b(state=1)["connected"] == [p.key], "its payload came from the public client"


def test_two_homes_that_need_each_other_are_connected_directly(nodes: tuple[Node, Node, Node]) -> None:
    a, b, p = nodes
    # a request goes to one peer: first through the public client, which cannot read it
    assert b(ask=a.key)["answer"] == b.key
    for node, other in ((a, b), (b, a)):
        node(way=other.key, to="punched")
        facts = node(state=1)
        assert facts["ways"] == {other.key: "punched", p.key: "direct"}
        assert facts["offences"] == {}
    p(circuits=0)
    before = p.count_received_bytes()
    only = a(put=3_000_000)["digest"]
    assert b(fetch=only, size=3_000_000, **{"from": a.key}) == {"size": 3_000_000}
    assert a(ask=b.key)["answer"] == a.key
    assert p.count_received_bytes() - before < 300_000, "nothing of it has gone through the public client"


@pytest.mark.parametrize("random_ports", ["ab", "a", "b"])
def test_where_a_router_gives_every_target_another_port_the_circuit_stays(random_ports: str) -> None:
    with open_homes(random_ports) as (a, b, p):
        assert b(ask=a.key)["answer"] == b.key
        caller = min(a, b, key=lambda node: node.key)
        caller(failed=1)
        assert a(state=1)["ways"] == {b.key: "through_relay", p.key: "direct"}
        assert b(ask=a.key)["answer"] == b.key
        only = a(put=300_000)["digest"]
        assert b(fetch=only, size=300_000, **{"from": a.key}) == {"size": 300_000}
        assert b(state=1)["ways"] == {a.key: "through_relay", p.key: "direct"}
        assert not [node(state=1)["offences"] for node in (a, b, p) if node(state=1)["offences"]]


@pytest.mark.parametrize(("random_ports", "rules"), [("", ("kept", "same")), ("a", ("unknown", "other"))])
def test_what_the_doctor_finds_out_about_a_router(random_ports: str, rules: tuple[str, str]) -> None:
    with open_homes(random_ports) as (a, _, p):
        assert a(ports=[[PUBLIC_IP, 4001]]) == {"rule": rules[0]}, "one client of the run can be asked"
        other = p.open_neighbour("r", 4, "10.3.0.1")
        try:
            assert a(ports=[[PUBLIC_IP, 4001], ["10.3.0.1", 4001]]) == {"rule": rules[1]}
        finally:
            other.close()


def test_dialing_back_tells_homes_from_the_public(nodes: tuple[Node, Node, Node]) -> None:
    a, _, p = nodes
    assert a(call=PUBLIC_IP, port=4001) == {"answer": 0}
    assert p(call=PUBLIC_IP, port=4001) == {"answer": 1}
