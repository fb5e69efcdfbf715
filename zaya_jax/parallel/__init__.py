# SPDX-License-Identifier: Apache-2.0
"""The device mesh, and which device holds which part of an array."""
