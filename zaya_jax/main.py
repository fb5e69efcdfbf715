# SPDX-License-Identifier: Apache-2.0
"""The command line: flags to Config to the mode's own module.

    python -m zaya_jax.main --flagfile=configs/quickstart.flags [--name=value]
    zaya generate --run_dir=runs/quickstart

`zaya`, of an installed package, is the same program. A first word without
dashes is the mode.

The module of a mode, and jax with it, is imported only once the flags are
known to be right. An error that knows its exit code (`config/exit_codes.py`)
carries it as `exit_code`; any other keeps its traceback.
"""

import os
import signal
import sys

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
if __name__ == '__main__':
  # A stop during imports: jaxlib aborts, and Python prints a traceback.
  def _end(*_) -> None:
    os.write(2, b'zaya_jax: stopped.\n')
    os._exit(os.EX_TEMPFAIL)  # 75, `exit_codes.STOPPED`.

  for _number in _SIGNALS:
    if signal.getsignal(_number) != signal.SIG_IGN:  # As nohup leaves it.
      signal.signal(_number, _end)

import contextlib
import errno
import hashlib
import importlib
import io
import logging
import pathlib
import platform
from collections.abc import Iterator, Sequence
from importlib import metadata

from zaya_jax import config as config_lib
from zaya_jax.checkpoint import seal_key
from zaya_jax.config import checks, exit_codes
from zaya_jax.config import help as help_lib
from zaya_jax.runtime import clock, log, rank, supervised

_MODES = {
  'train': 'zaya_jax.train.run:train',
  'prepare': 'zaya_jax.data.prepare:main',
  'data': 'zaya_jax.data.contents:main',
  'eval': 'zaya_jax.inference.evaluate:main',
  'generate': 'zaya_jax.inference.generate:main',
  'chat': 'zaya_jax.inference.serve.chat:main',
  'serve': 'zaya_jax.inference.serve.mode:main',
  'checkpoints': 'zaya_jax.checkpoint.actions.listing:main',
  'import': 'zaya_jax.convert.importer:main',
  'export': 'zaya_jax.convert.exporter:main',
  'conform': 'zaya_jax.convert.conformance_mode:main',
  'plan': 'zaya_jax.plan.planner:main',
  'bench': 'zaya_jax.bench.mode:main',
  'preflight': 'zaya_jax.preflight.mode:main',
  'contact': 'zaya_jax.preflight.contact.mode:main',
  'report': 'zaya_jax.report.mode:main',
  'ledger': 'zaya_jax.data.ledger.mode:main',
  'rehearse': 'zaya_jax.aegis.rehearsal.mode:main',
  'supervise': 'zaya_jax.aegis.mode:main',
}
_ROUTER = 'zaya_jax.inference.microscope:main'
_HELP = ('--help', '-help', '-h', '--helpshort')
_HELP_ALL = ('--helpfull', '-helpfull')


def main(argv: Sequence[str]) -> int:
  """Runs one command line.

  Args:
    argv: as `sys.argv`, the name of the program first.

  Returns:
    The exit code.
  """
  clock.start()
  try:
    if about := _about(argv[1:]):
      print(about, flush=True)
      return exit_codes.DONE
    config = config_lib.Config.parse(_mode_last(argv[1:]))
    _check_alone(config)
    checks.check(config)
  except config_lib.UsageError as error:
    return _fail(error, error.exit_code)
  _set_environment()
  return _run(config)


def _about(args: Sequence[str]) -> str:
  """What --help, --help=SECTION or --version prints; '' without them."""
  for arg in args:
    name, _, value = arg.partition('=')
    if name in _HELP_ALL:
      return help_lib.text(['all'])
    if name in _HELP:
      return help_lib.text([word for word in value.split(',') if word])
    if name == '--version':
      jax, python = metadata.version('jax'), sys.version.split()[0]
      return f'zaya_jax {config_lib.VERSION} (jax {jax}, Python {python})'
  return ''


def _mode_last(args: Sequence[str]) -> list[str]:
  """The flags, with a mode that is the first word behind those of flagfiles.

  Raises:
    UsageError: if the word is no mode, or a flag says the mode as well.
  """
  if not args:
    raise config_lib.UsageError('No flags are given; --help says how to begin.')
  word, *rest = args
  if word.startswith('-'):
    return list(args)
  if word not in _MODES:
    raise config_lib.UsageError(
      f'{word!r} is not a mode; choose of {", ".join(_MODES)}, and write flags '
      'as --name=value.'
    )
  for arg in rest:
    if arg.partition('=')[0].lstrip('-') == 'mode':
      raise config_lib.UsageError(
        f'{word} and {arg} both say the mode; drop one.'
      )
  return [*rest, f'--mode={word}']


def _check_alone(config: config_lib.Config) -> None:
  """Refuses several processes where each would write the same output."""
  if config.mode in ('train', 'preflight'):
    return  # Of all processes together; so are the collectives of a bench.
  if config.mode == 'bench' and config.bench.measurements == ('collectives',):
    return
  # Those of a plan need not be there: only a launcher can have started them.
  planned = config.mode == 'plan'
  place = config_lib.DistributedConfig() if planned else config.distributed
  count = rank.find(place, os.environ).processes
  if count > 1:
    raise config_lib.UsageError(
      f'--mode={config.mode} runs in one process, and this is one of {count}; '
      'start it once (srun --ntasks=1, or without the launcher).'
    )


