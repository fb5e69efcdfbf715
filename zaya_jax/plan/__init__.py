# SPDX-License-Identifier: Apache-2.0
"""What a run would hold, send and compute on machines one does not have."""
