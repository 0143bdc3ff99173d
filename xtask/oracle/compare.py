"""Comparison of two runs of one module, over all outputs and all devices."""
from dataclasses import dataclass

import numpy as np

FLOOR = 2e-5  # rounding of another summation order, with room to spare
PERTURB = 6e-8  # half an f32 ulp: what any correct implementation may do to an input
MARGIN = 10.0


@dataclass
class Difference:
    """How far two runs are apart. Errors are relative to the largest element of an output over its devices."""

    worst: float
    median: float
    worst_output: int
    note: str


def compare(reference, other):
    """Difference of [output][device] arrays. Structure, NaN positions and infinities must agree, or worst is inf."""
    if len(reference) != len(other):
        return Difference(np.inf, np.inf, -1, f"expected {len(reference)} outputs, found {len(other)}")
    errors, note = [], ""
    for i, (rows, other_rows) in enumerate(zip(reference, other)):
        error, why = _output_error(rows, other_rows)
        if why and not note:
            note = f"output {i}: {why}"
        errors.append(error)
    if not errors:
        return Difference(np.inf, np.inf, -1, "the module has no outputs: nothing was compared")
    worst = int(np.argmax(errors))
    return Difference(float(errors[worst]), float(np.median(errors)), worst, note)


def _output_error(rows, other_rows):
    if len(rows) != len(other_rows):
        return np.inf, f"expected {len(rows)} devices, found {len(other_rows)}"
    exact = rows[0].dtype.kind in "iub"
    scale, error = 0.0, 0.0
    for device, (a, b) in enumerate(zip(rows, other_rows)):
        if a.shape != b.shape:
            return np.inf, f"device {device}: expected shape {a.shape}, found {b.shape}"
        if exact:
            if not np.array_equal(a, b):
                return np.inf, f"device {device}: {int((a != b).sum())} of {a.size} integers differ"
            continue
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        a, b = a.astype(wide), b.astype(wide)
        finite = np.isfinite(a)
        if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return np.inf, f"device {device}: NaN or infinity in other places"
        if finite.any():
            scale = max(scale, float(np.abs(a[finite]).max()))
            error = max(error, float(np.abs(a[finite] - b[finite]).max()))
    return (error / scale if scale > 0 else error), ""


def tolerance(reference, perturbed):
    """max(FLOOR, MARGIN x the change that perturbed inputs make). Integer outputs take no part: they must be equal,
    and a module whose integers hang on rounding needs other inputs."""
    floats = [(a, b) for a, b in zip(reference, perturbed) if a[0].dtype.kind not in "iub"]
    if not floats:
        return FLOOR
    change = compare([a for a, _ in floats], [b for _, b in floats])
    if not np.isfinite(change.worst):
        raise ValueError(f"perturbed inputs move NaN or infinities ({change.note}): choose other inputs")
    return max(FLOOR, MARGIN * change.worst)


def check_reference(outputs):
    """Why this reference proves nothing, or None: NaN compare as equal, so an output full of them hides errors."""
    for i, rows in enumerate(outputs):
        if rows[0].dtype.kind in "iub":
            continue
        for device, a in enumerate(rows):
            if np.isnan(a.astype(np.complex128 if a.dtype.kind == "c" else np.float64)).any():
                return f"output {i} of device {device} has NaN: choose other inputs"
    return None