def _set_environment() -> None:
  """Sets what JAX reads when it is imported, unless the user has set it.

  Compiled programs are kept between runs. Those for CPUs use whatever the CPU
  that compiled them can do, and XLA loads them elsewhere all the same
  (jax-ml/jax#38445): so each kind of CPU has a folder of its own.
  """
  folder = os.path.expanduser('~/.cache/zaya_jax')
  cache = pathlib.Path(folder, f'compiled-{_cpu()}')
  if cache.is_absolute() and _is_private(cache):  # Or there is no home.
    os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', str(cache))


def _cpu() -> str:
  """A hash of what the CPU is and can do."""
  facts = [platform.system(), platform.machine()]
  with contextlib.suppress(OSError), open('/proc/cpuinfo') as file:
    # The first of x86, the others of ARM.
    names = ('flags', 'Features', 'CPU part')
    facts += sorted({line for line in file if line.startswith(names)})
  return hashlib.sha256('\n'.join(facts).encode()).hexdigest()[:16]


def _is_private(folder: pathlib.Path) -> bool:
  """Whether only this user writes there: what lies in it is executed."""
  with contextlib.suppress(OSError):
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    return found.st_uid == os.getuid() and not found.st_mode & 0o022
  return False


def _run(config: config_lib.Config) -> int:
  """Imports the module of the mode, runs it and finds the exit code."""
  module, _, function = _door(config).partition(':')
  try:
    run = getattr(importlib.import_module(module), function)
    supervised.wait()
    if __name__ == '__main__':
      _interrupt_by_signals()
    with _engines_and_key(config):
      return run(config) or exit_codes.DONE
  except KeyboardInterrupt:
    print('zaya_jax: stopped.', file=sys.stderr)
    return exit_codes.STOPPED
  except (OSError, RuntimeError, ValueError) as error:
    # What this project raises for the user derives from one of the three.
    code = getattr(error, 'exit_code', None)
    if isinstance(code, int):
      return _fail(error, code)
    # Nobody's bug.
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
      return _fail(_disk_full(config, error), exit_codes.UNUSABLE)
    raise


def _interrupt_by_signals() -> None:
  """Until the training loop listens, SIGTERM ends as Ctrl-C does, tidily."""
  for number in _SIGNALS:
    if signal.getsignal(number) != signal.SIG_IGN:
      signal.signal(number, signal.default_int_handler)

  def lost(unraisable):
    """An interrupt that came in a destructor is none: it comes again."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
      signal.signal(signal.SIGALRM, signal.default_int_handler)
      signal.setitimer(signal.ITIMER_REAL, 0.01)
    else:
      sys.__unraisablehook__(unraisable)

  sys.unraisablehook = lost


def _door(config: config_lib.Config) -> str:
  """Module and function of what is asked for."""
  if config.mode == 'report' and config.report.router:
    return _ROUTER  # Loads a model; the page of a run needs no jax.
  return _MODES[config.mode]


@contextlib.contextmanager
def _engines_and_key(config: config_lib.Config) -> Iterator[None]:
  """Inside, --ops.* and --checkpoint.seal_key_file hold."""
  if config.mode == 'train':  # It enters them itself, also from Python.
    yield
    return
  engines = contextlib.nullcontext()
  if config.ops != config_lib.OpsConfig():  # Some modes need no jax.
    from ops import dispatch

    engines = dispatch.use(**vars(config.ops))
  with engines, seal_key.trusting(config.checkpoint.seal_key_file):
    yield


def _disk_full(config: config_lib.Config, error: OSError) -> str:
  # A copy has two files; the second is the one that is written.
  where = error.filename2 or error.filename or f'--run_dir={config.run_dir}'
  return (
    f'The disk is full ({error.strerror}: {where}); make room there and repeat '
    'the command.'
  )


def _fail(error: Exception | str, code: int) -> int:
  print(f'zaya_jax: error: {error}', file=sys.stderr)
  return code


def _program() -> None:
  """Runs the command line of this process and ends it."""
  # A terminal may not know every letter that a model writes.
  if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(errors='replace')
  logging.basicConfig(format=log.FORMAT)
  logging.addLevelName(logging.WARNING, 'warning')
  try:
    code = main(sys.argv)
    sys.stdout.flush()
  except BrokenPipeError:  # Who read the output, `head` say, has left.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(exit_codes.INTERNAL)
  # All is done, and the code says how.
  for number in (*_SIGNALS, signal.SIGALRM):
    if signal.getsignal(number) != signal.SIG_IGN:
      signal.signal(number, lambda *_: os._exit(code))
  if code == exit_codes.STOPPED:
    # After an interrupted compilation jaxlib crashes when Python takes it down.
    sys.stderr.flush()
    os._exit(code)
  sys.exit(code)


if __name__ == '__main__':
  _program()
