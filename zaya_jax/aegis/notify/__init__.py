# SPDX-License-Identifier: Apache-2.0
"""Incidents go to people: an HTTP address of a chat or a pager."""
