"""Scripts as TOML files, read strictly: docs/simulator.md lists every key.

Every error is a ConfigError that names the key, what is wrong with it and what to do.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from psyche_py.client import actions as act
from psyche_py.coordinator.layout import RunState
from psyche_py.errors import ConfigError
from psyche_py.sim.cheats import Fate
from psyche_py.sim.faults import KINDS, ROLES, WITHOUT_CLIENTS, Fault
from psyche_py.sim.outcome import MAX_VIRTUAL_SECONDS, Script
from psyche_py.sim.settings import Link, Path, Role, Settings, make_run_config
from psyche_py.sim.trainer import MODES

MAX_CLIENTS = 256
MBIT = 125_000.0
"""Bytes a second."""
CHAINS = ("rule-book", "programs")
STATES = tuple(state.name for state in RunState)
ACTIONS = tuple(kind.__name__ for kind in act.Action.__args__)
_TOP = (
    "name",
    "seed",
    "clients",
    "max_minutes",
    "chain",
    "config",
    "compute",
    "link",
    "group",
    "path",
    "fault",
)
_COMPUTE = {
    "train_seconds": (0.001, 1e6),
    "spread": (0.0, 0.99),
    "apply_seconds": (0.0, 1e6),
    "save_seconds": (0.0, 1e6),
    "payload_bytes": (1, 2**32 - 1),
    "model_bytes": (1, 2**40),
    "points_per_epoch": (0, 2**63),
    "slashing_rate": (0, 2**63),
    "conviction": (0.0, 1.0),
}
_LINK = {
    "latency_ms": (0.0, 60_000.0),
    "up_mbit": (0.001, 1e6),
    "down_mbit": (0.001, 1e6),
    "loss": (0.0, 0.9),
}
_GROUP = ("clients", "mode", "end", "train_seconds", "link")
_PATH = ("between", "latency_ms")
_FAULT = (*(field.name for field in fields(Fault)), "group")
_INTEGERS = (
    "payload_bytes",
    "model_bytes",
    "points_per_epoch",
    "slashing_rate",
    "step",
    "epoch",
    "round",
    "by",
)


class _Table:
    """A table of the file at ``path``, whose keys must be known."""

    def __init__(self, path: str, data: Any, known: Iterable[str]) -> None:
        if not isinstance(data, dict):
            raise ConfigError(path.rstrip(".") or "file", "must be a table", f"Write [{path.rstrip('.')}].")
        self.path = path
        self.data: dict[str, Any] = data
        names = list(known)
        for key in data:
            if key not in names:
                close = difflib.get_close_matches(key, names, 1)
                hint = f"Did you mean {close[0]!r}?" if close else f"Known keys: {', '.join(names)}."
                raise ConfigError(f"{path}{key}", "is not a known key", hint)

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def get_number(self, key: str, low: float, high: float, default: Any = None) -> Any:
        """A number from ``low`` to ``high``; a whole one where the key asks for it."""
        if key not in self.data:
            return default
        value, is_whole = self.data[key], key in _INTEGERS or isinstance(low, int)
        kinds = (int,) if is_whole else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
            kind = "whole number" if is_whole else "number"
            raise self.fail(key, f"must be a {kind} from {low:g} to {high:g}")
        return value if is_whole else float(value)

    def get_choice(self, key: str, choices: Iterable[str], default: str) -> str:
        """One of some names."""
        value, names = self.data.get(key, default), list(choices)
        if value not in names:
            close = difflib.get_close_matches(str(value), names, 1)
            hint = f"Did you mean {close[0]!r}?" if close else f"One of {', '.join(names)}."
            raise ConfigError(f"{self.path}{key}", f"cannot be {value!r}", hint)
        return str(value)

    def get_text(self, key: str, default: str) -> str:
        """A text."""
        value = self.data.get(key, default)
        if not isinstance(value, str):
            raise self.fail(key, "must be a text")
        return value

    def get_clients(self, key: str, num_clients: int) -> tuple[int, ...]:
        """Numbers of clients, ascending; those that join later follow the first ones."""
        value = self.data.get(key, [])
        is_list = isinstance(value, list) and all(type(n) is int and 0 <= n < MAX_CLIENTS for n in value)
        if not is_list or len(set(value)) != len(value):
            raise self.fail(key, f"must be a list of different numbers of clients, 0 to {num_clients - 1}")
        return tuple(sorted(value))

    def fail(self, key: str, rule: str) -> ConfigError:
        """The error for a value that breaks a rule."""
        return ConfigError(f"{self.path}{key}", rule, f"It is {self.data.get(key)!r}.")


def read_script(text: str, name: str = "script") -> Script:
    """Read a script. Raises ConfigError: bad TOML, an unknown key, a value out of its range."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("file", f"is not valid TOML: {error}", "Mend the place it names.") from None
    top = _Table("", data, _TOP)
    if "clients" not in top:
        raise ConfigError("clients", "is missing", "Say how many there are, for example: clients = 5")
    num = int(top.get_number("clients", 1, MAX_CLIENTS))
    groups = _read_groups(data.get("group", {}), num)
    settings = _read_settings(top, num, groups)
    make_run_config(settings)  # raises ConfigError for [config]
    faults = _get_list(data, "fault")
    minutes = top.get_number("max_minutes", 0.01, 1e5, MAX_VIRTUAL_SECONDS / 60)
    read = tuple(_read_fault(f"fault {i + 1}: ", table, groups, num) for i, table in enumerate(faults))
    return Script(top.get_text("name", name), settings, read, minutes * 60)


