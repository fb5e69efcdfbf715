# SPDX-License-Identifier: Apache-2.0
"""What the exit code of a command says, to people and to schedulers.

`ops` and `pipelines` import nothing from here; the errors that they raise for
the user carry their own number, of this table, as `exit_code`.
"""

from typing import Final

DONE: Final = 0
# A bug, a device that failed, a store that is away: may be started again.
INTERNAL: Final = 1
USAGE: Final = 2  # A flag or an input is wrong: another command line would do.
UNUSABLE: Final = 3  # Data or a checkpoint on disk, or a node, is unusable.
NUMERICS: Final = 4  # Training gave up on NaN, Inf or spikes.
STOPPED: Final = 75  # By a signal, or out of restarts: repeat the command.
NO_PROGRESS: Final = 93  # Several restarts without a new checkpoint.
