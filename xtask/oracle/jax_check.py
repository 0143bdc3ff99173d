"""Check what hlo-opt makes of the dumps of one version of JAX: jax_check.py HLO_OPT FOLDER [STYLE...].

Each style of training is run with dumps. hlo-opt must read every module, and print what this jaxlib reads as the same module. The
step, sharded by hlo-opt, must compute on the devices what it computed before."""
import glob
import os
import re
import shutil
import subprocess
import sys

import numpy as np
from jaxlib import _hlo

HERE = os.path.dirname(os.path.abspath(__file__))
DEVICES = 4
TOLERANCE = 2e-5
SHARD = "inline-calls,sink-all-reduce,shard-weight-update{min-bytes=0}"
# What the configuration says and the module's proto does not: this jaxlib prints it of the text and loses it on the way through the proto.
CONFIGURATION = re.compile(r", (num_partitions|replica_count)=\d+|, allow_spmd_sharding_propagation_to_\w+=\{[^}]*\}")


def run(*words, **more):
    done = subprocess.run(words, capture_output=True, text=True, **more)
    if done.returncode:
        sys.exit(f"{' '.join(words[:4])}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done


def dump(style, folder):
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_text --xla_dump_hlo_pass_re=spmd.*"
    return run(sys.executable, "-B", f"{HERE}/../jax/train.py", style, str(DEVICES), env={**os.environ, "XLA_FLAGS": flags}).stdout.strip()


def same_text(tool, file):
    """Whether this jaxlib reads hlo-opt's print as it reads the file."""
    text = open(file).read()
    ours = run(tool, file).stdout
    canonical = lambda t: CONFIGURATION.sub("", _hlo.hlo_module_from_text(t).to_string())
    return canonical(text) == canonical(ours)


def same_results(tool, file, sharded, folder, same):
    """The largest difference of an output, relative to its largest element."""
    inputs = folder + "/inputs.npz"
    run(tool, "eval", file, "--draw", DRAW, "--same", same, "-o", inputs, "--save-inputs")
    results = []
    for module in (file, sharded):
        out = folder + f"/{len(results)}.npz"
        run(sys.executable, "-B", f"{HERE}/run_hlo.py", module, "--inputs", inputs, "-o", out)
        results.append(np.load(out))
    before, after = results
    names = [name for name in before.files if name.startswith("out")]
    assert names and sorted(names) == sorted(name for name in after.files if name.startswith("out"))
    worst = 0.0
    for name in names:
        a, b = before[name].astype(np.float64), after[name].astype(np.float64)
        assert np.isfinite(a).all(), name
        worst = max(worst, np.abs(a - b).max() / max(np.abs(a).max(), 1e-30))
    return worst


# Leaves: m (b0, w0, w1), t, v, w, x, y; second moments are not negative.
DRAW = "n.1 n.1 n.1 int9 p.1 p.1 p.1 n.1 n.1 n.1 n1 n1"


def check(tool, style, folder):
    said = dump(style, folder)
    modules = [f for f in sorted(glob.glob(folder + "/*.txt")) if open(f).read(9) == "HloModule"]
    bad = [os.path.basename(f) for f in modules if not same_text(tool, f)]
    step = max((f for f in modules if ".after_spmd-partitioning." in f), key=os.path.getsize)
    sharded = folder + "/sharded.hlo"
    # pmap takes stacks of copies: what the module says of them does not make them equal.
    promise, same = (["--replicated-params", "stacked:0-9"], "0-9") if style == "pmap" else ([], "auto")
    run(tool, step, "--pass", SHARD, *promise, "-o", sharded)
    n_scattered = open(sharded).read().count(" reduce-scatter(")
    worst = same_results(tool, step, sharded, folder, same)
    print(f"{said}: {len(modules)} modules, {len(bad)} read otherwise; {n_scattered} reduce-scatters, results within {worst:.1e}")
    for name in bad:
        print("  read otherwise:", name)
    return not bad and n_scattered == 3 and worst <= TOLERANCE


def main():
    tool, folder, *styles = sys.argv[1:]
    results = [check(tool, style, os.path.join(folder, style)) for style in styles or ["jit", "shard_map", "pmap"]]
    sys.exit(0 if all(results) else 1)


main()
