# SPDX-License-Identifier: Apache-2.0
"""What tools of a node say, as counters with the names that rules know."""
