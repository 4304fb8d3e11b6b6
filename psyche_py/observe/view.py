"""What people see while a client or a demo runs: a live table on a terminal, plain lines in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from psyche_py.observe.events import Event
from psyche_py.observe.tally import ClientTally, compute_mean_losses

BARS = "▁▂▃▄▅▆▇█"
LOG_SECONDS = 10.0
WIDE_COLUMNS = 105
"""Below this width a live table leaves columns out."""


def format_bytes(num: float) -> str:
    """1234567 -> 1.2 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if num < 1000 or unit == "GB":
            return f"{num:.0f} {unit}" if unit == "B" else f"{num:.1f} {unit}"
        num /= 1000
    raise AssertionError("unreachable")


def make_sparkline(values: Sequence[float], width: int = 60) -> str:
    """A curve in one line of text, highest value tallest."""
    if not values:
        return ""
    if len(values) > width:
        size = len(values) / width
        values = [
            sum(chunk) / len(chunk)
            for i in range(width)
            if (chunk := values[int(i * size) : max(int((i + 1) * size), int(i * size) + 1)])
        ]
    low, high = min(values), max(values)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((value - low) * scale)] for value in values)


def make_loss_line(tallies: Sequence[ClientTally]) -> str:
    """The loss curve with its ends."""
    losses = list(compute_mean_losses(list(tallies)).values())
    if not losses:
        return "loss  no round trained yet"
    return f"loss  {losses[0]:.3f} {make_sparkline(losses)} {losses[-1]:.3f}"


def make_table(
    tallies: Sequence[ClientTally], points: dict[str, int] | None = None, width: int = 120
) -> Table:
    """One row a client; a narrow terminal gets the columns that matter most."""
    columns: dict[str, Callable[[ClientTally], str]] = {
        "client": lambda t: t.name,
        "state": lambda t: t.error or t.outcome or t.run_state,
        "epoch": lambda t: str(t.epoch),
        "step": lambda t: str(t.step),
        "loss": lambda t: f"{t.losses[max(t.losses)]:.3f}" if t.losses else "-",
        "tokens/s": lambda t: f"{t.tokens / t.train_seconds:.0f}" if t.train_seconds else "0",
        "peers": _format_peers,
        "sent": lambda t: format_bytes(t.bytes_sent),
        "received": lambda t: format_bytes(t.bytes_received),
    }
    if points is not None:
        columns["points"] = lambda t: str(points.get(t.name, 0))
    if width < WIDE_COLUMNS:
        columns = {
            name: get for name, get in columns.items() if name not in ("epoch", "tokens/s", "received")
        }
    table = Table(expand=True, box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in ("client", "state") else "right", no_wrap=True)
    for tally in tallies:
        table.add_row(*(get(tally) for get in columns.values()), style="red" if tally.error else None)
    return table


def _format_peers(tally: ClientTally) -> str:
    """How many are connected, and how many of them not in the usual way."""
    ways = ((tally.punched, "punched"), (tally.relayed, "relayed"))
    unusual = ", ".join(f"{number} {way}" for number, way in ways if number)
    return f"{tally.peers} ({unusual})" if unusual else str(tally.peers)


class RunView:
    """Live panel when the output is a terminal; otherwise a line every few seconds and at each state."""

    def __init__(self, title: str, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self._title = title
        self._live: Live | None = None
        self._logged = 0.0
        self._state: tuple[object, ...] = ()

    def __enter__(self) -> RunView:
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, markup=False, soft_wrap=True)

    def show(self, tallies: Sequence[ClientTally], points: dict[str, int] | None = None) -> None:
        """Show how things stand."""
        if self._live is not None:
            self._live.update(self._render(tallies, points))
            return
        lead = max(tallies, key=lambda tally: (tally.epoch, tally.step), default=None)
        if lead is None:
            return
        state = (lead.run_state, lead.epoch)
        # training and witnessing alternate every second; a log wants the larger phases
        is_phase = lead.run_state not in ("RoundTrain", "RoundWitness")
        now = time.monotonic()
        if (state != self._state and is_phase) or now - self._logged >= LOG_SECONDS:
            self._state, self._logged = state, now
            self.say(self._format_line(tallies, lead, points))

    def _render(self, tallies: Sequence[ClientTally], points: dict[str, int] | None) -> RenderableType:
        table = make_table(tallies, points, self.console.width)
        body = Group(table, Text(""), Text(make_loss_line(tallies)))
        return Panel(body, title=self._title, border_style="cyan")

    @staticmethod
    def _format_line(tallies: Sequence[ClientTally], lead: ClientTally, points: dict[str, int] | None) -> str:
        losses = list(compute_mean_losses(list(tallies)).values())
        tokens = sum(tally.tokens for tally in tallies)
        parts = [
            f"{lead.run_state:<17}",
            f"epoch {lead.epoch}",
            f"step {lead.step}",
            f"loss {losses[0]:.3f} -> {losses[-1]:.3f}" if losses else "loss -",
            f"{tokens} tokens",
            f"{lead.num_healthy} clients",
            f"sent {format_bytes(sum(t.bytes_sent for t in tallies))}",
        ]
        if points is not None:
            parts.append(f"points {sum(points.values())}")
        return "  ".join(parts)


