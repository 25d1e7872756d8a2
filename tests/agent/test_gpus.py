"""A GPU that does not answer affects itself only: the node keeps the others."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from agent.host import numa
from agent.host.gpus import Nvml

MIB = 1 << 20
SICK = [pynvml.NVML_ERROR_UNKNOWN, pynvml.NVML_ERROR_IRQ_ISSUE, pynvml.NVML_ERROR_NO_PERMISSION]


class Driver:
    """Three GPUs; the handle of each is its index."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        # Errors of calls, by name and the GPU's index.
        self.errors: dict[tuple[str, int], int] = {}
        self.opened = 0
        answers: dict[str, Callable[[int], object]] = {
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": "GPU-{}".format,
            "nvmlDeviceGetName": lambda _: "Model",
        }
        for name, answer in answers.items():
            patch.setattr(pynvml, name, self._asked(name, answer))
        # The versions of the call that this driver has.
        self.memory_versions: set[int | None] = {None, pynvml.nvmlMemory_v2}
        patch.setattr(pynvml, "nvmlDeviceGetMemoryInfo", self._memory)
        patch.setattr(pynvml, "nvmlInit", self._open)
        patch.setattr(pynvml, "nvmlShutdown", lambda: None)
        patch.setattr(pynvml, "nvmlDeviceGetCount", lambda: 3)
        patch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "580")

    def _open(self) -> None:
        self.opened += 1

    def _memory(self, handle: int, version: int | None = None) -> object:
        if (code := self.errors.get(("nvmlDeviceGetMemoryInfo", handle))) is not None:
            raise pynvml.NVMLError(code)
        if version not in self.memory_versions:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        kept = 615 * MIB
        if version is None:
            return SimpleNamespace(total=143_771 * MIB, used=kept + 7 * MIB)
        return SimpleNamespace(total=143_771 * MIB, reserved=kept, free=(143_771 - 615 - 7) * MIB)

    def _asked(self, name: str, answer: Callable[[int], object]) -> Callable[[int], object]:
        def ask(handle: int) -> object:
            if (name, handle) in self.errors:
                raise pynvml.NVMLError(self.errors[name, handle])
            return answer(handle)

        return ask


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(monkeypatch)


@pytest.mark.parametrize("call", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetMemoryInfo"])
@pytest.mark.parametrize("error", SICK)
def test_a_gpu_that_falls_sick_stays_with_the_others_and_comes_back(driver: Driver, call: str, error: int) -> None:
    nvml = Nvml()
    whole = nvml.inventory()
    driver.errors[call, 1] = error
    assert nvml.inventory() == whole
    assert (list(nvml.handles), nvml.lost, nvml.complete) == (["GPU-0", "GPU-2"], ["GPU-1"], False)
    driver.errors.clear()
    nvml.inventory()
    assert (len(nvml.handles), nvml.lost, nvml.complete, driver.opened) == (3, [], True, 1)


def test_a_gpu_that_is_sick_from_the_start_is_looked_for_and_the_others_are_there(driver: Driver) -> None:
    driver.errors["nvmlDeviceGetHandleByIndex", 0] = pynvml.NVML_ERROR_IN_USE
    nvml = Nvml()
    found = nvml.inventory()
    assert ([gpu.uuid for gpu in found.gpus], found.problem) == (["GPU-1", "GPU-2"], None)
    assert (nvml.lost, nvml.complete) == ([], False)


def test_where_no_gpu_ever_answered_the_problem_says_why(driver: Driver) -> None:
    driver.errors = {("nvmlDeviceGetHandleByIndex", index): pynvml.NVML_ERROR_NO_PERMISSION for index in range(3)}
    assert "Permission" in (Nvml().inventory().problem or "")


def test_where_all_fall_silent_they_stay_and_nvml_is_opened_again(driver: Driver) -> None:
    nvml = Nvml()
    whole = nvml.inventory()
    driver.errors = {("nvmlDeviceGetHandleByIndex", index): pynvml.NVML_ERROR_UNKNOWN for index in range(3)}
    assert nvml.inventory() == whole
    driver.errors = {}
    nvml.inventory()
    assert (len(nvml.handles), driver.opened) == (3, 2)


def test_a_driver_that_is_gone_is_opened_again(driver: Driver) -> None:
    nvml = Nvml()
    nvml.inventory()
    driver.errors["nvmlDeviceGetHandleByIndex", 0] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert nvml.inventory().problem is not None
    driver.errors.clear()
    assert (len(nvml.inventory().gpus), driver.opened) == (3, 2)


def test_what_a_card_keeps_for_itself_is_neither_offered_nor_in_use(driver: Driver) -> None:
    nvml = Nvml()
    assert {gpu.memory_bytes for gpu in nvml.inventory().gpus} == {(143_771 - 615) * MIB}
    assert {usage.memory_bytes for usage in nvml.sample()} == {7 * MIB}


def test_a_driver_that_does_not_tell_what_the_card_keeps_offers_the_total(driver: Driver) -> None:
    driver.memory_versions = {None}
    nvml = Nvml()
    assert {gpu.memory_bytes for gpu in nvml.inventory().gpus} == {143_771 * MIB}
    assert {usage.memory_bytes for usage in nvml.sample()} == {(615 + 7) * MIB}


@pytest.mark.parametrize(("text", "node"), [("0\n", 0), ("3\n", 3), ("-1\n", None), ("", None), (None, None)])
def test_a_gpus_memory_node_is_the_kernels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None, node: int | None
) -> None:
    address = SimpleNamespace(domain=0x10000, bus=0x3B, device=0x1F)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPciInfo", lambda _: address)
    if text is not None:
        (tmp_path / "10000:3b:1f.0").mkdir()
        (tmp_path / "10000:3b:1f.0" / "numa_node").write_text(text)
    assert numa.read_node(None, tmp_path) == node
