# SPDX-License-Identifier: Apache-2.0
"""A whole recipe in miniature, with everything that happens to a long run."""