def format_event(event: Event) -> str | None:
    """One line for a client's log; None for events that only views care about."""
    formatter = _FORMATS.get(event["kind"])
    return formatter(event) if formatter is not None else None


def _format_state(e: Event) -> str | None:
    if e["run_state"] == "RoundWitness":
        return None
    where = f"epoch {e['epoch']} step {e['step']}"
    return f"{e['run_state']}  {where}  {e['num_healthy']} healthy clients"


def _format_apply(e: Event) -> str:
    lost = f", to be trained again: {e['untrained']}" if e["untrained"] else ""
    return f"applied {e['num_payloads']} results at step {e['step']}, digest {e['digest'][:12]}{lost}"


def _format_verified(e: Event) -> str:
    where = f"client {e['trainer']}, round {e['height']}"
    return f"verified {where}: {e['reason']}, residual {e.get('residual', 0) / 1e6:.4f}, {e['seconds']:.2f} s"


def _format_progress(e: Event) -> str:
    """What has come, how fast, and from whom; or what is awaited."""
    peers = ", ".join(f"{p['peer']} {p['state']} {p['mb_per_second']:.1f} MB/s" for p in e["peers"])
    so_far = f"{e['pieces']} of {e['of']} pieces" if e["of"] else "waiting for a peer that has it"
    return (
        f"model: {so_far}, {format_bytes(e['bytes'])}, {e['mb_per_second']:.1f} MB/s  ({peers or 'nobody'})"
    )


def _format_lost(e: Event) -> str:
    return f"; samples that nobody trained: {e['lost']}" if e["lost"] else ""


def _format_model_lost(e: Event) -> str:
    lost = f"the model {e['digest'][:12]}, attested in step {e['step']}," if e["step"] else "its newest model"
    source = f"its {e['next']} checkpoint" if e["is_checkpoint"] else f"model {e['next'][:12]}"
    return (
        f"WARNING: nobody has {lost} any more: epoch {e['epoch']} starts from {source}. "
        "What was trained since then is lost to the run"
    )


_FORMATS: dict[str, Callable[[Event], str | None]] = {
    "state": _format_state,
    "joined": lambda e: f"joined as {e['signer']}",
    "model_fetch": lambda e: (
        f"fetching the model {e['digest'][:12]}: {format_bytes(e['bytes'])} in {e['pieces']} pieces, "
        f"{e['here']} of them here, from up to {e['peers']} peers"
    ),
    "model_progress": _format_progress,
    "model_offender": lambda e: f"warning: peer {e['peer'][:12]} is not asked again: {e['reason']}",
    "model_loaded": lambda e: (
        f"model loaded from {e['source']} in {e['seconds']:.1f} s, digest {e['digest'][:12]}"
    ),
    "incomplete": lambda e: (
        f"warning: we cannot complete epoch {e['epoch']}: {e['reason']}; not in our weights: {e['samples']}"
    ),
    "model_lost": _format_model_lost,
    "train": lambda e: (
        f"trained {e['batch_start']}..{e['batch_end']} for step {e['step']}: "
        f"loss {e['loss']:.3f}, {e['seconds']:.2f} s"
    ),
    "apply": _format_apply,
    "lost": lambda e: f"samples of epoch {e['epoch']} that nobody trained: {e['samples']}",
    "witness": lambda e: f"witnessed round {e['height']}",
    "health_check": lambda e: f"reported client {e['index']} as lost",
    "verified": _format_verified,
    "verdict": lambda e: (
        f"accused client {e['trainer']} for round {e['height']}, evidence {e['evidence'][:16]}"
    ),
    "judged": lambda e: (
        f"judged {e['evidence'][:16]}: {'guilty' if e['is_guilty'] else 'not guilty'} ({e['why']})"
    ),
    "dispute_opened": lambda e: (
        f"dispute: client {e['accuser']} accuses client {e['trainer']} for round {e['height']}: {e['reason']}"
    ),
    "dispute_settled": lambda e: (
        f"dispute about client {e['trainer']}, round {e['height']}: {e['outcome']} by {e['num_guilty']} to "
        f"{e['num_not_guilty']} votes"
    ),
    "ejected": lambda e: f"ejected from this epoch: {e['reason']}",
    "checkpoint": lambda e: f"checkpoint at {e['path']}",
    "warning": lambda e: f"warning: {e['message']}",
    "waiting": lambda e: f"waiting: {e['reason']}",
    "leaving": lambda e: "leaving after this round",
    "left": lambda e: "left the run" + _format_lost(e),
    "finished": lambda e: "the run is finished" + _format_lost(e),
}
