"""cupy.cuda: two GPUs of a name that no datasheet has, copies by memmove, events by the clock."""

import ctypes
import os
import time

DEVICES = int(os.environ.get("STUB_DEVICES", "2"))


class runtime:
    memcpyHostToDevice, memcpyDeviceToHost = 1, 2

    class CUDARuntimeError(RuntimeError):
        pass

    @staticmethod
    def getDeviceCount():
        if DEVICES < 0:
            raise runtime.CUDARuntimeError("no driver")
        return DEVICES

    @staticmethod
    def getDeviceProperties(device):
        return {
            "name": b"Stub 100", "multiProcessorCount": 4, "l2CacheSize": 1 << 20,
            "totalGlobalMem": 1 << 30, "major": 8, "minor": 0,
        }  # fmt: skip

    @staticmethod
    def memGetInfo():
        return 1 << 26, 1 << 30

    @staticmethod
    def runtimeGetVersion():
        return 13000

    driverGetVersion = runtimeGetVersion

    @staticmethod
    def memcpy(target, source, size, kind):
        assert kind in (1, 2)
        ctypes.memmove(target, source, size)

    @staticmethod
    def memcpyAsync(target, source, size, kind, stream):
        runtime.memcpy(target, source, size, kind)


class Device:
    def __init__(self, device):
        self.attributes = {"ClockRate": 1_000_000}

    def use(self):
        pass


class Stream:
    ptr = 0

    def __init__(self, non_blocking=False):
        pass

    def use(self):
        pass

    def synchronize(self):
        pass


class Event:
    def __init__(self, disable_timing=False):
        pass

    def record(self, stream):
        self.seconds = time.perf_counter()

    def synchronize(self):
        pass


def get_elapsed_time(began, ended):
    return (ended.seconds - began.seconds) * 1e3


class PinnedMemory(bytearray):
    @property
    def ptr(self):
        return ctypes.addressof(ctypes.c_char.from_buffer(self))


def alloc_pinned_memory(size):
    return PinnedMemory(size)


class driver:
    @staticmethod
    def launchKernel(function, *sizes_stream_and_arguments):
        assert function == 7
        assert len(sizes_stream_and_arguments) == 10
