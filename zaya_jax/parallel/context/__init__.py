# SPDX-License-Identifier: Apache-2.0
"""Attention whose rows, or whose cache, are divided among devices."""
