# SPDX-License-Identifier: Apache-2.0
"""The training step as lowered, kept from one start to the next."""
