# SPDX-License-Identifier: Apache-2.0
"""Pages in a real browser; left out where there is no Chromium."""

import itertools
import json
import shutil
import threading

import pytest

from tests.support import chromium, run_files
from zaya_jax.report import overview, page, serve

pytestmark = [
  pytest.mark.long,
  pytest.mark.skipif(
    not chromium.PROGRAM, reason='no Chromium: apt-get install chromium'
  ),
]
CURVES = 'loss bpb spread entropy throughput mfu lr grad time'.split()


browser = pytest.fixture(chromium.one, scope='module')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return tmp_path_factory.mktemp('browser')


@pytest.fixture(scope='module')
def run(folder):
  made = run_files.write(folder / 'run', restart_at=100, layers=2)
  _write(made)
  return made


def _write(*runs):
  path = runs[0] / 'report.html'
  page.write(overview.make(overview.read([str(r) for r in runs])), path)
  return path


def _points(browser, figure):
  """Points of each curve that are drawn, or bricks of a heat map."""
  return browser.run(
    f"document.querySelector('#{figure} .plot').data.map(t => t.x.length)"
  )


def _is_local(request, run):
  return request.startswith(('data:image/', 'blob:', run.as_uri()))


@pytest.mark.parametrize('width', [1280, 400])
@pytest.mark.parametrize('dark', [False, True])
def test_page_draws_all_figures_without_an_error(browser, run, width, dark):
  browser.open((run / 'report.html').as_uri(), width=width, dark=dark)
  assert browser.faults == []
  for figure in (*CURVES, 'experts'):
    drawn = f"document.querySelectorAll('#{figure} .main-svg').length"
    assert browser.run(drawn) >= 2, figure
    assert all(_points(browser, figure)), figure
  assert all(_is_local(request, run) for request in browser.requests)
  # Nothing sticks out to the side.
  assert browser.run('document.documentElement.scrollWidth') <= width
  ink = browser.run('getComputedStyle(document.body).backgroundColor')
  assert (ink == 'rgb(20, 23, 27)') == dark


def test_figures_out_of_sight_are_drawn_when_they_come(browser, run):
  browser.open((run / 'report.html').as_uri(), whole=False)
  drawn = lambda name: f"document.querySelector('#{name} .plot').data"
  assert browser.run(f'!!{drawn("loss")}')
  assert not browser.run(f'!!{drawn("time")}')
  browser.run("document.getElementById('time').scrollIntoView()")
  browser.wait(drawn('time'))
  assert browser.faults == []


def test_layer_is_chosen_by_keyboard_and_remembered(browser, run):
  browser.open((run / 'report.html').as_uri())
  shown = "document.querySelector('#experts .plot').data[0].z[0][0]"
  select = "document.getElementById('experts-choice')"
  first = browser.run(shown)
  browser.run(f'{select}.focus()')
  browser.press('ArrowDown', 40)
  browser.wait(f'{shown} !== {first}')
  assert browser.run(f'{select}.value') == '1'
  assert browser.run('location.hash') == '#experts=1'
  second = browser.run(shown)
  browser.open((run / 'report.html').as_uri() + '#experts=1')
  assert browser.run(shown) == second
  assert browser.faults == []


@pytest.mark.parametrize(
  'state', ['experts=99', 'experts=x', '%', '<b>', 'loss']
)
def test_odd_address_changes_nothing(browser, run, state):
  browser.open(f'{(run / "report.html").as_uri()}#{state}')
  assert browser.run("document.getElementById('experts-choice').value") == '0'
  assert browser.faults == []


def test_tables_open_by_keyboard_with_the_numbers(browser, run):
  browser.open((run / 'report.html').as_uri())
  browser.run("document.querySelector('#loss summary').focus()")
  browser.press('Enter', 13)
  browser.wait("document.querySelector('#loss td')")
  table = "document.querySelector('#loss table')"
  assert browser.run(f'{table}.rows.length') == 22  # With its head.
  names = browser.run(f'[...{table}.rows[0].cells].map(c => c.textContent)')
  assert names == ['step', 'train', 'held out']
  browser.run("document.querySelector('#experts details').open = true")
  browser.wait("document.querySelector('#experts td')")


