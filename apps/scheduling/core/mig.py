"""MIG: the instances into which a GPU in MIG mode can be divided, and the best place for one more.

A GPU has *memory slices* (8 of an H100) and *compute slices* (7). A profile (`2g.35gb`) has some of both, and may start
at certain memory slices only. Two instances must not share a memory slice; compute slices then suffice by themselves.

The place of an instance decides what still fits beside it: on an empty H100, a 1g at slice 6 leaves room for a 4g, and
one at slice 0 does not. So each place has a price: the room that it takes from each profile, summed over all profiles.

    room(p)     instances of p that can still be made, one beside the other
    value       Σ over profiles p of room(p) × size(p), in memory slices
    price       value before, less value after

The cheapest place wins. This is fragmentation gradient descent (Weng et al., USENIX ATC'23) with one typical request
for each profile, all equally frequent; of places with one price, the highest slice, as NVIDIA's driver does.
"""

from functools import lru_cache
from typing import NamedTuple


class Profile(NamedTuple):
    """A kind of instances. `size` and `starts` count memory slices; `compute` counts compute slices."""

    name: str
    compute: int
    memory_mib: int
    size: int
    starts: tuple[int, ...]

    def slices(self, start: int) -> int:
        """Return the memory slices of an instance that begins there, a bit each."""
        return ((1 << self.size) - 1) << start


class Mig(NamedTuple):
    """A GPU in MIG mode. `used`: a bit for each occupied memory slice. `ready`: new instances may be made."""

    profiles: tuple[Profile, ...]
    used: int = 0
    ready: bool = True

    def find(self, name: str) -> Profile | None:
        """Return the profile of this name; None if the GPU has none."""
        return next((profile for profile in self.profiles if profile.name == name), None)

    def has(self, name: str) -> bool:
        """Return whether the GPU has a profile of this name."""
        return self.find(name) is not None

    def free_starts(self, name: str) -> tuple[int, ...]:
        """Return the first slices at which an instance of the profile can be made now."""
        profile = self.find(name)
        return _free_starts(profile, self.used) if profile is not None else ()

    def choose(self, name: str) -> int | None:
        """Return the first slice of the cheapest place for one more instance; None if there is no place."""
        profile = self.find(name)
        if profile is None or not (starts := _free_starts(profile, self.used)):
            return None
        return min(starts, key=lambda start: (self.price(profile, start), -start))

    def choose_start(self, name: str, given: int | None) -> int | None:
        """Return the first slice of one more instance: the given one, or the cheapest; None if it is not free."""
        if given is None:
            return self.choose(name)
        return given if given in self.free_starts(name) else None

    def price(self, profile: Profile, start: int) -> int:
        """Return the room that an instance at this place takes from all profiles, in memory slices."""
        return _value(self.profiles, self.used) - _value(self.profiles, self.used | profile.slices(start))

    def room(self, profile: Profile) -> int:
        """Return the most instances of the profile that can still be made, one beside the other."""
        return _room(profile, self.used)

    def occupied(self, name: str, start: int) -> "Mig":
        """Return the GPU with one more instance, at this place."""
        profile = self.find(name)
        return self._replace(used=self.used | profile.slices(start)) if profile is not None else self

    def vacated(self, name: str, start: int) -> "Mig":
        """Return the GPU without the instance at this place."""
        profile = self.find(name)
        return self._replace(used=self.used & ~profile.slices(start)) if profile is not None else self


def core_percent(profile: Profile, profiles: tuple[Profile, ...]) -> int:
    """Return the core of the profile: its compute slices in percent of the GPU's, rounded down.

    Down, so that the instances of a GPU never have more than 100 together: 7 × 14, 57 + 42.
    """
    return profile.compute * 100 // max(one.compute for one in profiles)


def _free_starts(profile: Profile, used: int) -> tuple[int, ...]:
    return tuple(start for start in profile.starts if not profile.slices(start) & used)


@lru_cache(maxsize=4096)
def _value(profiles: tuple[Profile, ...], used: int) -> int:
    return sum(profile.size * _room(profile, used) for profile in profiles)


def _room(profile: Profile, used: int) -> int:
    """Return the most instances of one profile that fit together: of equally long intervals, the first free one."""
    found = 0
    for start in sorted(profile.starts):
        if not profile.slices(start) & used:
            used |= profile.slices(start)
            found += 1
    return found
