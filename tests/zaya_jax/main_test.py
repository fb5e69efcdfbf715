# SPDX-License-Identifier: Apache-2.0
"""The command line from outside: what it prints, imports and exits with."""

import contextlib
import importlib.metadata
import io
import json
import os
import pathlib
import subprocess
import sys

import pytest

import zaya_jax
from zaya_jax import config, main
from zaya_jax.config import flags
from zaya_jax.config import help as help_lib

ROOT = pathlib.Path(__file__).parents[2]

READING = ['eval', 'generate', 'checkpoints', 'conform', 'report']
# Prints, behind everything else, for each command line its exit code and which
# heavy modules have been imported by then.
SPY = """
import json, sys
from zaya_jax import main
heavy = ('jax', 'numpy', 'orbax', 'grain', 'rich', 'tensorboardX')
found = []
for words in json.loads(sys.argv[1]):
  code = main.main(['zaya_jax', *words])
  found.append([code, [name for name in heavy if name in sys.modules]])
print()
print(json.dumps(found))
"""


def _python(*args, **environment):
  return subprocess.run(
    [sys.executable, *args],
    capture_output=True,
    text=True,
    check=False,
    cwd=ROOT,
    env={**os.environ, **environment},
    timeout=120,
  )


def _program(*args):
  return _python('-m', 'zaya_jax.main', *args)


def test_help_lists_every_flag_and_exits_with_0():
  done = _program('--help=all')
  assert (done.returncode, done.stderr) == (0, '')
  assert _program('--helpfull').stdout == done.stdout
  for title, _, settings in flags.sections(config.Config):
    assert f'\n{title}: ' in done.stdout
    for setting in settings:
      assert f'\n  --{setting.name}=' in done.stdout
  assert 'undefok' not in done.stdout


def test_help_alone_fits_two_screens_and_names_the_modes():
  done = _program('--help')
  assert (done.returncode, done.stderr) == (0, '')
  assert len(done.stdout.splitlines()) < 60
  for mode in main._MODES:
    assert f'\n  {mode} ' in done.stdout


def test_no_flags_are_no_training():
  done = _program()
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr.endswith('No flags are given; --help says how to begin.\n')


@pytest.mark.parametrize('first', [True, False])
def test_a_first_word_is_the_mode_whatever_a_flagfile_says(
  tmp_path, monkeypatch, first
):
  ran = []
  monkeypatch.setattr(main, '_run', lambda config: ran.append(config.mode))
  path = tmp_path / 'config.flags'
  path.write_text('--mode=train\n--run_dir=run\n--data.input=stdlib\n')
  words = ['plan'] if first else []
  main.main(['zaya', *words, f'--flagfile={path}'])
  assert ran == (['plan'] if first else ['train'])


