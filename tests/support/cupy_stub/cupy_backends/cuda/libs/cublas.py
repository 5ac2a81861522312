"""Loads the library that STUB_CUBLAS names; see tests/machines/test_ceilings_device.py."""

import ctypes
import os


def create():
    ctypes.CDLL(os.environ["STUB_CUBLAS"])
    return 0


def destroy(handle):
    pass
