# SPDX-License-Identifier: Apache-2.0
"""One per run: hears the agents, decides, acts, and keeps the account."""
