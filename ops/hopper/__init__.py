# SPDX-License-Identifier: Apache-2.0
"""What kernels for Hopper GPUs share, in Pallas for JAX's Mosaic GPU."""
