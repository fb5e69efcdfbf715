# SPDX-License-Identifier: Apache-2.0
"""The plan as tables and as a picture."""
