# SPDX-License-Identifier: Apache-2.0
"""The agents of a run, as its supervisor sees them."""
