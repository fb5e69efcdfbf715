# SPDX-License-Identifier: Apache-2.0
"""Attention over a cache whose tokens are divided among devices."""
