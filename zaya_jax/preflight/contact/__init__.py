# SPDX-License-Identifier: Apache-2.0
"""The first hour on a new machine: all that it must show, one archive."""
