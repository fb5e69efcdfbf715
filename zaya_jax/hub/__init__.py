# SPDX-License-Identifier: Apache-2.0
"""Other people's formats and harnesses: reading and writing their files."""
