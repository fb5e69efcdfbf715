# SPDX-License-Identifier: Apache-2.0
"""What kernels in Triton share, in Pallas for JAX's Triton backend."""
