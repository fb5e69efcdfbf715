# SPDX-License-Identifier: Apache-2.0
"""Formulas: bytes, collectives and seconds of a step."""
