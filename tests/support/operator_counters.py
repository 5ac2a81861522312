"""Operators of a table of Nsight Compute: its launches lie in the ranges that were open."""

from __future__ import annotations

import lzma
from pathlib import Path

import numpy as np

from perfmodel.programs.pytorch.calls import Kernels, OperatorCall, find_calls
from perfmodel.programs.pytorch.names import parse
from perfmodel.programs.pytorch.tree import Tree
from perfmodel.readers.ncu import parse as parse_counters
from perfmodel.readers.trace import KERNEL


def operators_of(table: Path) -> list[tuple[OperatorCall, float, float, int]]:
    """Operators with the bytes that their kernels read and wrote in DRAM, and how many they are."""
    launches = parse_counters(lzma.decompress(table.read_bytes()).decode()).launches
    labels: dict[str, int] = {}
    nodes: dict[tuple[str, ...], int] = {}
    label, parent, node = [], [], []
    for launch in launches:
        for depth in range(len(launch.ranges)):
            path = launch.ranges[: depth + 1]
            if path not in nodes:
                nodes[path] = len(nodes)
                label.append(labels.setdefault(path[-1], len(labels)))
                parent.append(nodes[path[:-1]] if depth else -1)
        node.append(nodes[launch.ranges] if launch.ranges else -1)
    strings = list(dict.fromkeys(launch.kernel for launch in launches))

    def metric(name: str) -> np.ndarray:
        return np.array([launch.metrics[name] or 0.0 for launch in launches])

    kernels = Kernels(
        np.array(node), np.array([strings.index(one.kernel) for one in launches], np.int32),
        np.full(len(launches), KERNEL, np.int8),
        (metric("gpu__time_duration.sum") * 1e9).astype(np.int64),
        np.zeros(len(launches), np.int64), strings,
    )  # fmt: skip
    tree = Tree(
        np.array(label), np.array(parent), np.zeros(len(label), np.int64), np.arange(len(label))
    )
    found = find_calls(parse(list(labels)), tree, kernels)
    inside = found.owner >= 0
    read, written, count = (
        np.bincount(found.owner[inside], values[inside], len(found.calls))
        for values in (
            metric("dram__bytes_read.sum"),
            metric("dram__bytes_write.sum"),
            np.ones(len(launches)),
        )
    )
    return [
        (call, float(read[i]), float(written[i]), int(count[i]))
        for i, call in enumerate(found.calls)
    ]
