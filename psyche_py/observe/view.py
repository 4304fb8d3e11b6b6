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


def make_table(tallies: Sequence[ClientTally], points: dict[str, int] | None = None) -> Table:
    """One row a client."""
    table = Table(expand=True, box=None, pad_edge=False)
    for name in ("client", "state", "epoch", "step", "loss", "tokens/s", "peers", "sent", "received"):
        table.add_column(name, justify="left" if name in ("client", "state") else "right")
    if points is not None:
        table.add_column("points", justify="right")
    for tally in tallies:
        loss = tally.losses[max(tally.losses)] if tally.losses else None
        speed = tally.tokens / tally.train_seconds if tally.train_seconds else 0.0
        row = [
            tally.name,
            tally.error or tally.outcome or tally.run_state,
            str(tally.epoch),
            str(tally.step),
            f"{loss:.3f}" if loss is not None else "-",
            f"{speed:.0f}",
            str(tally.peers),
            format_bytes(tally.bytes_sent),
            format_bytes(tally.bytes_received),
        ]
        if points is not None:
            row.append(str(points.get(tally.name, 0)))
        table.add_row(*row, style="red" if tally.error else None)
    return table


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
        body = Group(make_table(tallies, points), Text(""), Text(make_loss_line(tallies)))
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
    lost = f", not trained by anybody: {e['untrained']}" if e["untrained"] else ""
    return f"applied {e['num_payloads']} results at step {e['step']}, digest {e['digest'][:12]}{lost}"


_FORMATS: dict[str, Callable[[Event], str | None]] = {
    "state": _format_state,
    "joined": lambda e: f"joined as {e['signer']}",
    "model_fetch": lambda e: f"fetching the model: {format_bytes(e['bytes'])} from {e['peers']} peers",
    "model_loaded": lambda e: (
        f"model loaded from {e['source']} in {e['seconds']:.1f} s, digest {e['digest'][:12]}"
    ),
    "train": lambda e: (
        f"trained {e['batch_start']}..{e['batch_end']} for step {e['step']}: "
        f"loss {e['loss']:.3f}, {e['seconds']:.2f} s"
    ),
    "apply": _format_apply,
    "witness": lambda e: f"witnessed round {e['height']}",
    "health_check": lambda e: f"reported client {e['index']} as lost",
    "checkpoint": lambda e: f"checkpoint at {e['path']}",
    "warning": lambda e: f"warning: {e['message']}",
    "leaving": lambda e: "leaving after this round",
    "left": lambda e: "left the run",
    "finished": lambda e: "the run is finished",
}
