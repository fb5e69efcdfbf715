# SPDX-License-Identifier: Apache-2.0
"""How a measurement is taken: clock, record, search, limits."""
