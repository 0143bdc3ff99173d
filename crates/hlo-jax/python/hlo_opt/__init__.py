"""An optimizing compiler for HLO, the programs that JAX hands to XLA."""

from hlo_opt._native import __version__

__all__ = ["__version__"]
