# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: written, kept, found, compared and read back."""
