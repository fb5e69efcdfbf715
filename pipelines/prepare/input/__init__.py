# SPDX-License-Identifier: Apache-2.0
"""From `--data.input` to documents, whatever the files are and where."""
