"""The back ends of a fleet give the same answer, to the last bit, after any history.

Each walk applies random operations to fleets that differ only in their back end: requests with labels, selectors,
models and reserved capacity; placements and releases; GPUs and nodes that come, change and go; the request mix is
learned on the way.
"""

import random
from dataclasses import dataclass, field, replace

import pytest

from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.placement import native
from apps.scheduling.core.placement.policies import POLICIES
from apps.scheduling.core.values import GpuState, Label, NodeState, Placed, Request

BACK_ENDS = ["python", *(["c"] if native.LIBRARY else [])]
MODELS = ("A10", "A100", "H100")
TENANTS = ("acme", "globex")
WORDS = ("nvlink", "pcie", "numa", "system")
SIZE = 32


@dataclass
class Walk:
    """The fleets, their contents, and the next random number."""

    policy: str
    random: random.Random
    on: list[tuple[Placed, Request]] = field(default_factory=list)

    def __post_init__(self) -> None:
        nodes = [self.node(name) for name in "abcdef"]
        gpus = [self.gpu(node.name, index) for node in nodes for index in range(self.random.randint(1, 5))]
        known = [(self.request(), self.random.randint(1, 40)) for _ in range(self.random.randint(0, 9))]
        self.fleets = [Fleet(gpus, nodes[:5], policy=self.policy, backend=name, mix=known) for name in BACK_ENDS]

    def node(self, name: str) -> NodeState:
        draw = self.random
        labels = tuple((key, draw.choice("12")) for key in ("zone", "net") if draw.random() < 0.5)
        links = tuple(
            (f"{name}{a}", f"{name}{b}", draw.choice(WORDS)) for a in range(5) for b in range(a) if draw.random() < 0.6
        )
        cpu, ram = draw.choice((None, 4000, 9000, 64_000)), draw.choice((None, 16, 64, 512))
        return NodeState(name, labels, links, cpu, ram, draw.choice((None, 9000, 96_000)))

    def gpu(self, node: str, index: int) -> GpuState:
        alive = self.random.random() < 0.9
        # Most nodes have one model; some are mixed.
        model = MODELS[ord(node) % 3] if self.random.random() < 0.8 else self.random.choice(MODELS)
        # Not unique: a replaced device has the index of the old one.
        return GpuState(f"{node}{index}", node, index // 2, model, SIZE, 100, SIZE, alive)

    def request(self) -> Request:
        draw = self.random
        count = draw.choice((1, 1, 1, 1, 2, 2, 3, 0))
        label = draw.random() < 0.3
        return Request(
            count,
            draw.choice((10, 20, 25, 50, 100)) if count else 0,
            draw.choice((1, 4, 9, 16)) if count else 0,
            draw.choice((None, None, None, "H100", "A10|H100", "none")),
            tenant=draw.choice(TENANTS),
            affinity=draw.choice("xy") if label and draw.random() < 0.4 else None,
            anti_affinity=draw.choice("xy") if label and draw.random() < 0.4 else None,
            exclusion=draw.choice("xy") if label and draw.random() < 0.4 else None,
            node_selector=(("zone", "1"),) if draw.random() < 0.1 else (),
            cpu_milli=draw.choice((0, 0, 1000, 3000)),
            ram_mib=draw.choice((0, 0, 8)),
            key=str(draw.randint(0, 99)),
            sharing_group=draw.choice("pqr") if draw.random() < 0.3 else None,
        )

    def step(self) -> None:
        roll = self.random.random()
        if roll < 0.5:
            self.ask()
        elif roll < 0.75:
            self.give_back()
        elif roll < 0.77:
            self.give_back_many()
        elif roll < 0.8:
            self.ask_many()
        elif roll < 0.9:
            request = self.request()
            for fleet in self.fleets:
                fleet.learn(request)
        else:
            self.change()

    def ask(self) -> None:
        request, held = self.request(), {}
        if self.random.random() < 0.2:
            some = self.random.sample(self.fleets[0].gpus(), min(3, len(self.fleets[0].gpus())))
            held = {gpu.uuid: (self.random.choice((0, 50)), self.random.choice((0, 20))) for gpu in some}
        answers = [fleet.place(request, held=held) for fleet in self.fleets]
        assert answers[1:] == answers[:-1], (request, held)
        answer = answers[0]
        if isinstance(answer, Placed) and self.random.random() < 0.8:
            for fleet in self.fleets:
                fleet.take(answer.gpus, request, node=answer.node)
            self.on.append((answer, request))

    def ask_many(self) -> None:
        requests = [
            replace(self.request(), affinity=None, anti_affinity=None, exclusion=None)
            for _ in range(self.random.randint(0, 5))
        ]
        answers = [fleet.place_many(requests) for fleet in self.fleets]
        assert answers[1:] == answers[:-1], requests
        self.on += [(one, asked) for one, asked in zip(answers[0], requests, strict=True) if isinstance(one, Placed)]

    def give_back(self) -> None:
        if not self.on:
            return
        placed, request = self.on.pop(self.random.randrange(len(self.on)))
        for fleet in self.fleets:
            fleet.give_back(placed.gpus, request, node=placed.node)

    def give_back_many(self) -> None:
        self.random.shuffle(self.on)
        some = [one for one in self.on[:6] if one[0].gpus]
        self.on = [one for one in self.on if one not in some]
        for fleet in self.fleets:
            fleet.give_back_many((placed.gpus, request) for placed, request in some)

    def change(self) -> None:
        draw, first = self.random, self.fleets[0]
        busy = {uuid for placed, _ in self.on for uuid in placed.gpus}
        gpus = first.gpus()
        roll = draw.random()
        if roll < 0.4 and gpus:
            one = draw.choice(gpus)
            ails = draw.choice(("", "XID 79", "RemapPending")) if one.schedulable else ""
            self.everywhere("set_gpu", replace(one, schedulable=not one.schedulable, unhealthy=ails))
        elif roll < 0.5 and gpus:
            one = draw.choice(gpus)
            labels = (*one.labels, Label("exclusion", draw.choice(TENANTS), draw.choice("xy")))
            if one.uuid not in busy:
                self.everywhere("set_gpu", replace(one, labels=labels if draw.random() < 0.3 else ()))
        elif roll < 0.6 and gpus:
            if (one := draw.choice(gpus)).uuid not in busy:
                self.everywhere("remove_gpu", one.uuid)
        elif roll < 0.7:
            one = self.gpu(draw.choice("abcdefg"), draw.randint(0, 5))
            if one.uuid not in busy:
                self.everywhere("set_gpu", one)
        elif roll < 0.9 and first.nodes():
            node = draw.choice(first.nodes())
            self.everywhere("set_node", replace(node, cpu_milli_free=draw.choice((None, 8000)), ram_mib_free=256))
        else:
            self.everywhere("set_node", self.node(draw.choice("abcdefg")))

    def everywhere(self, verb: str, what: object) -> None:
        for fleet in self.fleets:
            getattr(fleet, verb)(what)


def walk(policy: str, seed: int, steps: int) -> None:
    one = Walk(policy, random.Random(f"{policy} {seed}"))  # noqa: S311 - a walk that can be walked again
    for _ in range(steps):
        one.step()
    states = [(fleet.gpus(), fleet.nodes()) for fleet in one.fleets]
    assert states[1:] == states[:-1]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_back_ends_agree(policy: str) -> None:
    for seed in range(4):
        walk(policy, seed, 120)


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("policy", POLICIES)
def test_the_back_ends_agree_on_a_million_operations(policy: str) -> None:
    for seed in range(143):
        walk(policy, 1000 + seed, 1000)
