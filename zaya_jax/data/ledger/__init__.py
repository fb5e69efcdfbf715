# SPDX-License-Identifier: Apache-2.0
"""What a run was trained on: lines in a chain, and the proof of them."""
