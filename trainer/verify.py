"""Is a run right? Every parameter against the sequential NumPy run, and why they differ."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainer.backends.numpy import NumpyBackend
from trainer.config import Config
from trainer.data import Dataset
from trainer.networks.base import Network
from trainer.parameters import Tensors
from trainer.stop import StopRequest
from trainer.train import Result, sequential


def relative_errors(found: np.ndarray, expected: np.ndarray, config: Config) -> dict[str, float]:
    """Return max |found - expected| / max |expected| for W1, b1, W2 and b2.

    Parameters
    ----------
    found, expected : ndarray, shape (n,)
        Flat parameters; compared in float64.
    """
    sizes = (config.input_size, config.hidden_size, config.num_classes)
    a, b = (Tensors.split(flat.astype(np.float64), *sizes).named() for flat in (found, expected))
    errors = {}
    for name, reference in b.items():
        scale = float(np.abs(reference).max())
        difference = float(np.abs(a[name] - reference).max())
        errors[name] = difference / scale if scale else difference
    return errors


def verify(
    config: Config,
    dataset: Dataset,
    result: Result,
    *,
    stop: StopRequest | None = None,
) -> dict[str, Any] | None:
    """Compare a finished run with the sequential one; None when asked to stop meanwhile.

    Beyond the bound, a second sequential run that starts one unit in the last place away tells
    chaos from error: if rounding alone drives it as far off, the parallel run is as right as the
    sequential one.

    Returns
    -------
    dict
        max_relative_error per parameter, bound, passed, precision_test of both runs,
        sequential_seconds, and, beyond the bound, perturbed_relative_error and explanation.
    """
    reference = sequential(config, dataset, stop=stop)
    if reference.stopped:
        return None
    bound = config.verify
    assert bound is not None
    errors = relative_errors(result.parameters, reference.parameters, config)
    # NaN compares false: a run full of them does not pass
    passed = all(error <= bound for error in errors.values())
    report: dict[str, Any] = {
        "max_relative_error": errors,
        "bound": bound,
        "passed": passed,
        "precision_test": {
            "parallel": result.epochs[-1]["precision_test"],
            "sequential": reference.epochs[-1]["precision_test"],
        },
        "sequential_seconds": reference.seconds["train"],
        "explanation": None,
    }
    if not passed:
        twin = sequential(config, dataset, stop=stop, parameters=one_ulp_off(config))
        if twin.stopped:
            return None
        apart = relative_errors(twin.parameters, reference.parameters, config)
        report["perturbed_relative_error"] = apart
        report["explanation"] = _explain(config, errors, apart, report["precision_test"])
    return report


def one_ulp_off(config: Config) -> np.ndarray:
    """Return the initial parameters, each moved to the next larger number of its dtype."""
    sizes = (config.input_size, config.hidden_size, config.num_classes)
    network = Network(NumpyBackend(), *sizes, config.dtype, 1)
    network.initialize(config.seed)
    moved: np.ndarray = np.nextafter(network.host_parameters(), np.inf, dtype=config.dtype)
    return moved


def _explain(
    config: Config, errors: dict[str, float], apart: dict[str, float], accuracy: dict[str, float]
) -> str:
    worst, chaos = max(errors.values()), max(apart.values())
    seen = (
        f"parameters differ by {worst:.2g} from the sequential run "
        f"(expected <= {config.verify:g}); a sequential run started one unit in the last place "
        f"away differs by {chaos:.2g} after the same {config.epochs} epochs. "
    )
    if worst <= 10 * chaos:
        return seen + (
            "Training is chaotic at this learning rate: gradients summed in another order, and "
            "fused multiply-adds on a GPU, start such differences, and each step multiplies them. "
            f"The accuracy of both runs says whether it matters: {accuracy['parallel']:.4f} "
            f"parallel, {accuracy['sequential']:.4f} sequential. To compare parameters, lower "
            "--learning-rate or --epochs, or give --verify a wider BOUND."
        )
    return seen + (
        "Rounding alone does not explain that: suspect the parallel run (gradients of some rank "
        "missing, counted twice or scaled by another batch size)."
    )
