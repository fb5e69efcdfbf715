# SPDX-License-Identifier: Apache-2.0
"""Training states written, sealed, copied and thinned out."""