def _get_list(data: Mapping[str, Any], key: str) -> list[Any]:
    value = data.get(key, [])
    if not isinstance(value, list):
        raise ConfigError(key, "must be a list of tables", f"Write [[{key}]].")
    return value


def _read_settings(top: _Table, num: int, groups: Mapping[str, tuple[tuple[int, ...], Role]]) -> Settings:
    config = _Table("config.", top.data.get("config", {}), top.data.get("config", {}))
    compute = _Table("compute.", top.data.get("compute", {}), (*_COMPUTE, "mode", "model", "data"))
    values = {key: compute.get_number(key, *limits) for key, limits in _COMPUTE.items() if key in compute}
    mode = compute.get_choice("mode", MODES, "honest")
    roles = {number: Role(mode=mode) for number in range(num)} if mode != "honest" else {}
    for members, role in groups.values():
        roles |= dict.fromkeys(members, role)
    for key in ("model", "data"):
        if key in compute:
            values[f"{key}_path"] = compute.get_text(key, "")
        elif any(role.mode == "real" for role in roles.values()):
            remedy = f"Clients that train need it: compute.{key} = 'path'"
            raise ConfigError(f"compute.{key}", "is missing", remedy)
    return Settings(
        num,
        int(top.get_number("seed", 0, 2**63, 0)),
        config.data,
        _read_link("link.", top.data.get("link", {})) or Link(),
        roles=roles,
        is_on_programs=top.get_choice("chain", CHAINS, CHAINS[0]) == CHAINS[1],
        paths=tuple(_read_path(i, table, groups) for i, table in enumerate(_get_list(top.data, "path"))),
        **values,
    )


def _read_link(path: str, data: Any) -> Link | None:
    if not data:
        return None
    table, usual = _Table(path, data, _LINK), Link()
    latency = table.get_number("latency_ms", *_LINK["latency_ms"], usual.latency_seconds * 1e3)
    up = table.get_number("up_mbit", *_LINK["up_mbit"], usual.up_bytes_per_second / MBIT)
    down = table.get_number("down_mbit", *_LINK["down_mbit"], usual.down_bytes_per_second / MBIT)
    return Link(latency / 1e3, up * MBIT, down * MBIT, table.get_number("loss", *_LINK["loss"], usual.loss))


def _read_groups(data: Any, num: int) -> dict[str, tuple[tuple[int, ...], Role]]:
    found: dict[str, tuple[tuple[int, ...], Role]] = {}
    seen: dict[int, str] = {}
    for name, value in _Table("group.", data, data if isinstance(data, dict) else ()).data.items():
        table = _Table(f"group.{name}.", value, _GROUP)
        members = table.get_clients("clients", num)
        if not members:
            raise ConfigError(f"group.{name}.clients", "is missing", "Name the clients: clients = [0, 1]")
        for number in members:
            if number in seen:
                other = f"Take it out of one: it is in group.{seen[number]} already."
                raise ConfigError(f"group.{name}.clients", f"has client {number}", other)
            seen[number] = name
        role = Role(
            _read_link(f"group.{name}.link.", table.data.get("link")),
            table.get_number("train_seconds", 0.001, 1e6),
            table.get_choice("mode", MODES, "honest"),
            table.get_choice("end", ("", *(fate.value for fate in Fate)), ""),
        )
        found[name] = (members, role)
    return found


def _read_path(i: int, data: Any, groups: Mapping[str, tuple[tuple[int, ...], Role]]) -> Path:
    table = _Table(f"path {i + 1}: ", data, _PATH)
    between = table.data.get("between")
    if not isinstance(between, list) or len(between) != 2 or any(name not in groups for name in between):
        raise table.fail("between", f"must be a pair of groups ({', '.join(groups) or 'there are none'})")
    if "latency_ms" not in table:
        raise ConfigError(f"{table.path}latency_ms", "is missing", "One way, for example: latency_ms = 120")
    seconds = table.get_number("latency_ms", *_LINK["latency_ms"]) / 1e3
    return Path(groups[between[0]][0], groups[between[1]][0], seconds)


