# SPDX-License-Identifier: Apache-2.0
"""Folders of prepared shards: what they hold, and what is read of them."""
