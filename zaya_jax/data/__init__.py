# SPDX-License-Identifier: Apache-2.0
"""The data of a run: prepared if need be, checked, opened."""
