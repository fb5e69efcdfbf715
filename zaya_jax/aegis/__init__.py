# SPDX-License-Identifier: Apache-2.0
"""Stands outside the processes of a run and keeps it alive; no jax here."""
