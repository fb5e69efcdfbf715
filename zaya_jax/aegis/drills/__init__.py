# SPDX-License-Identifier: Apache-2.0
"""Faults injected into tiny real runs, and what must come of them."""
