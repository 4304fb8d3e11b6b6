"""The localnet as a process: ports, signals, SIGKILL and restart with a ledger."""

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from localnet_bank import encode, move
from localnet_process import Localnet, running_localnet, start_localnet, stop
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from psyche_py.chain.artifacts import PROGRAM_NAMES, get_program_id
from psyche_py.cli.demo.processes import find_free_ports

pytestmark = pytest.mark.processes


def sign_transfer(localnet: Localnet, payer: Keypair, to: Pubkey, lamports: int) -> VersionedTransaction:
    blockhash = Hash.from_string(localnet.call("getLatestBlockhash")["value"]["blockhash"])
    message = Message.new_with_blockhash([move(payer, to, lamports)], payer.pubkey(), blockhash)
    return VersionedTransaction(message, [payer])


def send(localnet: Localnet, transaction: VersionedTransaction) -> str:
    return str(localnet.call("sendTransaction", encode(transaction), {"encoding": "base64"}))


def test_programs_slots_and_sigterm() -> None:
    with running_localnet() as localnet:
        for name in PROGRAM_NAMES:
            config = {"encoding": "base64", "dataSlice": {"offset": 0, "length": 4}}
            account = localnet.call("getAccountInfo", str(get_program_id(name)), config)["value"]
            assert account["executable"] is True
        processed = {"commitment": "processed"}
        first, start = localnet.call("getSlot", processed), time.monotonic()
        time.sleep(1.3)
        passed = localnet.call("getSlot", processed) - first
        assert abs(passed - (time.monotonic() - start) / 0.4) < 2
        assert abs(localnet.call("getBlockTime", first) - time.time()) < 5
        assert stop(localnet) == 0


def test_websocket_is_on_the_next_port() -> None:
    with running_localnet() as localnet:
        assert int(localnet.ws_url.rsplit(":", 1)[1]) == localnet.rpc_port + 1
        assert localnet.rpc_url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize("neighbour", [0, 1])
def test_a_taken_port_is_one_clear_error(tmp_path: Path, neighbour: int) -> None:
    rpc_port, ws_port = find_free_ports()
    port = (rpc_port, ws_port)[neighbour]
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        command = [sys.executable, "-m", "psyche_py.chain.localnet", "--rpc-port", str(rpc_port)]
        command += ["--ledger", str(tmp_path / "ledger"), "--reset"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 5
    assert f"Port {port} on 127.0.0.1 is taken" in ended.stderr
    assert "--rpc-port" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "ledger").exists()  # nothing was touched


def test_a_foreign_address_is_refused() -> None:
    command = [sys.executable, "-m", "psyche_py.chain.localnet", "--host", "192.0.2.1", "--rpc-port", "0"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 5
    assert "Cannot listen on 192.0.2.1:0" in ended.stderr


def test_a_ledger_in_use_is_one_clear_error(tmp_path: Path) -> None:
    with running_localnet("--ledger", str(tmp_path)):
        command = [
            sys.executable,
            "-m",
            "psyche_py.chain.localnet",
            "--rpc-port",
            "0",
            "--ledger",
            str(tmp_path),
        ]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 7
    assert "in use by another localnet" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("kill", [False, True])
def test_a_ledger_survives(tmp_path: Path, kill: bool) -> None:
    payer, to = Keypair(), Keypair().pubkey()
    port, _ = find_free_ports()
    arguments = ["--ledger", str(tmp_path), "--rpc-port", str(port)]
    localnet = start_localnet(*arguments)
    try:
        localnet.call("requestAirdrop", str(payer.pubkey()), 10**10)
        for amount in range(5):
            signature = send(localnet, sign_transfer(localnet, payer, to, 10**6 + amount))
        held = sign_transfer(localnet, payer, to, 10**7)  # signed before, sent after the restart
        slot = localnet.call("getSlot", {"commitment": "processed"})
    finally:
        stop(localnet, kill=kill)
    again = start_localnet(*arguments)  # the same port at once: clients find it again
    try:
        assert again.is_restored
        assert again.genesis_hash == localnet.genesis_hash == again.call("getGenesisHash")
        assert again.call("getBalance", str(to))["value"] == 5 * 10**6 + 10
        assert again.call("getSlot", {"commitment": "processed"}) > slot
        (status,) = again.call("getSignatureStatuses", [signature])["value"]
        assert status["err"] is None
        send(again, held)
        assert again.call("getBalance", str(to))["value"] == 5 * 10**6 + 10 + 10**7
        assert abs(again.call("getBlockTime", slot) - time.time()) < 60
    finally:
        stop(again)
    with running_localnet("--ledger", str(tmp_path), "--reset") as fresh:
        assert fresh.genesis_hash != localnet.genesis_hash
        assert fresh.call("getBalance", str(to))["value"] == 0


def test_every_acknowledged_transfer_survives_sigkill(tmp_path: Path) -> None:
    payer, to = Keypair(), Keypair().pubkey()
    acknowledged = 0
    for generation in range(3):
        with running_localnet("--ledger", str(tmp_path)) as localnet:
            assert localnet.call("getBalance", str(to))["value"] == acknowledged * 10**6
            localnet.call("requestAirdrop", str(payer.pubkey()), 10**10)
            deadline = time.monotonic() + 0.5 + 0.1 * generation  # not in step with the slots
            while time.monotonic() < deadline:
                # the amount tells equal transfers apart, so each is a million and a bit in all
                transfer = sign_transfer(localnet, payer, to, 10**6)
                answer = localnet.request("sendTransaction", encode(transfer), {"encoding": "base64"})
                if "result" in answer:  # else: twice in one slot is the same transaction
                    acknowledged += 1
            assert stop(localnet, kill=True) == -9
    with running_localnet("--ledger", str(tmp_path)) as localnet:
        assert acknowledged >= 3
        assert localnet.call("getBalance", str(to))["value"] == acknowledged * 10**6


def test_a_full_disk_ends_the_process_with_one_clear_error(tmp_path: Path) -> None:
    """A limit of 16 KiB a file stands in for a full disk; the last transfer is not acknowledged."""
    shell = 'ulimit -f 16; exec "$@"'
    command = [sys.executable, "-m", "psyche_py.chain.localnet", "--rpc-port", "0", "--ledger", str(tmp_path)]
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    url, to = json.loads(process.stdout.readline())["rpc_url"], str(Keypair().pubkey())
    acknowledged = 0
    call = {"jsonrpc": "2.0", "id": 1, "method": "requestAirdrop", "params": [to, 10**6]}
    with pytest.raises(httpx.TransportError):
        for _ in range(200):
            assert "result" in httpx.post(url, json=call).json()
            acknowledged += 1
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 7
    assert "Cannot write to the ledger" in stderr
    assert "Traceback" not in stderr
    with running_localnet("--ledger", str(tmp_path)) as localnet:
        assert localnet.call("getBalance", to)["value"] == acknowledged * 10**6
