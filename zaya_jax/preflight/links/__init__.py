# SPDX-License-Identifier: Apache-2.0
"""Which node or link of many is slow, by measuring them beside each other."""
