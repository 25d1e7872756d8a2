"""The network use of claims by remote clients, from the endpoint's counts."""

from typing import Any

from agent.claims.remote_figures import Figures

CLAIM = "c1"


def counts(received: int = 0, sent: int = 0, turns: int = 0, **more: Any) -> dict[str, Any]:
    found = {"channels": 1, "received_bytes": received, "sent_bytes": sent, "turns": turns, "trip_seconds": 0.0005}
    return found | more


def test_rates_are_of_the_time_between_two_counts() -> None:
    figures = Figures()
    figures.note(CLAIM, counts(), now=10.0)
    figures.note(CLAIM, counts(1000, 3000, 50), now=12.0)
    one = figures.read(now=12.5)[CLAIM]
    assert (one.received_bytes_per_second, one.sent_bytes_per_second, one.round_trips_per_second) == (500, 1500, 25)
    assert (one.connections, one.received_bytes, one.sent_bytes, one.round_trips) == (1, 1000, 3000, 50)
    assert one.trip_ms == 0.5


def test_a_client_that_is_silent_moves_nothing_and_stays() -> None:
    """The endpoint says nothing while nothing changes."""
    figures = Figures()
    figures.note(CLAIM, counts(), now=10.0)
    figures.note(CLAIM, counts(1000), now=11.0)
    one = figures.read(now=20.0)[CLAIM]
    assert (one.connections, one.received_bytes_per_second, one.received_bytes) == (1, 0, 1000)


def test_after_silence_the_rate_is_not_spread_over_it() -> None:
    figures = Figures()
    figures.note(CLAIM, counts(), now=10.0)
    figures.note(CLAIM, counts(5000), now=110.0)
    assert figures.read(now=110.0)[CLAIM].received_bytes_per_second == 2000


def test_a_claim_without_connections_leaves_after_a_moment() -> None:
    figures = Figures()
    figures.note(CLAIM, counts(1000, channels=0, trip_seconds=None), now=10.0)
    assert figures.read(now=11.0)[CLAIM].trip_ms is None
    assert figures.read(now=13.0) == {}


def test_a_claim_that_ends_is_forgotten() -> None:
    figures = Figures()
    figures.note(CLAIM, counts(), now=10.0)
    figures.forget(CLAIM)
    assert figures.read(now=10.0) == {}
