"""Eight CPU devices for all tests, set before JAX starts.

XLA may keep values of bf16 in f32 between some instructions and not between others; which ones changes with the
program. Without that
freedom the results of a script in bf16 can be compared.
"""

import os

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8 --xla_allow_excess_precision=false"
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
