# SPDX-License-Identifier: Apache-2.0
"""One per node: starts ranks and reports on them."""
