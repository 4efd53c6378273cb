"""The one connection of a process to NATS; the request plane and the event plane share it.

nats-py does the protocol, authentication and TLS. Three of its settings make it fit a hot path: `pending_size=0` (a
publish during an outage raises instead of being buffered, and never waits for a flush), an unbounded flusher queue
(its coroutines then never suspend, so they can be run without a task), and `msg_class`, its hook that makes a message
object, which here hands the message to the subscriber at once instead of through a queue and a task.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dynamo.protocols.errors import StartError
from dynamo.runtime.nats.config import NatsConfig

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.subscription import Subscription as ClientSubscription

logger = logging.getLogger(__name__)

RETRY_SECONDS = 0.25
CONNECT_SECONDS = 2
PING_SECONDS = 5
MAX_UNSENT_BYTES = 64 << 20
"""Published bytes that may wait for a server that does not read; beyond them `publish` rejects."""

Callback = Callable[[str, bytes, str], None]
"""Called with the subject, the data and the reply subject ("" when there is none)."""

T = TypeVar("T")


class NatsError(StartError):
    """NATS cannot be used, or rejected a message; the message names the reason."""


class NatsSubscription:
    """A subscription to one subject, kept across reconnects until `unsubscribe`."""

    def __init__(self, connection: NatsConnection, subject: str, callback: Callback) -> None:
        self.subject = subject
        self.callback = callback
        self._connection = connection

    def unsubscribe(self) -> None:
        """No callback runs after this returns; doing it twice is fine."""
        self._connection._unsubscribe(self)


class NatsConnection:
    """Connects at `start`, and from then on reconnects without limit. Use it on its event loop only."""

    def __init__(self, config: NatsConfig) -> None:
        self.config = config
        self._client: Client | None = None
        self._connected = False
        self._closing = False
        self._in_outage = False
        self._revival: asyncio.Task[None] | None = None
        self._listeners: list[Callable[[bool], None]] = []
        self._subscriptions: dict[NatsSubscription, ClientSubscription | None] = {}

    @property
    def connected(self) -> bool:
        return self._connected

    @property
    def max_payload(self) -> int:
        """The largest message the server takes, in bytes."""
        return int(self._started().max_payload)

    async def start(self) -> None:
        """Connect, or raise a `NatsError` that says why not."""
        self._use(await self._connect())

    async def close(self) -> None:
        """Send what was published, then disconnect. Listeners are not called any more."""
        self._closing = True
        self._connected = False
        self._listeners.clear()
        self._subscriptions.clear()
        if self._revival:
            self._revival.cancel()
            await asyncio.gather(self._revival, return_exceptions=True)
        if self._client:
            await _close(self._client)

    def publish(self, subject: str, data: bytes, reply: str = "") -> None:
        """Queue one message; all of one loop iteration leave in one write.

        Raises `NatsError` when it cannot be queued: no connection, too large, or the server does not read. What was
        queued may still be lost when the connection breaks; `on_state` reports that. When `reply` is given and
        there is no subscriber to `subject`, the server itself answers on `reply` with an empty message.
        """
        client = self._client
        if client is None or not self._connected:
            raise NatsError(f"not connected to NATS at {self.config.where}")
        if len(data) > client.max_payload:
            raise NatsError(f"a message of {len(data)} bytes is over the {client.max_payload} NATS takes (max_payload)")
        if client.pending_data_size > MAX_UNSENT_BYTES:
            raise NatsError(f"NATS at {self.config.where} does not read: {client.pending_data_size} bytes wait for it")
        try:
            _run(client.publish(subject, data, reply))
        except _library_error() as error:
            # nats-py sees a broken connection a moment before it calls back, and may not call back when it gives up.
            if client.is_closed:
                self._on_lost(client)
                self._on_closed(client)
            reason = _reason(error) if client.is_connected else f"not connected to NATS at {self.config.where}"
            raise NatsError(f"cannot publish on {subject!r}: {reason}") from error

    def subscribe(self, subject: str, callback: Callback) -> NatsSubscription:
        """Subscribe to a subject (with NATS's `*` and `>`); during an outage this takes effect when it is over.

        The server handles it before anything this connection publishes later. After `await flush()` it also applies
        to what other connections publish.
        """
        client = self._started()
        subscription = NatsSubscription(self, subject, callback)
        try:
            self._subscriptions[subscription] = self._subscribe_on(client, subscription)
        except _library_error() as error:
            raise NatsError(f"cannot subscribe to {subject!r}: {_reason(error)}") from error
        return subscription

    async def flush(self) -> None:
        """Wait until the server has handled everything sent to it so far; raises `NatsError` if it cannot.

        It waits for a message sent to itself: in nats-py's own `flush` the PING overtakes what is still queued.
        """
        returned: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_return(subject: str, data: bytes, reply: str) -> None:
            if not returned.done():
                returned.set_result(None)

        subject = self._started().new_inbox()
        subscription = self.subscribe(subject, on_return)
        try:
            self.publish(subject, b"")
            async with asyncio.timeout(CONNECT_SECONDS):
                await returned
        except TimeoutError as error:
            raise NatsError(f"NATS at {self.config.where}: {_reason(error)}") from error
        finally:
            subscription.unsubscribe()

    def on_state(self, callback: Callable[[bool], None]) -> Callable[[], None]:
        """Call `callback(connected)` whenever the connection is lost or restored; returns a function that ends that."""
        self._listeners.append(callback)

        def remove() -> None:
            with suppress(ValueError):
                self._listeners.remove(callback)

        return remove

    def _started(self) -> Client:
        if self._client is None or self._closing:
            raise NatsError("this NATS connection is not started" if not self._closing else "NATS connection is closed")
        return self._client

    async def _connect(self) -> Client:
        """A connected client, after one attempt at each server."""
        try:
            from nats.aio.client import Client
        except ImportError as error:
            raise NatsError("the NATS planes need nats-py: pip install 'dynamo-serving[nats]'") from error
        client = Client()
        options = self._options()
        rejected: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        rejections = 0

        async def on_error(error: Exception) -> None:
            nonlocal rejections
            rejections += 1
            if rejections == len(self.config.servers) and not rejected.done():
                rejected.set_result(error)
            self._on_error(error)

        async def on_lost() -> None:
            self._on_lost(client)

        async def on_back() -> None:
            self._on_back(client)

        async def on_closed() -> None:
            self._on_closed(client)

        # nats-py retries without limit, which is right for reconnecting but not for the first connection.
        connecting = asyncio.create_task(
            client.connect(
                error_cb=on_error, disconnected_cb=on_lost, reconnected_cb=on_back, closed_cb=on_closed, **options
            )
        )
        try:
            either: tuple[asyncio.Future[Any], ...] = (connecting, rejected)
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if connecting.done():
                connecting.result()
            if client.is_connected:
                return client
            reason = _reason(rejected.result()) if rejected.done() else "the server hung up"
            raise NatsError(self._unreachable(reason))
        except ModuleNotFoundError as error:
            raise NatsError(f"NATS_AUTH_NKEY and credentials files need {error.name}: pip install nkeys") from error
        except (_library_error(), OSError, ValueError) as error:
            raise NatsError(self._unreachable(_reason(error))) from error
        finally:
            if not (connecting.done() and client.is_connected):
                connecting.cancel()
                await asyncio.gather(connecting, return_exceptions=True)
                await _close(client)

    def _unreachable(self, reason: str) -> str:
        return f"cannot reach NATS at {self.config.where}: {reason}; start it (nats-server), or use --request-plane tcp"

    def _options(self) -> dict[str, Any]:
        config = self.config
        options: dict[str, Any] = {
            "servers": list(config.servers),
            "user": config.username,
            "password": config.password,
            "token": config.token,
            "nkeys_seed_str": config.nkey_seed,
            "user_credentials": config.credentials_file,
            "connect_timeout": CONNECT_SECONDS,
            "reconnect_time_wait": RETRY_SECONDS,
            "max_reconnect_attempts": -1,
            "ping_interval": PING_SECONDS,
            "pending_size": 0,
            "flusher_queue_size": 0,
        }
        if config.tls_ca_file or config.tls_cert_file:
            try:
                options["tls"] = context = ssl.create_default_context(cafile=config.tls_ca_file)
            except OSError as error:
                raise NatsError(f"cannot use NATS_TLS_CA_CERT_PATH {config.tls_ca_file}: {error}") from error
            if config.tls_cert_file:
                try:
                    context.load_cert_chain(config.tls_cert_file, config.tls_key_file)
                except (OSError, ValueError) as error:
                    files = f"{config.tls_cert_file} and NATS_TLS_KEY_PATH {config.tls_key_file}"
                    raise NatsError(f"cannot use NATS_TLS_CERT_PATH {files}: {error}") from error
        return options

    def _use(self, client: Client) -> None:
        routes: dict[int, NatsSubscription] = {}
        client.msg_class = partial(_deliver, routes)  # type: ignore[assignment]
        self._routes = routes
        self._client = client
        self._connected = True
        for subscription in self._subscriptions:
            self._subscriptions[subscription] = self._subscribe_on(client, subscription)

    def _subscribe_on(self, client: Client, subscription: NatsSubscription) -> ClientSubscription | None:
        if client.is_closed:
            return None  # `_revive` subscribes again, on the next client
        subscribed: ClientSubscription = _run(client.subscribe(subscription.subject))
        self._routes[subscribed._id] = subscription
        return subscribed

    def _unsubscribe(self, subscription: NatsSubscription) -> None:
        subscribed = self._subscriptions.pop(subscription, None)
        if subscribed is None:
            return
        self._routes.pop(subscribed._id, None)
        with suppress(_library_error()):
            _run(subscribed.unsubscribe())

    def _on_error(self, error: Exception) -> None:
        if "permissions violation" in str(error):
            logger.warning("NATS at %s refuses: %s", self.config.where, _reason(error))
        else:
            logger.debug("NATS at %s: %s", self.config.where, _reason(error))

    def _on_lost(self, client: Client) -> None:
        if client is not self._client or self._closing or not self._connected:
            return
        self._connected = False
        if not self._in_outage:
            self._in_outage = True
            logger.warning("lost NATS at %s; trying again until it is back", self.config.where)
        self._notify(False)

    def _on_back(self, client: Client) -> None:
        if client is not self._client or self._closing:
            return
        self._connected = True
        self._in_outage = False
        logger.info("NATS at %s is back", self.config.where)
        self._notify(True)

    def _on_closed(self, client: Client) -> None:
        """Connect again: nats-py gives up when the server answers with an error, such as revoked access."""
        reviving = self._revival is not None and not self._revival.done()
        if client is self._client and not self._closing and not reviving:
            self._revival = asyncio.create_task(self._revive())

    async def _revive(self) -> None:
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            try:
                client = await self._connect()
            except NatsError as error:
                logger.debug("%s", error)
                continue
            self._use(client)
            self._on_back(client)
            return

    def _notify(self, connected: bool) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(connected)
            except Exception:
                logger.exception("a listener to the NATS connection failed")


def _deliver(
    routes: Mapping[int, NatsSubscription], *, subject: str, reply: str, data: bytes, _sid: int, **_: object
) -> None:
    """In place of nats-py's message class: calls the subscriber. None tells nats-py that there is no message."""
    subscription = routes.get(_sid)
    if subscription is None:
        return
    try:
        subscription.callback(subject, data, reply)
    except Exception:
        logger.exception("the subscriber to %s failed", subscription.subject)


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of nats-py that does not suspend under our settings, without the cost of a task."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise NatsError("a call of nats-py suspended that must not: this version of nats-py is not supported")


async def _close(client: Client) -> None:
    # Closing flushes to a connection that may be gone.
    with suppress(Exception):
        await client.close()


def _library_error() -> type[Exception]:
    from nats.errors import Error

    return Error


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_SECONDS} s"
    text = str(error).removeprefix("nats: ").strip("'\r\n ")
    return text or type(error).__name__