def test_steps_may_be_logarithmic(browser, run):
  browser.open((run / 'report.html').as_uri())
  kind = "document.querySelector('#loss .plot').layout.xaxis.type"
  assert browser.run(kind) == 'linear'
  browser.run("document.getElementById('log-x').click()")
  browser.wait(f"{kind} === 'log'")


def test_labels_of_logarithmic_axes_are_apart(browser, run):
  browser.open((run / 'report.html').as_uri())
  browser.run("document.getElementById('log-x').click()")
  kind = "document.querySelector('#loss .plot').layout.xaxis.type"
  browser.wait(f"{kind} === 'log'")
  for figure, axis in (('grad', 'y'), ('time', 'y'), ('loss', 'x')):
    boxes = browser.run(
      f"[...document.querySelectorAll('#{figure} .{axis}tick text')].map(t => "
      '{const b = t.getBoundingClientRect(); return [b.left, b.right, b.top, '
      'b.bottom, t.textContent]})'
    )
    low, high = (2, 3) if axis == 'y' else (0, 1)
    ends = sorted((box[low], box[high]) for box in boxes)
    assert len(ends) >= 2, (figure, boxes)
    # Each ends before the next begins, and has no small figures within it.
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends)), boxes
    assert len({round(high - low) for low, high in ends}) == 1 or axis == 'x'


def test_first_losses_are_out_of_the_axis_until_a_double_click(browser, run):
  browser.open((run / 'report.html').as_uri())
  loss = "document.querySelector('#loss .plot')"
  assert browser.run(f'{loss}.layout.yaxis.range[1]') < 4.5
  assert browser.run(f'Math.max(...{loss}.data[0].y)') > 5.5
  browser.run(f'{loss}.scrollIntoView()')
  box = browser.run(
    f'{loss}.querySelector(".nsewdrag").getBoundingClientRect().toJSON()'
  )
  for kind in ('mousePressed', 'mouseReleased') * 2:
    browser.call(
      'Input.dispatchMouseEvent',
      type=kind,
      x=box['x'] + 50,
      y=box['y'] + 50,
      button='left',
      clickCount=1,
    )
  browser.wait(f'{loss}.layout.yaxis.range[1] > 5.5')


def test_one_evaluation_and_zlib_look_different(browser, folder):
  runs = [
    run_files.write(folder / f'runs_{done}', done=done) for done in (90, 200)
  ]
  row = {'step': 90, 'val/bpb': 2.5, 'val/loss': 2.2, 'val/zlib_bpb': 2.02}
  with (runs[0] / 'metrics.jsonl').open('a') as file:
    file.write(json.dumps(row) + '\n')
  browser.open(_write(*runs).as_uri())
  looks = browser.run(
    "document.querySelector('#bpb .plot').data.map(t => "
    '[t.name, t.mode, t.line.color, t.line.dash])'
  )
  (zlib,) = [look for look in looks if look[0] == 'zlib -9']
  assert zlib[1] == 'lines' and zlib[3] == 'dash'
  models = [look for look in looks if look is not zlib]
  assert [look[0] for look in models] == ['runs_90: model', 'runs_200: model']
  assert all(look[1] == 'lines+markers' for look in models)
  assert len({look[2] for look in looks}) == 3
  # Training and held-out text have markers of their own.
  shapes = browser.run(
    "document.querySelector('#loss .plot').data.map(t => t.marker.symbol)"
  )
  assert len(set(shapes[:2])) == 2


