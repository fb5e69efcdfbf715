# SPDX-License-Identifier: Apache-2.0
"""A run on one page, and what its router does."""
