# SPDX-License-Identifier: Apache-2.0
"""Many conversations with one model: over HTTP, or in a terminal."""
