# SPDX-License-Identifier: Apache-2.0
"""Who looks twice at a step or a device that may be wrong."""
