# SPDX-License-Identifier: Apache-2.0
"""What the machine at hand can do, as JAX programs see it."""
