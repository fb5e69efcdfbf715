# SPDX-License-Identifier: Apache-2.0
"""The step compiled for machines one does not have, and its contracts."""
