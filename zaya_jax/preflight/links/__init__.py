# SPDX-License-Identifier: Apache-2.0
"""Links between processes: which are measured when, and who is slow."""
