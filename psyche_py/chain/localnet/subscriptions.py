"""Who wants to hear of what, and telling them. No sockets here: a subscriber is given text to send.

A subscription at *processed* hears of a change at once, at *confirmed* when the slot is over, at *finalized*
one slot later, each time with the account as it was then.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from solders.pubkey import Pubkey
from solders.signature import Signature

from psyche_py.chain.litesvm_engine import ProcessedTransaction
from psyche_py.chain.localnet.bank import Bank
from psyche_py.chain.localnet.encode_account import encode_account
from psyche_py.chain.localnet.filters import Filter, is_match, parse_filters
from psyche_py.chain.localnet.methods_cluster import SOLANA_CORE_VERSION
from psyche_py.chain.localnet.params import Params, parse_pubkey, parse_signature
from psyche_py.chain.localnet.rpc_errors import METHOD_NOT_FOUND, RpcError, invalid_params
from psyche_py.chain.port import AccountInfo

MAX_SUBSCRIPTIONS_PER_CONNECTION = 4096


class Subscriber(Protocol):
    """A connection. Must be hashable by identity."""

    def push(self, text: str) -> None:
        """Queue a message; must neither wait nor raise."""
        ...


@dataclass(slots=True, eq=False)
class Subscription:
    """One subscription. ``topic``: what it is filed under; see Hub."""

    id: int
    subscriber: Subscriber
    method: str
    topic: tuple[str, Any]
    commitment: str = "finalized"
    encoding: str = "binary"
    data_slice: tuple[int, int] | None = None
    filters: tuple[Filter, ...] = ()


@dataclass(slots=True)
class _SlotEvents:
    """What happened in one slot: the last content of each changed account, and transactions in order."""

    slot: int
    accounts: dict[Pubkey, AccountInfo] = field(default_factory=dict)
    transactions: list[ProcessedTransaction] = field(default_factory=list)


class Hub:
    """All subscriptions, filed by topic: ("account", pubkey), ("program", pubkey), ("signature", signature),
    ("logs", "all" or pubkey), ("slot", None), ("root", None)."""

    def __init__(self, bank: Bank) -> None:
        self._bank = bank
        self._ids = itertools.count(1)
        self._by_id: dict[int, Subscription] = {}
        self._by_topic: dict[tuple[str, Any], dict[int, Subscription]] = {}
        self._by_subscriber: dict[Subscriber, set[int]] = {}
        self._current = _SlotEvents(bank.slot)
        self._confirmed: _SlotEvents | None = None
        bank.transaction_listeners.append(self._on_transaction)
        bank.slot_listeners.append(self._on_slot)

    # ---- requests -----------------------------------------------------------------------------------

    def handle(self, subscriber: Subscriber, method: str, params: Params) -> Any:
        """The result of a websocket method. Raises RpcError."""
        if method in SUBSCRIBE:
            if len(self._by_subscriber.get(subscriber, ())) >= MAX_SUBSCRIPTIONS_PER_CONNECTION:
                raise invalid_params(f"Too many subscriptions; max {MAX_SUBSCRIPTIONS_PER_CONNECTION}")
            subscription = SUBSCRIBE[method](next(self._ids), subscriber, params)
            self._add(subscription)
            return subscription.id
        if method in UNSUBSCRIBE:
            found = self._by_id.get(params.get_int(0))
            if found is None or found.subscriber is not subscriber or found.method != UNSUBSCRIBE[method]:
                raise invalid_params("Invalid subscription id.")
            self._remove(found)
            return True
        raise RpcError(METHOD_NOT_FOUND, "Method not found")

    def after_subscribed(self, subscription_id: int) -> None:
        """Call when the id has been sent: tells at once of a signature that has landed already."""
        subscription = self._by_id.get(subscription_id)
        if subscription is None or subscription.topic[0] != "signature":
            return
        status = self._bank.engine.get_signature_status(subscription.topic[1])
        if status is None:
            return
        slot, err = status
        if slot <= self._bank.get_slot(subscription.commitment):
            self._tell_signature(subscription, self._bank.get_slot(subscription.commitment), err)

    def drop_subscriber(self, subscriber: Subscriber) -> None:
        """Forget a connection."""
        for subscription_id in list(self._by_subscriber.get(subscriber, ())):
            self._remove(self._by_id[subscription_id])

    def _add(self, subscription: Subscription) -> None:
        self._by_id[subscription.id] = subscription
        self._by_topic.setdefault(subscription.topic, {})[subscription.id] = subscription
        self._by_subscriber.setdefault(subscription.subscriber, set()).add(subscription.id)

    def _remove(self, subscription: Subscription) -> None:
        del self._by_id[subscription.id]
        under_topic = self._by_topic[subscription.topic]
        del under_topic[subscription.id]
        if not under_topic:
            del self._by_topic[subscription.topic]
        ids = self._by_subscriber[subscription.subscriber]
        ids.remove(subscription.id)
        if not ids:
            del self._by_subscriber[subscription.subscriber]

    def _find(self, topic: tuple[str, Any], commitment: str) -> list[Subscription]:
        return [s for s in self._by_topic.get(topic, {}).values() if s.commitment == commitment]

    # ---- events -------------------------------------------------------------------------------------

    def _on_transaction(self, processed: ProcessedTransaction, changed: Sequence[AccountInfo]) -> None:
        self._current.transactions.append(processed)
        self._current.accounts.update((account.pubkey, account) for account in changed)
        self._tell_accounts("processed", processed.slot, changed)
        self._tell_transactions("processed", processed.slot, [processed])

    def _on_slot(self, slot: int) -> None:
        done, older = self._current, self._confirmed
        self._current, self._confirmed = _SlotEvents(slot), done
        for commitment, events in (("confirmed", done), ("finalized", older)):
            if events is not None:
                self._tell_accounts(commitment, events.slot, events.accounts.values())
                self._tell_transactions(commitment, events.slot, events.transactions)
        root = self._bank.root
        for subscription in list(self._by_topic.get(("slot", None), {}).values()):
            value = {"parent": slot - 1, "root": root, "slot": slot}
            _push(subscription, "slotNotification", json.dumps(value, separators=(",", ":")))
        for subscription in list(self._by_topic.get(("root", None), {}).values()):
            _push(subscription, "rootNotification", str(root))

    def _tell_accounts(self, commitment: str, slot: int, accounts: Iterable[AccountInfo]) -> None:
        for account in accounts:
            by_account = self._find(("account", account.pubkey), commitment)
            by_program = self._find(("program", account.owner), commitment)
            if not by_account and not by_program:
                continue
            encode = self._make_encoder(account)
            for subscription in by_account:
                _push(subscription, "accountNotification", _with_context(slot, encode(subscription)))
            for subscription in by_program:
                if is_match(subscription.filters, account):
                    keyed = f'{{"pubkey":"{account.pubkey}","account":{encode(subscription)}}}'
                    _push(subscription, "programNotification", _with_context(slot, keyed))

    def _make_encoder(self, account: AccountInfo) -> Callable[[Subscription], str]:
        """Encodes the account once per distinct encoding, however many subscribers there are."""
        encoded: dict[tuple[str, Any], str] = {}

        def encode(subscription: Subscription) -> str:
            form = (subscription.encoding, subscription.data_slice)
            if form not in encoded:
                encoded[form] = _encode_for_notification(self._bank, account, *form)
            return encoded[form]

        return encode

    def _tell_transactions(
        self, commitment: str, slot: int, transactions: Iterable[ProcessedTransaction]
    ) -> None:
        for processed in transactions:
            for subscription in self._find(("signature", processed.signature), commitment):
                self._tell_signature(subscription, slot, processed.err)
            wants_logs = self._find(("logs", "all"), commitment)
            for key in processed.account_keys:
                wants_logs += self._find(("logs", key), commitment)
            if wants_logs:
                value = {
                    "signature": str(processed.signature),
                    "err": processed.err,
                    "logs": processed.logs,
                }
                text = _with_context(slot, json.dumps(value, separators=(",", ":")))
                for subscription in wants_logs:
                    _push(subscription, "logsNotification", text)

    def _tell_signature(self, subscription: Subscription, slot: int, err: Any) -> None:
        value = json.dumps({"err": err}, separators=(",", ":"))
        _push(subscription, "signatureNotification", _with_context(slot, value))
        self._remove(subscription)  # a signature is told of once


def _encode_for_notification(
    bank: Bank, account: AccountInfo, encoding: str, data_slice: tuple[int, int] | None
) -> str:
    try:
        value = encode_account(account, encoding, data_slice, bank.get_decimals)
    except RpcError:
        # too long for base58: a node sends this text in place of the data
        value = encode_account(account, "base64", (0, 0), bank.get_decimals)
        value["data"] = "error: data too large for bs58 encoding"
        if encoding == "base58":
            value["data"] = [value["data"], encoding]
    return json.dumps(value, separators=(",", ":"))


def _with_context(slot: int, value: str) -> str:
    return f'{{"context":{{"apiVersion":"{SOLANA_CORE_VERSION}","slot":{slot}}},"value":{value}}}'


def _push(subscription: Subscription, method: str, result: str) -> None:
    # the result is encoded once for all subscribers, so the envelope is put around it as text
    subscription.subscriber.push(
        f'{{"jsonrpc":"2.0","method":"{method}",'
        f'"params":{{"result":{result},"subscription":{subscription.id}}}}}'
    )


# ---- subscribe methods ---------------------------------------------------------------------------------


def _account_subscribe(number: int, subscriber: Subscriber, params: Params) -> Subscription:
    config = params.get_config(1)
    return Subscription(
        number,
        subscriber,
        "account",
        ("account", params.get_pubkey(0)),
        config.get_commitment(),
        config.get_encoding(),
        config.get_data_slice(),
    )


def _program_subscribe(number: int, subscriber: Subscriber, params: Params) -> Subscription:
    config = params.get_config(1)
    return Subscription(
        number,
        subscriber,
        "program",
        ("program", params.get_pubkey(0)),
        config.get_commitment(),
        config.get_encoding(),
        config.get_data_slice(),
        parse_filters(config.get("filters")),
    )


def _signature_subscribe(number: int, subscriber: Subscriber, params: Params) -> Subscription:
    signature: Signature = parse_signature(params.require(0))
    commitment = params.get_config(1).get_commitment()
    return Subscription(number, subscriber, "signature", ("signature", signature), commitment)


def _logs_subscribe(number: int, subscriber: Subscriber, params: Params) -> Subscription:
    wanted, topic = params.require(0), "all"
    if isinstance(wanted, dict) and isinstance(wanted.get("mentions"), list):
        if len(wanted["mentions"]) != 1:
            raise invalid_params("Invalid Request: Only 1 address supported")
        mentioned = parse_pubkey(wanted["mentions"][0])
        return Subscription(
            number, subscriber, "logs", ("logs", mentioned), params.get_config(1).get_commitment()
        )
    if wanted not in ("all", "allWithVotes"):
        raise invalid_params("Invalid params: expected `all`, `allWithVotes` or `mentions`.")
    return Subscription(number, subscriber, "logs", ("logs", topic), params.get_config(1).get_commitment())


def _slot_subscribe(number: int, subscriber: Subscriber, _params: Params) -> Subscription:
    return Subscription(number, subscriber, "slot", ("slot", None))


def _root_subscribe(number: int, subscriber: Subscriber, _params: Params) -> Subscription:
    return Subscription(number, subscriber, "root", ("root", None))


SUBSCRIBE: dict[str, Callable[[int, Subscriber, Params], Subscription]] = {
    "accountSubscribe": _account_subscribe,
    "programSubscribe": _program_subscribe,
    "signatureSubscribe": _signature_subscribe,
    "logsSubscribe": _logs_subscribe,
    "slotSubscribe": _slot_subscribe,
    "rootSubscribe": _root_subscribe,
}
UNSUBSCRIBE = {
    f"{name.removesuffix('Subscribe')}Unsubscribe": name.removesuffix("Subscribe") for name in SUBSCRIBE
}


def iter_methods() -> Iterator[str]:
    """All websocket methods."""
    yield from SUBSCRIBE
    yield from UNSUBSCRIBE
