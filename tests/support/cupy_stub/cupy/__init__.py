"""As much of CuPy as perfmodel.ceilings calls, on NumPy: kernels do nothing but check arguments.

It rehearses the measurement where there is no GPU; its numbers mean nothing. What the kernels
compute is tested with `cuda_on_cpu`, that they compile with nvcc, and the rest on a GPU.
"""

import numpy as np

__version__ = "0.0"


class ndarray(np.ndarray):  # CuPy's name
    @property
    def data(self):
        return _Pointer(self.ctypes.data)


class _Pointer:
    def __init__(self, ptr):
        self.ptr = ptr


def empty(shape, dtype):
    return np.empty(shape, dtype).view(ndarray)


def asnumpy(values):
    return np.array(values)


class RawKernel:
    def __init__(self, code, name, options=()):
        assert f"void {name}(" in code
        assert isinstance(options, tuple)
        self.name = name
        self.kernel = _Pointer(7)

    def __call__(self, grid, block, args):
        for arg in args:  # a Python int would be 8 bytes, whatever the kernel wants
            assert isinstance(arg, (ndarray, np.generic)), arg
        if self.name == "fill":
            values, count, seed = args
            assert values.size == count
            values[:] = np.random.default_rng(int(seed)).uniform(-1, 1, int(count))


from cupy import cuda  # noqa: E402, F401
