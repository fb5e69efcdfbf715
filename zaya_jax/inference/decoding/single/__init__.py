# SPDX-License-Identifier: Apache-2.0
"""One token of one text: a layer as nine kernels that each fill a GPU."""
