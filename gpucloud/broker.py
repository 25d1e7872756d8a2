"""Celery's connection to Redis, whose loss must not end a worker."""

import logging
from typing import Any

from kombu.transport import redis
from redis.exceptions import RedisError

logger = logging.getLogger(__name__)


class QoS(redis.QoS):
    """Messages that were delivered and are not acknowledged."""

    def restore_unacked(self, client: Any = None) -> Any:
        """Put them back into their queues; leave them in Redis' own table where the connection is gone.

        Redis delivers what is in that table again after the visibility timeout. kombu closes a channel twice when its
        connection breaks, the second time without the address of its server, and Celery's worker ends by what is
        raised then (AttributeError, AssertionError): it only expects errors of connections.
        """
        try:
            return super().restore_unacked(client)  # type: ignore[no-untyped-call]
        except (RedisError, OSError, AttributeError) as error:
            logger.warning("%d unfinished tasks come again later: %r", len(self._delivered), error)
            self._delivered.clear()
            return None


class Channel(redis.Channel):
    """A channel that may be closed after its connection is gone."""

    QoS = QoS


class Transport(redis.Transport):
    """kombu's transport for Redis."""

    Channel = Channel
