# SPDX-License-Identifier: Apache-2.0
"""Checkpoints found, verified and read."""
