# SPDX-License-Identifier: Apache-2.0
"""From and to other programs: import, export, and the conformance kit."""
