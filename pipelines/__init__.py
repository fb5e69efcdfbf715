# SPDX-License-Identifier: Apache-2.0
"""Everything that turns text into batches; knows nothing of models or jax."""
