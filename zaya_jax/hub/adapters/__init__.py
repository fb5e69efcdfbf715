# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters: their bases, and the format of PEFT."""
