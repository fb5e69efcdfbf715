# SPDX-License-Identifier: Apache-2.0
"""One process of a run: its rank, its stop, what it tells its supervisor."""
