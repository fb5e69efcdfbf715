# SPDX-License-Identifier: Apache-2.0
"""The ZAYA1 network in Flax NNX, used as plain pytrees."""
