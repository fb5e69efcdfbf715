# SPDX-License-Identifier: Apache-2.0
"""Counters of a metrics endpoint that rise."""

import http.server
import io
import threading

import pytest

from zaya_jax.aegis.watch import scrape

METRICS = """# HELP gpu_ecc_uncorrect_umc Errors
# TYPE gpu_ecc_uncorrect_umc counter
gpu_ecc_uncorrect_umc{{gpu_id="0",hostname="n7"}} 0
gpu_ecc_uncorrect_umc{{gpu_id="1",hostname="n7"}} {}
gpu_junction_temperature{{gpu_id="1",hostname="n7"}} 51.5
nonsense
gpu_ecc_uncorrect_sdma{{gpu_id="1"}} NaN
gpu_ecc_uncorrect_gfx{{gpu_id="1"}} many
"""


def test_counters_count_from_the_first_text():
  counters = scrape.Counters()
  assert counters.rises(METRICS.format(7)) == []
  assert counters.rises(METRICS.format(7)) == []
  name = 'gpu_ecc_uncorrect_umc{gpu_id="1",hostname="n7"}'
  assert counters.rises(METRICS.format(9)) == [(name, 2)]
  assert counters.rises(METRICS.format(0)) == []  # The driver was reloaded.
  assert counters.rises(METRICS.format(1)) == [(name, 1)]


def test_labels_are_those_of_the_line_and_cannot_be_forged():
  counters = scrape.Counters()
  lines = (
    'plain {}',
    'xgmi_total{{ gpu_id = "0" , }} {} 1700000000000',
    'hbm{{job="a\\",gpu_id=\\"7",gpu_id="1"}} {}',
    'long{{job="' + 'x' * 5000 + '"}} {}',
  )
  text = '# TYPE plain counter\n' + '\n'.join(lines)
  counters.rises(text.format(*[1] * 4))
  assert counters.rises(text.format(*[1.5] * 4)) == [
    ('plain', 1),
    ('xgmi_total{gpu_id="0"}', 1),
    ('hbm{job="a\\",gpu_id=\\"7",gpu_id="1"}', 1),
  ]


def test_number_of_counters_is_bounded(monkeypatch):
  monkeypatch.setattr(scrape, '_SERIES', 2)
  counters = scrape.Counters()
  counters.rises('a 1\nb 1\nc 1\n')
  assert counters.rises('a 2\nb 2\nc 2\n') == [('a', 1), ('b', 1)]


def test_cut_text_hides_no_rise_and_makes_none():
  counters = scrape.Counters()
  counters.rises('a 10\nb 10\nc 10\n')
  assert counters.rises('a 11\nb 1') == [('a', 1)]  # Cut within 12.
  assert counters.rises('a 11\nb 12\nc 13\n') == [('b', 2), ('c', 3)]


@pytest.mark.parametrize('text', ['', '<html>\n', 'gpu_ecc'])
def test_text_without_metrics_is_told_and_forgets_nothing(text):
  counters = scrape.Counters()
  counters.rises('a 10\n')
  with pytest.raises(ValueError, match='no metrics'):
    counters.rises(text)
  assert counters.rises('a 12\n') == [('a', 2)]


def test_whatever_goes_wrong_is_told_and_the_next_text_is_read(monkeypatch):
  texts = iter([RuntimeError('a bug'), [('a', 1)]])

  def rises(self, text):
    found = next(texts, [])
    if isinstance(found, Exception):
      raise found
    return found

  monkeypatch.setattr(scrape.Counters, 'rises', rises)
  opened = lambda *_, **__: io.BytesIO(b'a 1\n')  # noqa: E731
  monkeypatch.setattr(scrape.urllib.request.OpenerDirector, 'open', opened)
  scraper, failures, found = scrape.Scraper('http://x', every_s=0.01), set(), []
  while not found:
    failures.add(scraper.failure)
    found = scraper.read()
  scraper.close()
  assert found == [('a', 1)]


def test_scraper_reads_an_endpoint_and_survives_its_loss():
  texts = iter([METRICS.format(1), 'broken', 'cut', METRICS.format(1)])
  served = threading.Event()

  class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
      text = next(texts, METRICS.format(4))
      self.send_response(500 if text == 'broken' else 200)
      if text == 'cut':  # Two of five characters.
        self.send_header('Transfer-Encoding', 'chunked')
        text = '5\r\nab'
      self.end_headers()
      self.wfile.write(text.encode())
      if '} 4' in text:
        served.set()

    def log_message(self, *args):
      pass

  server = http.server.HTTPServer(('127.0.0.1', 0), Handler)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  scraper = scrape.Scraper(
    f'http://127.0.0.1:{server.server_address[1]}/metrics', every_s=0.01
  )
  try:
    assert served.wait(30)
    rises = []
    while not rises:
      rises = scraper.read()
    assert rises == [('gpu_ecc_uncorrect_umc{gpu_id="1",hostname="n7"}', 3)]
  finally:
    scraper.close()
    server.shutdown()
    server.server_close()


def test_endpoint_that_is_not_there_is_a_word_not_an_error():
  scraper = scrape.Scraper('http://127.0.0.1:9/metrics', every_s=0.01)
  while not scraper.failure:
    assert scraper.read() == []
  scraper.close()
