"""The load of the machine: processor, memory and, if there is one, the GPU. Sampled at most once a second, as it takes a while."""

from __future__ import annotations

import ctypes
import os
import sys
import time

import psutil

INTERVAL = 1.0
"""seconds for which a sample is returned again"""


class System:
    """Samples the ``system/`` metrics; the processor's share is that since the sample before."""

    def __init__(self, gpu: int | None = None) -> None:
        """``gpu``: the index of the CUDA device that trains, None without one."""
        self._process = psutil.Process()
        self._cores = sorted(os.sched_getaffinity(0))
        self._gpu = None if gpu is None else _Gpu.open(gpu)
        self._busy = self._core_times()
        self._last: dict[str, float] = {}
        self._next = 0.0

    def sample(self) -> dict[str, float]:
        now = time.monotonic()
        if now < self._next:
            return self._last
        self._next = now + INTERVAL
        before, self._busy = self._busy, self._core_times()
        whole = self._busy[1] - before[1]
        if whole > 0:
            self._last["system/cpu"] = min(1.0, max(0.0, (self._busy[0] - before[0]) / whole))
        self._last["system/memory"] = float(self._resident())
        if self._gpu is not None:
            self._last["system/gpu"], self._last["system/gpu_memory"] = self._gpu.sample()
        return self._last

    def _core_times(self) -> tuple[float, float]:
        """Return the seconds in which the cores that we may use were busy, and all their seconds."""
        times = psutil.cpu_times(percpu=True)
        mine = [times[core] for core in self._cores if core < len(times)]
        whole = sum(t.user + t.nice + t.system + t.idle + t.iowait + t.irq + t.softirq + t.steal for t in mine)
        return whole - sum(t.idle + t.iowait for t in mine), whole

    def _resident(self) -> int:
        total = 0
        for process in (self._process, *_children(self._process.pid)):
            try:
                total += process.memory_info().rss
            except psutil.Error:  # ended meanwhile
                continue
        return total


def _children(pid: int) -> list[psutil.Process]:
    """Return the direct children, from the kernel's own list: psutil looks through every process of the machine, which takes
    milliseconds."""
    found = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                found += [int(child) for child in file.read().split()]
    except OSError:
        return []
    children = []
    for child in found:
        try:
            children.append(psutil.Process(child))
        except psutil.Error:
            continue
    return children


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Gpu:
    """Asks the driver's own library (NVML), which exists wherever CUDA does, so no package is needed."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p) -> None:
        self._library = library
        self._handle = handle

    @classmethod
    def open(cls, index: int) -> _Gpu | None:
        handle = ctypes.c_void_p()
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return None
        if library.nvmlInit_v2() != 0:
            return None
        name = _bus_id(index)
        if name is not None:
            failed = library.nvmlDeviceGetHandleByPciBusId_v2(name.encode(), ctypes.byref(handle))
        else:
            failed = library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        return None if failed else cls(library, handle)

    def sample(self) -> tuple[float, float]:
        use, memory = _Utilization(), _Memory()
        self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(use))
        self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory))
        return use.gpu / 100, float(memory.used)


def _bus_id(index: int) -> str | None:
    """Return the device's address: CUDA_VISIBLE_DEVICES renumbers CUDA's indices but not the driver's."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(index)
    return f"{found.pci_domain_id:08x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
