"""A broker that is killed does not take Celery's workers with it."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.connection import Connection
from kombu.transport import TRANSPORT_ALIASES, redis
from redis.exceptions import ConnectionError as RedisConnectionError

from gpucloud import broker
from gpucloud.celery import app

Connect = Callable[[], Connection]


@pytest.fixture(params=["its address is forgotten", "its server is gone"])
def break_connections(request: Any, monkeypatch: pytest.MonkeyPatch) -> Connect:
    """Return connections like a worker's whose broker was killed, with a task delivered and not acknowledged.

    kombu's `collect` has forgotten the transport's client by the time Celery closes the connection.
    """

    def connect() -> Connection:
        connection: Connection = app.connection()
        channel: Any = connection.default_channel
        message = SimpleNamespace(delivery_info={"exchange": "", "routing_key": "celery"}, _raw={})
        channel.qos.append(message, "tag")
        channel._disconnect_pools()
        channel._close_clients()
        if request.param == "its address is forgotten":
            connection.transport.client = None
        else:
            monkeypatch.setattr(channel, "conn_or_acquire", refused)
        return connection

    return connect


def refused(client: object = None) -> None:
    raise RedisConnectionError("refused")


def close(connection: Connection) -> None:
    """Close as Celery's worker does, twice; kombu ignores errors of connections only."""
    channel: Any = connection._default_channel
    for _ in range(2):
        connection.maybe_close_channel(SimpleNamespace(close=channel.qos.restore_unacked_once))


def test_the_brokers_urls_lead_to_our_transport() -> None:
    assert isinstance(app.connection().transport, broker.Transport)


def test_closing_a_broken_connection_ends_nothing(break_connections: Connect) -> None:
    close(break_connections())


def test_control_kombus_own_class_raises(break_connections: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.Channel, "QoS", redis.QoS)
    connection = break_connections()
    with pytest.raises((AttributeError, AssertionError)):
        close(connection)


def test_what_is_gone_round_is_still_there() -> None:
    """A new version of kombu that renames these must be reviewed."""
    assert {"redis", "rediss"} <= TRANSPORT_ALIASES.keys()
    assert issubclass(redis.Transport.Channel.QoS, redis.QoS)