@pytest.mark.parametrize(
  'words, sentence',
  [
    (['trian'], "'trian' is not a mode; choose of train, prepare"),
    (['plan', '--mode=train'], 'plan and --mode=train both say the mode'),
    (['plan', '-mode', 'train'], 'plan and -mode both say the mode'),
    (['plan', 'word'], "'word' is not a flag"),
  ],
)
def test_a_wrong_first_word_is_one_sentence(words, sentence, capsys):
  assert main.main(['zaya', *words]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert sentence in line


def test_the_command_is_the_program():
  script = 'import zaya_jax; zaya_jax._command()'
  assert (
    _python('-c', script, 'plan', '--help').stdout == help_lib.text() + '\n'
  )
  done = _python('-c', script, 'plam')
  assert done.returncode == 2 and "'plam' is not a mode" in done.stderr


@pytest.mark.parametrize('word', ['--help=optim', '--help=optim,model'])
def test_help_of_a_section_lists_its_flags_alone(word):
  done = _program(word)
  assert (done.returncode, done.stderr) == (0, '')
  assert '\n  --optim.lr=' in done.stdout
  assert ('\n  --model.d_model=' in done.stdout) == ('model' in word)
  assert '\n  --num_steps=' not in done.stdout
  assert '\n  --data.input=' not in done.stdout


def test_help_of_no_section_names_the_sections():
  done = _program('--help=modl')
  assert (done.returncode, done.stdout) == (2, '')
  assert '--help=modl is not a section; choose of all, run, ' in done.stderr


def test_version_is_that_of_the_package():
  done = _program('--version')
  versions = [importlib.metadata.version('jax'), sys.version.split()[0]]
  about = 'zaya_jax {} (jax {}, Python {})\n'
  assert done.stdout == about.format(zaya_jax.__version__, *versions)
  assert (done.returncode, done.stderr) == (0, '')


def test_help_survives_a_reader_that_leaves():
  program = f'{sys.executable} -m zaya_jax.main --help | head -n 1'
  done = subprocess.run(
    program,
    shell=True,
    capture_output=True,
    text=True,
    check=True,
    cwd=ROOT,
    timeout=120,
  )
  assert done.stderr == ''


LIGHT = [
  (['--help'], 0),
  (['--help=model'], 0),
  (['--version'], 0),
  (['--num_stepz=3'], 2),
  (['--model.num_layers=0'], 2),
  (['--flagfile=missing.flags'], 2),
  (['--flagfile=configs/finetune.flags'], 2),
  (['--flagfile=configs/lora.flags'], 2),
  (['--run_dir=new', '--data.input=none'], 2),
  *(([f'--mode={mode}', '--source=none'], 2) for mode in READING),
]


def test_nothing_heavy_is_imported():
  done = _python('-c', SPY, json.dumps([words for words, _ in LIGHT]))
  found = json.loads(done.stdout.splitlines()[-1])
  for (words, code), one in zip(LIGHT, found, strict=True):
    assert one == [code, []], words


def test_heavy_import_would_be_noticed():
  done = _python('-c', 'import numpy\n' + SPY, '[["--version"]]')
  assert json.loads(done.stdout.splitlines()[-1]) == [[0, ['numpy']]]


@pytest.mark.parametrize(
  'args, words',
  [
    (['--num_stepz=3'], 'Did you mean --num_steps?'),
    (['--num_steps=3', 'word'], "'word' is not a flag"),
    (['--num_steps=x'], '--num_steps=x: must be a whole number'),
    (['--flagfile=missing.flags'], 'missing.flags'),
    (['--model.num_kv_heads=3'], 'choose one of [1, 2, 4]'),
  ],
)
def test_wrong_flags_are_one_sentence_and_exit_code_2(args, words, capfd):
  assert main.main(['zaya_jax', *args]) == 2
  out, err = capfd.readouterr()
  assert out == ''
  (line,) = err.splitlines()
  assert line.startswith('zaya_jax: error: ')
  assert words in line


def test_missing_input_is_told_by_the_mode():
  done = _program('--mode=prepare', '--output=never_made')
  assert done.returncode == 2
  assert '--data.input=' in done.stderr
  assert 'Traceback' not in done.stderr
  assert not (ROOT / 'never_made').exists()


def test_text_becomes_shards(tmp_path):
  source = tmp_path / 'text.txt'
  source.write_text('A line of text, and then one more.\n' * 200)
  done = _program(
    '--mode=prepare',
    f'--data.input={source}',
    f'--output={tmp_path / "shards"}',
    '--data.record_tokens=512',
  )
  assert done.returncode == 0, done.stderr
  assert (tmp_path / 'shards' / 'manifest.json').exists()
  assert f'--data.dir={tmp_path / "shards"}' in done.stdout


def _run_mode(monkeypatch, function, *words):
  """Runs main with `function` as every mode."""
  for mode in main._MODES:
    monkeypatch.setitem(main._MODES, mode, f'{__name__}:mode')
  module = type(sys)(__name__)
  module.mode = function
  monkeypatch.setitem(sys.modules, __name__, module)
  return main.main(['zaya_jax', '--mode=plan', '--num_steps=3', *words])


@pytest.mark.parametrize('returned, code', [(None, 0), (0, 0), (75, 75)])
def test_mode_decides_the_exit_code(monkeypatch, returned, code):
  seen = []

  def mode(settings):
    seen.append(settings)
    return returned

  assert _run_mode(monkeypatch, mode) == code
  assert seen == [config.Config(mode='plan', num_steps=3)]


class _GaveUpError(RuntimeError):
  exit_code = 4


def _raise(error):
  raise error


@pytest.mark.parametrize(
  'error, code',
  [
    (_GaveUpError('Ten bad steps in a row.'), 4),
    (config.UsageError('Ten bad steps in a row.'), 2),
    (OSError(28, 'Ten bad steps in a row.', 'file'), 3),
  ],
)
def test_error_with_a_code_is_one_sentence(monkeypatch, capsys, error, code):
  assert _run_mode(monkeypatch, lambda _: _raise(error)) == code
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith('zaya_jax: error: ')
  assert 'Ten bad steps in a row.' in line


@pytest.mark.parametrize('error', [ValueError('bug'), OSError(5, 'broken')])
def test_unexpected_error_keeps_its_traceback(monkeypatch, error):
  with pytest.raises(type(error)):
    _run_mode(monkeypatch, lambda _: _raise(error))


def test_ctrl_c_is_resumable(monkeypatch, capsys):
  assert _run_mode(monkeypatch, lambda _: _raise(KeyboardInterrupt())) == 75
  assert 'Traceback' not in capsys.readouterr().err


@pytest.mark.parametrize('mode, entered', [('train', 0), ('plan', 1)])
def test_engines_and_seal_key_are_entered_once(
  monkeypatch, tmp_path, mode, entered
):
  """By `train` itself, for callers from Python; else by the command line."""
  seen = []
  trusting = lambda key: contextlib.nullcontext(seen.append(key))
  monkeypatch.setattr(main.seal_key, 'trusting', trusting)
  key = tmp_path / 'key'
  key.write_text('secret')
  words = ['--run_dir=new', '--data.input=stdlib', f'--mode={mode}']
  words += [f'--checkpoint.seal_key_file={key}']
  assert _run_mode(monkeypatch, lambda _: None, *words) == 0
  assert seen == [str(key)] * entered


def test_sigterm_while_preparing_leaves_nothing(tmp_path):
  words = ['--mode=prepare', '--data.input=stdlib']
  with subprocess.Popen(
    [sys.executable, '-m', 'zaya_jax.main', *words, f'--output={tmp_path}/out'],
    cwd=ROOT,
    stderr=subprocess.PIPE,
    text=True,
  ) as process:
    assert process.stderr.readline().startswith('preparing')
    process.terminate()
    assert process.wait(60) == 75
  assert list(tmp_path.iterdir()) == []


def test_every_mode_has_a_module():
  (hint,) = [
    s.kind
    for _, _, found in flags.sections(config.Config)
    for s in found
    if s.name == 'mode'
  ]
  assert set(main._MODES) == set(hint.__args__)


FLAGS = 'processor: 0\nflags: sse2 avx2\n'


@pytest.fixture
def kept_in(monkeypatch, tmp_path):
  """A function: what the CPU tells, variables -> where programs are kept."""

  def call(cpuinfo=FLAGS, home=tmp_path, **environment):
    with monkeypatch.context() as patch:
      # Set and deleted, so that what main sets is undone.
      patch.setenv('JAX_COMPILATION_CACHE_DIR', '')
      patch.delenv('JAX_COMPILATION_CACHE_DIR')
      patch.setattr(os.path, 'expanduser', lambda p: p.replace('~', str(home)))
      for name, value in environment.items():
        patch.setenv(name, value)
      patch.setattr(
        main, 'open', lambda path: io.StringIO(cpuinfo), raising=False
      )
      assert _run_mode(patch, lambda _: None) == 0
      return os.environ.get('JAX_COMPILATION_CACHE_DIR')

  return call


def test_compiled_programs_are_kept_for_this_kind_of_cpu(kept_in, tmp_path):
  here = kept_in()
  assert os.path.dirname(here) == str(tmp_path / '.cache' / 'zaya_jax')
  assert kept_in() == here
  assert kept_in(FLAGS.replace('avx2', 'avx')) != here
  assert kept_in(FLAGS + FLAGS.replace('0', '1')) == here  # Another core.
  assert kept_in(JAX_COMPILATION_CACHE_DIR='mine') == 'mine'
  assert kept_in(home='~') is None


@pytest.mark.parametrize('mode, kept', [(0o700, True), (0o777, False)])
def test_programs_that_others_could_write_are_not_used(kept_in, mode, kept):
  os.chmod(kept_in(), mode)
  assert (kept_in() is not None) == kept


PACKAGE = """
import sys
import zaya_jax
assert 'jax' not in sys.modules and 'numpy' not in sys.modules
module = type(sys)('zaya_jax.train.run')
module.train = lambda config: 'trained'
sys.modules['zaya_jax.train.run'] = module
data = zaya_jax.DataConfig(input='stdlib')
config = zaya_jax.Config(run_dir='new', data=data)
"""


@pytest.mark.parametrize(
  'use',
  [
    'assert zaya_jax.train(config) == "trained"',
    'import zaya_jax.train; assert zaya_jax.train(config) == "trained"',
    'import zaya_jax.train.run; assert zaya_jax.train(config) == "trained"',
    'from zaya_jax import train; assert train(config) == "trained"',
    'from zaya_jax.train import loop; zaya_jax.train(config)',
  ],
)
def test_train_is_a_function_and_a_package(use):
  done = _python('-W', 'error', '-c', PACKAGE + use)
  assert done.returncode == 0, done.stderr


def test_train_from_python_checks_paths_before_it_imports_jax():
  done = _python(
    '-c',
    'import sys, zaya_jax\n'
    'try:\n  zaya_jax.train(zaya_jax.Config(run_dir="new"))\n'
    'except zaya_jax.UsageError: print("jax" in sys.modules)',
  )
  assert (done.stdout, done.stderr) == ('False\n', '')


def test_package_has_no_other_attributes():
  done = _python('-c', 'import zaya_jax; zaya_jax.trian')
  assert "module 'zaya_jax' has no attribute 'trian'" in done.stderr


def test_package_offers_the_sections():
  done = _python('-c', 'import zaya_jax as z; z.Config(model=z.ModelConfig())')
  assert done.returncode == 0, done.stderr


# Signals this process when a module is looked for.
STOP = """
import os, signal, sys
class Finder:
  def find_spec(self, name, path=None, target=None):
    if name == os.environ['AT']:
      os.kill(os.getpid(), getattr(signal, os.environ['SIGNAL']))
sys.meta_path.insert(0, Finder())
"""


# Ctrl-C while a destructor runs, in which Python ignores what is raised.
LOST = """
import signal, time
from zaya_jax import main
class Array:
  def __del__(self):
    signal.raise_signal(signal.SIGINT)
main._interrupt_by_signals()
try:
  array = Array()
  del array
  time.sleep(60)
except KeyboardInterrupt:
  print('heard')
"""


def test_ctrl_c_in_a_destructor_is_heard():
  done = _python('-c', LOST)
  assert (done.stdout, done.stderr) == ('heard\n', '')


# Signals this process as the interpreter ends.
LATE = """
import atexit, os, signal
end = lambda: os.kill(os.getpid(), getattr(signal, os.environ['SIGNAL']))
atexit.register(end)
"""


@pytest.mark.parametrize('name', ['SIGINT', 'SIGTERM'])
@pytest.mark.parametrize('words, code', [('--version', 0), ('--seed=-1', 2)])
def test_stop_when_all_is_done_changes_no_exit_code(
  tmp_path, name, words, code
):
  (tmp_path / 'sitecustomize.py').write_text(LATE)
  path = f'{tmp_path}:{ROOT}'
  args = ('-m', 'zaya_jax.main', words)
  done = _python(*args, PYTHONPATH=path, SIGNAL=name)
  assert done.returncode == code
  assert 'KeyboardInterrupt' not in done.stderr
  assert 'stopped' not in done.stderr


@pytest.mark.parametrize('name', ['SIGINT', 'SIGTERM'])
@pytest.mark.parametrize(
  'at, words',
  [
    ('typing', '--help'),
    ('absl', '--help'),
    ('zaya_jax.config.flags', '--help'),
    ('zaya_jax.config.help', '--help'),
    ('zaya_jax.runtime.rank', '--help'),
    # jaxlib aborts, with pages of text, when its import is interrupted.
    ('jax', '--mode=conform'),
  ],
)
def test_stop_while_modules_are_imported_is_tidy(tmp_path, name, at, words):
  (tmp_path / 'sitecustomize.py').write_text(STOP)
  path = f'{tmp_path}:{ROOT}'
  done = _python(
    *('-m', 'zaya_jax.main', words), PYTHONPATH=path, AT=at, SIGNAL=name
  )
  assert (done.returncode, done.stderr) == (75, 'zaya_jax: stopped.\n')
  assert done.stdout == ''
