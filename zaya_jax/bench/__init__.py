# SPDX-License-Identifier: Apache-2.0
"""How fast the operations are on the device at hand."""
