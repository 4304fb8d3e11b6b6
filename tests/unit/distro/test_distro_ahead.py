"""What DistroOptimizer does ahead: the lookahead over pending messages, and decoding what will be applied."""

from __future__ import annotations

import math

import pytest
import torch
from distro_tools import LR, fill_gradients, make_parameters, make_payloads, snapshot

from psyche_py.distro import DistroConfig, DistroError, DistroOptimizer, PayloadError
from psyche_py.distro.update import Aggregate

pytestmark = pytest.mark.usefixtures("each_path")


def test_lookahead_is_the_update_of_the_own_message_and_leaves_no_trace() -> None:
    parameters = make_parameters()
    optimizer = DistroOptimizer(parameters.items(), DistroConfig(weight_decay=0.5))
    before, digest = snapshot(parameters), optimizer.model_digest()
    with optimizer.lookahead(LR):
        assert snapshot(parameters) == before, "nothing is pending yet"
    fill_gradients(parameters, 1)
    payload = optimizer.step(LR)
    with optimizer.lookahead(LR):
        foreseen = snapshot(parameters)
        assert optimizer.model_digest() == digest
        fill_gradients(parameters, 2)
    assert snapshot(parameters) == before
    assert all(p.grad is not None for p in parameters.values())
    stranger = make_parameters()
    DistroOptimizer(stranger.items(), DistroConfig()).apply([payload], LR)
    assert snapshot(stranger) == foreseen != before
    optimizer.drop_pending()
    with optimizer.lookahead(LR):
        assert snapshot(parameters) == before


def test_lookahead_over_all_messages_is_the_point_of_the_update() -> None:
    """With every pending message it is where the weights will be; with none received, the own share of it."""
    parameters = make_parameters()
    optimizer = DistroOptimizer(parameters.items(), DistroConfig())
    others = make_payloads(3)
    fill_gradients(parameters, 1)
    own = optimizer.step(LR)
    before = snapshot(parameters)
    points = []
    for received in ([], others[:1], others):
        with optimizer.lookahead(LR, received):
            points.append(snapshot(parameters))
    assert snapshot(parameters) == before
    stranger = make_parameters()
    DistroOptimizer(stranger.items(), DistroConfig()).apply([*others, own], LR)
    assert snapshot(stranger) == points[2]
    assert len({tuple(point.values()) for point in points}) == 3
    with pytest.raises(PayloadError), optimizer.lookahead(LR, [own[:-1]]):
        pytest.fail("a broken payload must not be foreseen")
    assert snapshot(parameters) == before
    optimizer.drop_pending()
    with optimizer.lookahead(LR, [own, *others]):
        assert snapshot(parameters) == points[2]


def test_lookahead_restores_after_exceptions_and_in_place_damage() -> None:
    parameters = make_parameters()
    optimizer = DistroOptimizer(parameters.items(), DistroConfig())
    fill_gradients(parameters, 1)
    optimizer.step(LR)
    before = snapshot(parameters)
    with pytest.raises(KeyboardInterrupt), optimizer.lookahead(LR):
        with torch.no_grad():
            for p in parameters.values():
                p.fill_(math.nan)
        raise KeyboardInterrupt
    assert snapshot(parameters) == before
    with optimizer.lookahead(LR), pytest.raises(DistroError, match="inside a lookahead"):
        optimizer.apply([], LR)
    with optimizer.lookahead(LR), pytest.raises(DistroError, match="already open"), optimizer.lookahead(LR):
        pass
    assert snapshot(parameters) == before


def test_what_was_prepared_changes_nothing_but_the_time_that_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    payloads = make_payloads(4)
    plain = DistroOptimizer(make_parameters().items(), DistroConfig())
    plain.apply(payloads, LR)
    decoded: list[int] = []
    decode = Aggregate.decode

    def count(self: Aggregate, all_payloads: list[bytes]) -> None:
        decoded.append(len(all_payloads))
        decode(self, all_payloads)

    monkeypatch.setattr(Aggregate, "decode", count)
    for prepared in (payloads, payloads[:3], payloads[::-1]):
        optimizer = DistroOptimizer(make_parameters().items(), DistroConfig())
        before = optimizer.model_digest()
        optimizer.prepare(prepared)
        with optimizer.lookahead(LR, payloads[2:]):
            pass
        assert optimizer.model_digest() == before
        decoded.clear()
        optimizer.apply(payloads, LR)
        assert optimizer.model_digest() == plain.model_digest()
        assert decoded == ([] if prepared is payloads else [4])
        optimizer.apply(payloads, LR)
        plain_twice = DistroOptimizer(make_parameters().items(), DistroConfig())
        plain_twice.apply(payloads, LR)
        plain_twice.apply(payloads, LR)
        assert optimizer.model_digest() == plain_twice.model_digest()


def test_what_is_no_payload_cannot_be_prepared_and_does_no_harm() -> None:
    payloads = make_payloads(2)
    optimizer = DistroOptimizer(make_parameters().items(), DistroConfig())
    optimizer.prepare(payloads)
    with pytest.raises(PayloadError):
        optimizer.prepare([payloads[0], payloads[1][:-1]])
    optimizer.apply(payloads, LR)
    plain = DistroOptimizer(make_parameters().items(), DistroConfig())
    plain.apply(payloads, LR)
    assert optimizer.model_digest() == plain.model_digest()
