"""Every kind of offence that the sources name is in the table of docs/mesh.md, and some test provokes it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from psyche_py.p2p.offences import TOLERATED

ROOT = Path(__file__).resolve().parents[3]
REPORTERS = {"report": 1, "count": 0, "on_offence": 0, "_on_offence": 0, "ReportPeer": 1, "StreamBroken": 1}
"""Calls whose last argument is a kind, if they have more than so many."""
KIND = re.compile(r"[a-z]+(_[a-z]+)*")


def get_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def find_expressions(tree: ast.AST) -> Iterator[ast.expr]:
    """Where a kind may stand, as a literal or as a variable."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and get_name(node.func) in REPORTERS:
            yield from node.args[REPORTERS[get_name(node.func)] :][-1:]
        elif isinstance(node, ast.keyword | ast.Assign):
            name = node.arg if isinstance(node, ast.keyword) else get_name(node.targets[0])
            yield from [node.value] if name in ("fault", "offence") else []
        elif isinstance(node, ast.Subscript) and get_name(node.value) == "offences":
            yield node.slice
        elif isinstance(node, ast.FunctionDef) and node.name == "_find_fault":
            yield from (each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value)


@cache
def find_kinds() -> frozenset[str]:
    """Kinds that the mesh and the client can count."""
    kinds = set(TOLERATED)
    for folder in ("p2p", "client"):
        for path in (ROOT / "psyche_py" / folder).rglob("*.py"):
            for expression in find_expressions(ast.parse(path.read_text())):
                ways = (
                    [expression.body, expression.orelse]
                    if isinstance(expression, ast.IfExp)
                    else [expression]
                )
                said = [way.value for way in ways if isinstance(way, ast.Constant)]
                kinds.update(kind for kind in said if isinstance(kind, str) and KIND.fullmatch(kind))
    return frozenset(kinds)


def test_the_documented_table_lists_exactly_the_kinds_that_can_be_counted() -> None:
    section = (ROOT / "docs" / "mesh.md").read_text().split("\n## Offences\n")[1].split("\n## ")[0]
    first_cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    documented = [kind for cell in first_cells for kind in re.findall(r"`(\w+)`", cell)]
    assert sorted(documented) == sorted(find_kinds())


def test_every_kind_is_named_by_a_test() -> None:
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert {kind for kind in find_kinds() if f'"{kind}"' not in tests} == set()
