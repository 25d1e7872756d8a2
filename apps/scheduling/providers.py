"""Interfaces that this app needs from higher apps: it knows states of suspended and moving claims, not the orders."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from agent import wire
from apps.nodes.models import Node
from apps.quotas.models import Pool
from apps.quotas.principals import Principal
from apps.rebalancing.values import Forecast
from apps.scheduling.models import Assignment, Claim, Reservation
from gpucloud.providers import Provider


class SuspensionOrders(Protocol):
    """Orders to suspend and to resume claims; see `apps.suspension.services`."""

    def suspend_claim(self, *, principal: Principal, claim: Claim, by: str, why: str | None = None) -> Claim:
        """Have the claim's programs leave their GPUs. Raises Conflict if they cannot."""

    def find_obstacles(self, claims: Sequence[Claim]) -> dict[int, str]:
        """Return by key why each could not be suspended now, together with those before it; the others are left out."""

    def resume_claim(self, *, principal: Principal, claim: Claim, by: str) -> Claim:
        """Have a claim that is put aside by this order wait in the queue for GPUs of its node."""


suspension_orders: Provider[SuspensionOrders] = Provider("scheduling.suspension_orders")


class MoveOrders(Protocol):
    """Orders to move claims; see `apps.suspension.move_orders`."""

    def move_claim(self, *, principal: Principal, claim: Claim, gpus: Sequence[str] | None = None) -> Claim:
        """Have the claim's programs move to these GPUs of their node. Raises Conflict if they cannot."""

    def move_claim_to_node(self, *, principal: Principal, claim: Claim, restart: bool) -> Claim:
        """Have the claim leave its node for another one of its pool. Raises Conflict if it cannot.

        `restart`: its programs end and start again there; else they are carried.
        """

    def find_move_obstacle(self, claim: Claim) -> str | None:
        """Return why the claim could not leave its node by a restart, whatever room others have; None if it could."""

    def may_carry(self, claim: Claim) -> bool:
        """Return True if its running programs can be carried to another node, as far as is known."""


move_orders: Provider[MoveOrders] = Provider("scheduling.move_orders")


class Progress(NamedTuple):
    """The changes that a report makes to a claim."""

    state: str
    # Further values of the claim; not empty if the desired state of a node has changed.
    values: dict[str, Any]
    # From which GPU to which it has moved, once it is in force there.
    moves: list[dict[str, str]]


class NodeMoves(Protocol):
    """Moves of claims to other nodes; see `apps.suspension.between.reports`."""

    def take_reports(
        self,
        claim: Claim,
        assignments: Sequence[Assignment],
        said: Mapping[str, wire.Observation],
        take: Callable[[Assignment, wire.Observation], None],
    ) -> Progress:
        """Bring the unsaved rows of a claim that moves in step with the reports. `take`: one report of one row."""

    def leave_node(self, node: Node) -> None:
        """Let all moves go on without this node, which will not report again."""

    def leave_home(self, node: Node) -> bool:
        """Let claims that have gone from this node, which is lost, go on elsewhere; True if there were any."""


node_moves: Provider[NodeMoves] = Provider("scheduling.node_moves")


class Bookings(Protocol):
    """Orders to end reservations; see `apps.reservations.lifecycle`."""

    def release_reservation(
        self, *, principal: Principal, reservation: Reservation, ending: str | None = None
    ) -> Reservation:
        """End the reservation. Raises Conflict if it has ended."""


bookings: Provider[Bookings] = Provider("scheduling.bookings")


class InstanceSeats(Protocol):
    """Places of claims in the MIG instances of others; see `apps.instances.seats`."""

    def seat(self, claim: Claim) -> bool:
        """Place a new claim in the instance that it names; return False and record why it waits if there is no room."""

    def follow_on_commit(self, opener: Claim) -> None:
        """End the claims in this claim's instance after the commit, which ends it or queues it again."""

    def resize(self, claim: Claim, assignments: Sequence[Assignment]) -> None:
        """Take more of the instance for new limits of a claim in it, or a new own part of the claim that opened it.

        Raises Conflict if there is no room.
        """

    def give_back(self, claim: Claim, *, core: int, memory_mib: int) -> None:
        """Return to the instance what a claim in it no longer has."""


instance_seats: Provider[InstanceSeats] = Provider("scheduling.instance_seats")


class Jobs(Protocol):
    """Jobs, whose programs the nodes' agents start under claims. While no app provides them, there are none."""

    def orders(self, node_ids: Sequence[int]) -> dict[int, list[wire.JobRun]]:
        """Return the runs that each of these nodes is to have; nodes without one are left out."""

    def observed(self, node: Node, states: Sequence[wire.JobState]) -> None:
        """Record the runs on the node, as its agent sees them."""

    def output(self, node: Node, frame: wire.Output) -> int | None:
        """Store a piece of a run's output; return the run's stored bytes, None if the node has no such run."""


class LendingForecasts(Protocol):
    """Forecasts of what claims will need; see `apps.forecasts.services`."""

    def read_forecasts(self, pool: Pool, *, now: datetime) -> Mapping[str, Forecast]:
        """Return the present forecasts of the pool's claims, by uid; claims without one are left out."""


lending_forecasts: Provider[LendingForecasts] = Provider("scheduling.lending_forecasts")


class LendingReplays(Protocol):
    """Replays of past use under rebalance policies; see `apps.forecasts.replays`."""

    def replay_pool(self, pool: Pool, *, days: int) -> dict[str, Any]:
        """Return what each policy would have lent in the pool's last days, and who would have been throttled."""


lending_replays: Provider[LendingReplays] = Provider("scheduling.lending_replays")


class BookingOutlooks(Protocol):
    """Outlooks of idle reservations; see `apps.forecasts.outlook`."""

    def expects_use(self, reservation: Reservation, *, now: datetime) -> str | None:
        """Return why the tenant is expected to use the booking again; None if it is not, or nothing is known."""


booking_outlooks: Provider[BookingOutlooks] = Provider("scheduling.booking_outlooks")


jobs: Provider[Jobs] = Provider("scheduling.jobs")


class RemoteFigures(Protocol):
    """The network use of claims by clients on other machines; see `apps.remote.figures`."""

    def record(self, used: Mapping[str, wire.RemoteUse]) -> None:
        """Keep the present use of these claims, by uid, for a few seconds."""


remote_figures: Provider[RemoteFigures] = Provider("scheduling.remote_figures")
