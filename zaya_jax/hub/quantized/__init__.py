# SPDX-License-Identifier: Apache-2.0
"""Matrices of few bits: how they are rounded, and how folders store them."""
