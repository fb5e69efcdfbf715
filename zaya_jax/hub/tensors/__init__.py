# SPDX-License-Identifier: Apache-2.0
"""Files of tensors: what is in them, and how they are written."""
