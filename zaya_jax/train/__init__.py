# SPDX-License-Identifier: Apache-2.0
"""Training: `run` is the page to read first."""