@pytest.mark.parametrize('width', [1280, 400])
def test_no_table_is_cut_off(browser, folder, width):
  runs = [
    run_files.write(folder / f'a_run_with_a_name_{i}', restart_at=50)
    for i in range(4)
  ]
  browser.open(_write(*runs).as_uri(), width=width)
  browser.run("document.querySelector('#time details').open = true")
  browser.wait("document.querySelector('#time td')")
  # What does not fit can be scrolled to, whole.
  for place in ("'.wide-scroll'", "'#incidents .scroll'", "'#time .scroll'"):
    box = f'document.querySelector({place})'
    browser.run(f'{box}.scrollLeft = 1e6')
    last = (
      f'[...{box}.querySelectorAll("td")].pop().getBoundingClientRect().right'
    )
    assert browser.run(f'{last} <= {box}.getBoundingClientRect().right + 1')
  assert browser.run('document.documentElement.scrollWidth') <= width


def test_change_of_the_scheme_is_followed(browser, run):
  browser.open((run / 'report.html').as_uri())
  ink = "document.querySelector('#loss .plot').layout.font.color"
  light = browser.run(ink)
  dark = {'name': 'prefers-color-scheme', 'value': 'dark'}
  browser.call('Emulation.setEmulatedMedia', features=[dark])
  browser.wait(f"{ink} !== '{light}'")


def test_hostile_text_runs_nothing(browser, folder):
  run = run_files.write(folder / 'hostile', prompt=run_files.HOSTILE)
  words = {key: run_files.HOSTILE for key in ('time', 'kind', 'seen', 'done')}
  run_files.lines(run / 'incidents.jsonl', [{'step': 50, **words}])
  browser.open(_write(run, run_files.write(folder / '<img src=x>')).as_uri())
  assert browser.run('document.title') == '2 runs compared'
  assert browser.run("document.querySelectorAll('img').length") == 0
  # Where plotly shows a text, it is escaped for its own markup.
  browser.run(
    "Plotly.Fx.hover(document.querySelector('#loss .plot'), {xval: 50})"
  )
  browser.wait("document.querySelector('#loss .hoverlayer *')")
  assert browser.run('document.title') == '2 runs compared'
  assert browser.run("document.querySelectorAll('img, #loss a').length") == 0
  assert browser.faults == []


def test_script_that_got_in_would_not_run(browser, folder):
  run = run_files.write(folder / 'broken')
  path = _write(run)
  path.write_text(
    path.read_text().replace(
      '<main>', '<main><script>document.title=1</script>'
    )
  )
  browser.open(path.as_uri())
  assert browser.run('document.title') == str(run)
  assert 'Content Security Policy' in str(browser.faults)


def test_page_without_the_library_shows_the_numbers(browser, run, folder):
  (folder / 'alone').mkdir()
  shutil.copyfile(run / 'report.html', folder / 'alone' / 'report.html')
  browser.open((folder / 'alone' / 'report.html').as_uri())
  browser.wait("document.querySelectorAll('#loss td').length > 40")
  note = "document.querySelector('header .note').textContent"
  assert 'plotly.min.js is not beside this page' in browser.run(note)


@pytest.mark.parametrize('content', [None, '', '{"step": 1, "train/lo'])
def test_run_with_nothing_in_it_has_a_page(browser, tmp_path, content):
  run = tmp_path / 'run'
  run.mkdir()
  if content is not None:
    (run / 'metrics.jsonl').write_text(content)
  browser.open(_write(run).as_uri())
  assert browser.run("document.querySelectorAll('.main-svg').length") == 0
  assert browser.run("document.querySelectorAll('section .note').length") == 12
  assert browser.faults == []


def test_served_page_is_the_same(browser, run):
  with serve.make_server([str(run)], 0) as server:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
      url = f'http://127.0.0.1:{server.server_port}/'
      browser.open(url)
      assert browser.faults == []
      assert all(_points(browser, 'loss'))
      assert all(r.startswith((url, 'data:')) for r in browser.requests)
    finally:
      server.shutdown()
      thread.join()
