#!/usr/bin/env python3
"""Builds the programs and their IDLs into psyche_py/chain/{programs,idl}; `make programs` calls this.

    make.py            build and write *.so, SHA256SUMS, BUILD.json and the IDLs
    make.py --check    fail unless what is committed follows from the sources

The check always compares the IDLs and the hash of the sources. It also rebuilds and compares the programs
byte for byte when the compiler is the one that BUILD.json names; with another or none it says so.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import idl
import sbf_build

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT.parent / "psyche_py" / "chain"
SBPF_VERSION = 0


def hash_files(paths: list[Path], base: Path) -> str:
    """One sha256 over names and contents."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(base).as_posix()} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def hash_sources() -> str:
    """Of everything the programs are made of."""
    found = [path for pattern in ("*.rs", "Cargo.toml", "Cargo.lock") for path in ROOT.rglob(pattern)]
    own = [path for path in found if not {"target", "build"} & set(path.relative_to(ROOT).parts[:-1])]
    return hash_files(own, ROOT)


def hash_tool() -> str:
    """Of everything that turns sources into programs."""
    here = ROOT / "build"
    return hash_files([*here.glob("sbf_*.py"), *here.glob("sbf_*.rs")], here)


def read_compiler() -> dict[str, str] | None:
    """The compiler's release, commit and LLVM, or None when it or its library source is not installed."""
    try:
        text, _ = sbf_build.find_library()
    except sbf_build.BuildError as error:
        print(error)
        return None
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    return {"rustc": fields["release"], "commit": fields["commit-hash"], "llvm": fields["LLVM version"]}


def build_all(out: Path, target: Path | None = None) -> dict[str, Any]:
    """The programs in ``out``, built in ``target`` (None: where cargo keeps them); what BUILD.json says."""
    compiler = read_compiler()
    if compiler is None:
        raise SystemExit("The programs cannot be built here: see programs/build/README.md.")
    out.mkdir(parents=True, exist_ok=True)
    programs = {}
    for name in idl.PROGRAMS:
        path = out / f"{name}.so"
        sbf_build.build(ROOT / name / "Cargo.toml", path, SBPF_VERSION, target)
        data = path.read_bytes()
        programs[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        print(f"{name}.so {len(data)} bytes")
    return {
        "sbpf_version": SBPF_VERSION,
        "compiler": compiler,
        "tool_sha256": hash_tool(),
        "sources_sha256": hash_sources(),
        "programs": programs,
    }


def write_all() -> None:
    """Build, and write everything that is committed."""
    out = PACKAGE / "programs"
    record = build_all(out)
    sums = [f"{entry['sha256']}  {name}.so\n" for name, entry in record["programs"].items()]
    (out / "SHA256SUMS").write_text("".join(sums))
    (out / "BUILD.json").write_text(json.dumps(record, indent=2) + "\n")
    (PACKAGE / "idl").mkdir(exist_ok=True)
    for name in idl.PROGRAMS:
        (PACKAGE / "idl" / f"{name}.json").write_text(idl.render(name))


def check_all() -> None:
    """Fails, naming the file, unless the committed files follow from the sources."""
    remedy = "run `make programs` and commit what it writes"
    record = json.loads((PACKAGE / "programs" / "BUILD.json").read_text())
    for name in idl.PROGRAMS:
        if (PACKAGE / "idl" / f"{name}.json").read_text() != idl.render(name):
            raise SystemExit(f"idl/{name}.json is not what the sources give: {remedy}")
    for key, value in (("sources_sha256", hash_sources()), ("tool_sha256", hash_tool())):
        if record[key] != value:
            raise SystemExit(f"BUILD.json: {key} is of other files than these: {remedy}")
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=PACKAGE / "programs", check=True)
    compiler = read_compiler()
    if compiler != record["compiler"]:
        print(f"SKIPPED the rebuild: the programs were built with {record['compiler']}, here is {compiler}.")
        print("IDLs, hash of the sources and SHA256SUMS agree.")
        return
    with tempfile.TemporaryDirectory() as scratch:
        rebuilt = build_all(Path(scratch), Path(scratch) / "target")
    if rebuilt != record:
        raise SystemExit(f"The programs differ from what is committed: {remedy}")
    print("The committed programs and IDLs are what the sources give.")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    if parser.parse_args().check:
        check_all()
    else:
        write_all()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
