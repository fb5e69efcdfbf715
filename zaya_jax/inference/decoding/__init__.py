# SPDX-License-Identifier: Apache-2.0
"""Token after token: the network with its cache, and how a token is chosen."""
