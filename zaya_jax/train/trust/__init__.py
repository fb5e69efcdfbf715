# SPDX-License-Identifier: Apache-2.0
"""Which device is wrong, by what devices computed and hold."""
