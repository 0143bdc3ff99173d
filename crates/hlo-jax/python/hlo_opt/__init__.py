"""An optimizing compiler for HLO, the programs that JAX hands to XLA."""

from hlo_opt._native import Collective, Computation, HloError, Instruction, UsageError, __version__
from hlo_opt.module import Finding, LiveBuffer, Memory, Module, Report

__all__ = [
    "Collective",
    "Computation",
    "Finding",
    "HloError",
    "Instruction",
    "LiveBuffer",
    "Memory",
    "Module",
    "Report",
    "UsageError",
    "__version__",
]
