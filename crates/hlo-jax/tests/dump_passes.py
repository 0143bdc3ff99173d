"""Compiles a training script for eight H100s on a machine without a GPU and dumps the module around every pass of XLA that
deals with collectives or shardings.

``python dump_passes.py SCRIPT FOLDER``: the script as it is, and by GSPMD with the optimizer's state and the weights in
shards. XLA reads where to dump when it is loaded, so a process serves one script. Without arguments it prints the names of
the scripts.
"""

from __future__ import annotations

import functools
import os
import sys

name, folder = sys.argv[1:] or (None, None)
PASSES = "all-reduce|reduce-scatter|all-gather|all-to-all|collective|spmd-part|shardy|async"
os.environ["JAX_PLATFORMS"] = "cpu"
# Without a GPU no kernel can be timed.
os.environ["XLA_FLAGS"] = (
    f"--xla_gpu_autotune_level=0 --xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_large_constants "
    f"--xla_dump_hlo_pass_re=.*({PASSES}).*"
)

from described_h100 import described_mesh  # noqa: E402
from rivals import by_gspmd, split  # noqa: E402
from training_scripts import SCRIPTS  # noqa: E402

#: Layers wide enough that XLA sums gradients and does not gather the batch instead.
SIZES = {
    "flax_transformer": {"width": 256, "rows": 16},
    "batch_norm": {"width": 256, "rows": 16},
}

if name is None:
    print(*SCRIPTS, sep="\n")
    sys.exit()
mesh = described_mesh()
script = SCRIPTS[name](mesh, **SIZES.get(name, {"width": 512, "rows": 64}))
arguments, statics = split(script)
executable = functools.partial(script.step.lower, *arguments, *statics)().compile()
step, described = by_gspmd(script, mesh, executable, True)
step.lower(*described).compile()
