# SPDX-License-Identifier: Apache-2.0
"""Is this node fit to train? Rules, what they read, and the verdict."""
