"""The container engine for jobs that name an image, and the images that it may run."""

import os
import re
import shutil
from collections.abc import Mapping
from typing import NamedTuple

from agent import wire
from agent.job_users import JobUsers

NAME, ALLOWED, OPTIONS = "GPUCLOUD_JOBS_ENGINE", "GPUCLOUD_JOBS_IMAGES", "GPUCLOUD_JOBS_ENGINE_OPTIONS"


class Engine(NamedTuple):
    """Podman or Docker, as an operator has set it."""

    path: str
    # Beginnings of image names: of registries and of repositories in them.
    allowed: tuple[str, ...]
    # Options of its command `run` that this machine needs.
    options: tuple[str, ...] = ()

    def allows(self, image: str) -> bool:
        """Return whether it may run the image: one below a beginning, never one that only begins with its letters."""
        return re.fullmatch(wire.IMAGE, image) is not None and any(
            image == start or (image.startswith(start) and image[len(start)] in "/:@") for start in self.allowed
        )


def parse(environment: Mapping[str, str], users: JobUsers | None) -> Engine | None:
    """Parse the settings; None if no images are run. Raises ValueError with the cure."""
    named = environment.get(NAME)
    if not named or named == "off":
        return None
    path = shutil.which(named)
    if path is None:
        raise ValueError(f"{NAME}={named} is no program here: give the path of podman or docker, or off.")
    if users is None or users.first is None:
        raise ValueError(f"{NAME} needs GPUCLOUD_JOBS with a range of users: containers run as the tenants' users.")
    allowed = tuple(one.strip().rstrip("/") for one in environment.get(ALLOWED, "").split(",") if one.strip())
    if not allowed:
        raise ValueError(f"{NAME} needs {ALLOWED}: the registries to trust, like registry.example.com/ml,docker.io.")
    return Engine(os.path.realpath(path), allowed, tuple(environment.get(OPTIONS, "").split()))