def _read_fault(path: str, data: Any, groups: Mapping[str, tuple[tuple[int, ...], Role]], num: int) -> Fault:
    table = _Table(path, data, _FAULT)
    if "kind" not in table:
        raise ConfigError(f"{path}kind", "is missing", f"One of {', '.join(KINDS)}.")
    kind = table.get_choice("kind", KINDS, "")
    clients = table.get_clients("clients", num)
    if "group" in table:
        clients = tuple(sorted({*clients, *groups[table.get_choice("group", groups, "")][0]}))
    role = table.get_choice("role", ("", *ROLES), "")
    point = table.get_choice("point", (*ACTIONS, *STATES), "Train")
    if not clients and not role and point in STATES and kind not in WITHOUT_CLIENTS:
        remedy = "Name clients, a group or a role; at a point that is an action, whoever does it is meant."
        raise ConfigError(f"{path}clients", f"is missing: whom does {kind!r} befall?", remedy)
    return Fault(
        kind,
        clients,
        point,
        table.get_number("step", 0, 2**32, 0 if "at_seconds" in table else 5),
        table.get_number("by", 0, MAX_CLIENTS - 1),
        table.get_number("seconds", 0.0, 1e9, 0.0),
        table.get_number("value", -1e12, 1e12, 0.0),
        table.get_number("epoch", 0, 2**16, 0),
        table.get_number("round", 0, 2**32, 0),
        table.get_number("at_seconds", 0.0, 1e9),
        role,
    )


# ---- writing ----------------------------------------------------------------------------------------------


def write_script(script: Script) -> str:
    """The file that :func:`read_script` reads as this script."""
    import toml

    settings, usual = script.settings, Settings()
    table: dict[str, Any] = {
        "name": script.name,
        "seed": settings.seed,
        "clients": settings.num_clients,
        "max_minutes": script.max_seconds / 60,
        "chain": CHAINS[settings.is_on_programs],
        "config": dict(settings.config),
        "compute": {key: getattr(settings, key) for key in _COMPUTE},
        "link": _write_link(settings.link),
    }
    for key in ("model", "data"):
        if getattr(settings, f"{key}_path") != getattr(usual, f"{key}_path"):
            table["compute"][key] = getattr(settings, f"{key}_path")
    table |= _write_roles(settings)
    faults = [_write_fault(fault) for fault in script.faults]
    return toml.dumps(table | ({"fault": faults} if faults else {}))


def _write_link(link: Link) -> dict[str, float]:
    return {
        "latency_ms": link.latency_seconds * 1e3,
        "up_mbit": link.up_bytes_per_second / MBIT,
        "down_mbit": link.down_bytes_per_second / MBIT,
        "loss": link.loss,
    }


def _write_roles(settings: Settings) -> dict[str, Any]:
    """A group for clients that are alike; those at the ends of a path must be one, so each is in one."""
    ends = [end for path in settings.paths for end in (path.ones, path.others)]
    members: dict[tuple[Role, tuple[bool, ...]], list[int]] = {}
    for number in range(max(settings.num_clients, *settings.roles, 0, *(max(end) + 1 for end in ends))):
        role, places = settings.get_role(number), tuple(number in end for end in ends)
        if role != Role() or any(places):
            members.setdefault((role, places), []).append(number)
    groups: dict[str, Any] = {}
    for i, ((role, _), numbers) in enumerate(members.items()):
        group: dict[str, Any] = {"clients": numbers, "mode": role.mode}
        if role.end:
            group["end"] = role.end
        if role.train_seconds is not None:
            group["train_seconds"] = role.train_seconds
        if role.link is not None:
            group["link"] = _write_link(role.link)
        groups[f"g{i}"] = group
    names = {tuple(group["clients"]): name for name, group in groups.items()}
    paths = [
        {"between": [names[path.ones], names[path.others]], "latency_ms": path.seconds * 1e3}
        for path in settings.paths
    ]
    return ({"group": groups} if groups else {}) | ({"path": paths} if paths else {})


def _write_fault(fault: Fault) -> dict[str, Any]:
    usual = Fault(fault.kind)
    changed = {
        field.name: getattr(fault, field.name)
        for field in fields(Fault)
        if getattr(fault, field.name) != getattr(usual, field.name)
    }
    if "clients" in changed:
        changed["clients"] = list(fault.clients)
    return {"kind": fault.kind, **changed} | ({"step": fault.step} if fault.at_seconds is not None else {})
