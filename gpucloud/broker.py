"""Celery's transport to Redis, which survives a lost connection."""

import logging
from typing import Any

from kombu.transport import redis
from redis.exceptions import RedisError

from gpucloud import heartbeat

logger = logging.getLogger(__name__)


class QoS(redis.QoS):
    """Delivered messages that are not acknowledged yet."""

    def restore_unacked(self, client: Any = None) -> Any:
        """Restore the messages to their queues; leave them in Redis' own table if the connection is gone.

        Redis delivers the messages of that table again after the visibility timeout. kombu closes a channel twice when
        its connection breaks, the second time without the server's address, and the error (AttributeError,
        AssertionError) ends Celery's worker, which expects connection errors only.
        """
        try:
            return super().restore_unacked(client)  # type: ignore[no-untyped-call]
        except (RedisError, OSError, AttributeError) as error:
            logger.warning("%d unfinished tasks come again later: %r", len(self._delivered), error)
            self._delivered.clear()
            return None


class Channel(redis.Channel):
    """A channel that can be closed after its connection is gone."""

    QoS = QoS


class Transport(redis.Transport):
    """kombu's transport for Redis."""

    Channel = Channel

    def establish_connection(self) -> Any:
        """Connect. While Redis is away, Celery's loops do nothing else than try this again."""
        heartbeat.beat()
        return super().establish_connection()  # type: ignore[no-untyped-call]
