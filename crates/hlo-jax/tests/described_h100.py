"""Eight H100s that are only described: the CUDA plugin compiles for them on a machine without a GPU."""

from __future__ import annotations

import pathlib

import jax
import numpy as np
from jax._src.lib import xla_client
from jax.sharding import Mesh

#: NVIDIA H100 SXM5 80 GB, as XLA describes a target.
H100 = (pathlib.Path(__file__).parent / "h100.txtpb").read_text(encoding="utf-8")


def described_mesh() -> Mesh:
    """A mesh ``("data",)`` of eight H100s on one switch that are not there."""
    jax.devices()  # loads the plugins
    plugin = xla_client._xla.get_pjrt_plugin("cuda")
    if not xla_client.pjrt_plugin_initialized("cuda"):
        xla_client.initialize_pjrt_plugin("cuda")
    topology = xla_client.make_c_api_device_topology(plugin, "", topology="1x1x8", target_config=H100)
    return Mesh(np.array(topology._make_compile_only_devices()), ("data",))
