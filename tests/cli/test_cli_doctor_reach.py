"""What ``run-manager doctor`` concludes from the answers of the clients that it asks to dial back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio

from psyche_py.cli.doctor import EXIT_RELAY, MAX_CALLED, Check, Verdict, check_reachability
from psyche_py.p2p import dial_back
from psyche_py.p2p.dial_back import Answer
from psyche_py.p2p.errors import PeerUnreachable
from psyche_py.p2p.hint import Address

YES, NO, LATER, SILENT = Answer.YES, Answer.NO, Answer.LATER, None
OWN_PORT = 4001
NETWORK_ERROR = 5


class Peers:
    """Clients of the run, by port; ``num_called``: how many of them were asked."""

    def __init__(self, answers: Sequence[Answer | None]) -> None:
        self._answers = answers
        self.num_called = 0

    async def call(self, host: str, port: int, own_port: int) -> Answer:
        """In the place of ``dial_back.call``."""
        assert own_port == OWN_PORT
        self.num_called += 1
        answer = self._answers[port - 1]
        if answer is SILENT:
            raise PeerUnreachable(bytes(32), f"{host} port {port}: no answer")
        return answer


def ask(
    monkeypatch: pytest.MonkeyPatch, answers: Sequence[Answer | None], announce: str | None = None
) -> tuple[Check, Verdict, int]:
    """The check, the verdict and how many peers were asked for it."""
    peers = Peers(answers)
    monkeypatch.setattr(dial_back, "call", peers.call)
    addresses = [Address("203.0.113.7", 1 + i) for i in range(len(answers))]
    check, verdict = trio.run(check_reachability, addresses, OWN_PORT, announce)
    return check, verdict, peers.num_called


@pytest.mark.parametrize(
    ("answers", "announce", "verdict", "code", "num_called"),
    [
        ([YES, NO], None, Verdict.REACHABLE, 0, 1),
        ([SILENT, LATER, NO, YES], None, Verdict.REACHABLE, 0, 4),
        # one that cannot may be behind the same router, or have trouble of its own
        ([NO, NO, YES], None, Verdict.RELAY, EXIT_RELAY, 2),
        ([NO, SILENT], None, Verdict.RELAY, EXIT_RELAY, 2),
        # nobody is to dial us, whether somebody could or not
        ([YES], "none", Verdict.RELAY, EXIT_RELAY, 1),
        ([LATER, YES], "none", Verdict.RELAY, EXIT_RELAY, 1),
        ([SILENT, SILENT], None, Verdict.UNREACHABLE, NETWORK_ERROR, 2),
        ([SILENT] * (MAX_CALLED + 1), None, Verdict.UNREACHABLE, NETWORK_ERROR, MAX_CALLED),
        ([LATER, SILENT, LATER], None, Verdict.UNKNOWN, NETWORK_ERROR, 3),
        ([], None, Verdict.UNKNOWN, NETWORK_ERROR, 0),
    ],
)
def test_verdict(
    monkeypatch: pytest.MonkeyPatch,
    answers: list[Answer | None],
    announce: str | None,
    verdict: Verdict,
    code: int,
    num_called: int,
) -> None:
    check, said, asked = ask(monkeypatch, answers, announce)
    assert (said, check.name, check.exit_code, asked) == (verdict, "reach", code, num_called)


def test_what_is_not_known_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """Busy peers are worth another try soon, a run without peers one later: both say when."""
    busy, _, _ = ask(monkeypatch, [LATER, LATER])
    assert (busy.found, busy.remedy) == ("The peers are busy.", "Try again in a minute.")
    alone, _, _ = ask(monkeypatch, [])
    assert "nobody to ask" in alone.found
    assert "Ask again when a client" in alone.remedy
