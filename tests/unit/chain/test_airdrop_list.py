"""An airdrop's list: the CSV file, the Merkle sum tree over it, and what its proofs prove."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.pubkey import Pubkey

from psyche_py.chain import allocations as allocations_module
from psyche_py.chain.allocation_tree import MAX_LEVELS, AllocationTree, compute_leaf, compute_parent
from psyche_py.chain.allocations import Allocation, parse_unix_timestamp, read_allocations
from psyche_py.errors import UsageError

A, B, C = (Pubkey([n] * 32) for n in (1, 2, 3))
U64_MAX = 2**64 - 1


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "list.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# ---- the file -------------------------------------------------------------------------------------------


def test_file_with_every_column(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "wallet,nonce,start,duration,amount\n"
        f"{A},7,2027-01-01,31536000,1000000\r\n"
        f"{B},18446744073709551615,-5,4294967295,18446744073709551615\n"
        "\n"
        f'"{C}", 0 , 2027-01-01T02:00:00+02:00 , 0 , 1\n',
    )
    assert read_allocations(path) == [
        Allocation(A, 1000000, 7, 1798761600, 31536000),
        Allocation(B, U64_MAX, U64_MAX, -5, 2**32 - 1),
        Allocation(C, 1, 0, 1798761600, 0),
    ]


def test_columns_in_any_order_and_defaults(tmp_path: Path) -> None:
    path = write(tmp_path, b"\xef\xbb\xbfamount, wallet,start\n5," + str(A).encode() + b",\n")
    assert read_allocations(path) == [Allocation(A, 5)]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ("no allocation",)),
        (f"{A},5\n", ("no column",)),
        ("wallet\n", ("no column 'amount'",)),
        ("wallet,amount,durration\n", ("durration",)),
        ("wallet,amount,amount\n", ("columns",)),
        ("wallet,amount\n", ("no allocation",)),
        ("wallet,amount\nnobody,5\n", ("line 2", "'nobody' is no public key")),
        (f"wallet,amount\n{A},5\n{B}\n", ("line 3", "1 values for 2 columns")),
        (f"wallet,amount\n{A},0\n", ("line 2", "amount 0 is out of range")),
        (f"wallet,amount\n{A},\n", ("line 2", "amount ''")),
        (f"wallet,amount\n{A},1.5\n", ("line 2", "amount '1.5'")),
        (f"wallet,amount\n{A},-1\n", ("line 2", "amount '-1'")),
        (f"wallet,amount\n{A},1_000\n", ("line 2", "amount '1_000'")),
        (f"wallet,amount\n{A},\u0661\n", ("line 2", "no whole number")),
        (f"wallet,amount\n{A},18446744073709551616\n", ("line 2", "out of range")),
        (f"wallet,amount\n{A}," + "9" * 5000 + "\n", ("line 2", "no whole number")),
        (f"wallet,amount,nonce\n{A},1,18446744073709551616\n", ("line 2", "nonce")),
        (f"wallet,amount,duration\n{A},1,4294967296\n", ("line 2", "duration")),
        (f"wallet,amount,start\n{A},1,9223372036854775808\n", ("line 2", "start")),
        (f"wallet,amount,start\n{A},1,soon\n", ("line 2", "start 'soon'")),
        (f"wallet,amount,nonce\n{A},1,4\n{B},1,4\n{A},2,4\n", ("line 4", "line 2 already")),
        (f'wallet,amount\n"{A},1\n', ("line 2",)),
        (b"wallet,amount\n\xff\xfe\n", ("not UTF-8",)),
        (b"wallet,amount\n" + b"x" * 200_000 + b",1\n", ("line 2",)),
    ],
)
def test_bad_file_is_refused_by_line(tmp_path: Path, text: str | bytes, parts: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as caught:
        read_allocations(write(tmp_path, text))
    assert all(part in caught.value.what for part in ("list.csv", *parts)), caught.value.what
    assert caught.value.remedy
    assert len(caught.value.what) < 300


def test_file_that_is_not_there_or_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_allocations(tmp_path / "none.csv")
    with pytest.raises(UsageError, match="cannot be read"):
        read_allocations(tmp_path)
    monkeypatch.setattr(allocations_module, "MAX_FILE_BYTES", 10)
    with pytest.raises(UsageError, match="longer than"):
        read_allocations(write(tmp_path, f"wallet,amount\n{A},1\n"))


def test_moments() -> None:
    assert parse_unix_timestamp("-12") == -12
    assert parse_unix_timestamp("1970-01-02") == 86400
    assert parse_unix_timestamp("1970-01-01T01:00:00+01:00") == 0
    for text in ("", "tomorrow", "1_0", "2027-13-01", "0x10"):
        with pytest.raises(ValueError):
            parse_unix_timestamp(text)


# ---- the tree -------------------------------------------------------------------------------------------


def climb(leaf: tuple[bytes, int], proof: bytes) -> tuple[bytes, int]:
    """Where a proof leads, written apart from the code under test."""
    node = leaf
    for at in range(0, len(proof), 40):
        sibling = (proof[at : at + 32], int.from_bytes(proof[at + 32 : at + 40], "little"))
        low, high = sorted((node, sibling))
        data = b"\1" + low[0] + struct.pack("<Q", low[1]) + high[0] + struct.pack("<Q", high[1])
        node = (hashlib.sha256(data).digest(), low[1] + high[1])
    return node


def test_leaf_and_parent_bytes() -> None:
    line = Allocation(A, 4, 1, -2, 3)
    leaf = compute_leaf(line)
    assert leaf == (hashlib.sha256(b"\0" + b"\1" * 32 + struct.pack("<QqIQ", 1, -2, 3, 4)).digest(), 4)
    other = compute_leaf(Allocation(B, 7))
    assert (
        compute_parent(leaf, other)
        == compute_parent(other, leaf)
        == climb(leaf, other[0] + struct.pack("<Q", 7))
    )


def test_the_programs_own_vectors() -> None:
    """The same numbers as in programs/distributor/src/merkle.rs."""
    five, six = (
        compute_leaf(Allocation(Pubkey([n] * 32), amount, 1, 2, 3)) for n, amount in ((5, 4), (6, 7))
    )
    assert five[0][:4].hex() == "d41b6b1a"
    assert compute_parent(five, six)[0][:4].hex() == "24ee9f96"


lines = st.builds(
    Allocation,
    st.integers(0, 255).map(lambda n: Pubkey([n] * 32)),
    st.integers(1, 2**50),
    st.integers(0, 3),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**32 - 1),
)


@given(st.lists(lines, min_size=1, max_size=40, unique_by=lambda item: (item.wallet, item.nonce)))
def test_every_line_is_proven_and_the_order_does_not_matter(items: list[Allocation]) -> None:
    tree = AllocationTree(items)
    assert AllocationTree(items[::-1]).merkle_root == tree.merkle_root
    assert tree.total_amount == sum(item.amount for item in items)
    for item in items:
        proof = tree.get_proof(item)
        assert len(proof) <= 40 * tree.num_levels
        assert climb(compute_leaf(item), proof) == (tree.merkle_root, tree.total_amount)
    assert tree.num_levels == (len(items) - 1).bit_length()


def test_a_stranger_has_no_proof() -> None:
    tree = AllocationTree([Allocation(A, 1), Allocation(B, 2)])
    with pytest.raises(KeyError):
        tree.get_proof(Allocation(A, 2))


def test_lists_that_are_none() -> None:
    with pytest.raises(UsageError, match="1 to 262144"):
        AllocationTree([])
    with pytest.raises(UsageError, match="twice"):
        AllocationTree([Allocation(A, 1), Allocation(A, 2)])
    with pytest.raises(UsageError, match="add up"):
        AllocationTree([Allocation(A, U64_MAX), Allocation(B, 1)])
    assert AllocationTree([Allocation(A, U64_MAX - 1), Allocation(B, 1)]).total_amount == U64_MAX
    with pytest.raises(OverflowError):
        compute_parent((bytes(32), U64_MAX), (bytes(32), 1))


def test_a_list_longer_than_a_proof_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    import psyche_py.chain.allocation_tree as module

    assert MAX_LEVELS == 18
    monkeypatch.setattr(module, "MAX_LEVELS", 2)
    items = [Allocation(A, 1, nonce) for nonce in range(5)]
    assert AllocationTree(items[:4]).num_levels == 2
    with pytest.raises(UsageError, match="1 to 4 allocations, not 5"):
        AllocationTree(items)


def test_lines_of_a_wallet() -> None:
    one, two = Allocation(A, 1, 9), Allocation(A, 2, 4)
    tree = AllocationTree([one, Allocation(B, 3, 0, 100, 50), two])
    assert tree.find(A) == [two, one]
    assert tree.find(C) == []
    assert tree.last_end == 150
