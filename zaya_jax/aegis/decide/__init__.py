# SPDX-License-Identifier: Apache-2.0
"""Pure decisions: the state of a run and an event make actions."""
