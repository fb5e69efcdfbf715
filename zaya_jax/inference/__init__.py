# SPDX-License-Identifier: Apache-2.0
"""Models that are read back: loaded, sampled, scored and looked into."""
