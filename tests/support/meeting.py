# SPDX-License-Identifier: Apache-2.0
"""A program that only meets the other processes of its run.

Started in several processes, `python -m tests.support.meeting --flag=value ...`
"""

import faulthandler
import sys

from zaya_jax import config as config_lib
from zaya_jax.runtime import session

if __name__ == '__main__':
  faulthandler.dump_traceback_later(60)  # Where it hangs, should it ever.
  with session.join(config_lib.Config.parse(sys.argv[1:]), ''):
    print('all have met')
