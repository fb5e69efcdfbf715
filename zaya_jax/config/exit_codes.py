# SPDX-License-Identifier: Apache-2.0
"""What the exit code of a command says, to people and to schedulers.

`ops` and `pipelines` import nothing from here; the errors that they raise for
the user carry their own number, of this table, as `exit_code`.
"""

DONE = 0
INTERNAL = 1  # A bug, or a device that failed: may be started again.
USAGE = 2  # A flag or an input is wrong: another command line would do.
UNUSABLE = 3  # Data or a checkpoint on disk is unusable.
NUMERICS = 4  # Training gave up on NaN, Inf or spikes.
STOPPED = 75  # By a signal, or out of restarts: the same command goes on.
NO_PROGRESS = 93  # Several restarts without a new checkpoint.
