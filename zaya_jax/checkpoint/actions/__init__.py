# SPDX-License-Identifier: Apache-2.0
"""--mode=checkpoints: list, compare, verify, reshape."""
