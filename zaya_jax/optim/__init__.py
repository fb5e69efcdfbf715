# SPDX-License-Identifier: Apache-2.0
"""Muon and AdamW, their groups, schedules, and the balancing bias."""
