# SPDX-License-Identifier: Apache-2.0
"""Why a value of a node is not there."""


class UnseenError(Exception):
  """A value cannot be seen; the message says why."""


class SickError(UnseenError):
  """A program that is there hangs or fails: that is a fault of the node."""
