"""Types of NumPy arrays in annotations, and large arrays handed out in pieces."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
Int8 = npt.NDArray[np.int8]
Bool = npt.NDArray[np.bool_]

_BYTES: Final = 1 << 26  # beyond what an allocator keeps when it is freed: 32 MiB for glibc


class Arena:
    """Memory of one type, taken from the system in large parts that go back to it whole.

    Small arrays that live long, allocated between large ones that do not, would keep the memory
    of these from being used again. What is not written to takes no memory.
    """

    def __init__(self, kind: npt.DTypeLike) -> None:
        self._kind = np.dtype(kind)
        self._left: npt.NDArray[Any] = np.empty(0, self._kind)

    def zeros(self, size: int) -> npt.NDArray[Any]:
        """Return an array of zeros."""
        if size > len(self._left):
            self._left = np.zeros(max(size, _BYTES // self._kind.itemsize), self._kind)
        piece, self._left = self._left[:size], self._left[size:]
        return piece

    def kept(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a copy of values."""
        piece = self.zeros(len(values))
        piece[:] = values
        return piece

    def __reduce__(self) -> tuple[type[Arena], tuple[np.dtype[Any]]]:
        return Arena, (self._kind,)  # what is left need not travel to another process
