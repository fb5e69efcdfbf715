# SPDX-License-Identifier: Apache-2.0
"""The operations under the model and the optimizer.

One folder per operation: `__init__` is the public function, with its checks;
`reference` defines the meaning in the plainest jax.numpy; `triton`, `hopper`,
`hip`, `cudnn` and `xla` are faster engines of the same meaning, and `api` is
what they share. Operations are single-device functions and
know nothing of meshes: the model puts them inside `jax.shard_map`.
"""

from ops.attention import attention as attention
from ops.attention import cached_attention as cached_attention
from ops.cca import cca_prologue as cca_prologue
from ops.cross_entropy import linear_cross_entropy as linear_cross_entropy
from ops.experts import expert_mlp as expert_mlp
from ops.experts import expert_mlp_in_place as expert_mlp_in_place
from ops.experts import expert_mlp_rows as expert_mlp_rows
from ops.muon_momentum import muon_momentum as muon_momentum
from ops.newton_schulz import newton_schulz as newton_schulz
from ops.residual_rms_norm import residual_rms_norm as residual_rms_norm
from ops.router import router as router
