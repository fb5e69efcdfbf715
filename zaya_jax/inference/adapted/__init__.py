# SPDX-License-Identifier: Apache-2.0
"""What an adapter changes, on what is held out."""
