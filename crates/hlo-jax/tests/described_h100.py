"""Eight H100s that are only described: the CUDA plugin compiles for them on a machine without a GPU."""

from __future__ import annotations

import jax
import numpy as np
from jax._src.lib import xla_client
from jax.sharding import Mesh

#: NVIDIA H100 SXM5 80 GB: the vendor's data sheet and CUDA's table of compute capability 9.0.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448
  reserved_shared_memory_per_block: 1024
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84942979072
  cuda_compute_capability { major: 9 feature_extension: ACCELERATED_FEATURES }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  name: "NVIDIA H100 80GB HBM3"
  driver_version: "13.0.0"
  runtime_version: "12.8.0"
  compile_time_toolkit_version: "12.8.0"
  dnn_version: "9.10.0"
}
platform_name: "CUDA"
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def described_mesh() -> Mesh:
    """A mesh ``("data",)`` of eight H100s on one switch that are not there."""
    jax.devices()  # loads the plugins
    plugin = xla_client._xla.get_pjrt_plugin("cuda")
    if not xla_client.pjrt_plugin_initialized("cuda"):
        xla_client.initialize_pjrt_plugin("cuda")
    topology = xla_client.make_c_api_device_topology(plugin, "", topology="1x1x8", target_config=H100)
    return Mesh(np.array(topology._make_compile_only_devices()), ("data",))
