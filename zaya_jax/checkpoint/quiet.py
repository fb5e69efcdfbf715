# SPDX-License-Identifier: Apache-2.0
"""Keeps to itself what Orbax and TensorStore print beside what they raise.

Of several reads or writes that fail, one is raised to us. The others would each
print a traceback when nobody asks for their result, or when they end after the
event loop that they were started in.
"""

import functools
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

_THEIRS = ('orbax', 'tensorstore', 'OCDBT')


def silence() -> None:
  """Drops their progress and the tracebacks of errors that are raised too."""
  logging.getLogger('absl').addFilter(_is_news)
  logging.getLogger('asyncio').addFilter(_is_of_others)
  if getattr(sys.unraisablehook, 'func', None) is not _show:
    sys.unraisablehook = functools.partial(_show, sys.unraisablehook)


def _is_news(record: logging.LogRecord) -> bool:
  if f'{os.sep}orbax{os.sep}' not in record.pathname:
    return True
  return record.levelno >= logging.WARNING and not record.exc_info


def _is_of_others(record: logging.LogRecord) -> bool:
  text = logging.Formatter().format(record)  # With the traceback.
  never = 'exception was never retrieved' in text
  return not (never and any(name in text for name in _THEIRS))


def _show(show: Callable[[Any], None], unraisable: Any) -> None:
  if 'Event loop is closed' not in str(unraisable.exc_value):
    show(unraisable)
