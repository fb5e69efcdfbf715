# SPDX-License-Identifier: Apache-2.0
"""What is watched: logs, counters and clocks, by rules."""
