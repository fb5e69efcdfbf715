# SPDX-License-Identifier: Apache-2.0
"""Many clients at once, some of which leave or are slow; nothing is left."""

import asyncio
import gc
import os
import random
import threading
import time

import httpx2
import pytest

from tests.support import serving
from zaya_jax.inference.serve import jobs

CLIENTS = 64
SECONDS = float(os.environ.get('ZAYA_LOAD_SECONDS', '20'))


class Client:
  """One that asks again and again, each time in a way of its own."""

  def __init__(self, number, url, http, expected):
    self._chance = random.Random(number)
    self._url, self._http, self._expected = url, http, expected
    self.done = dict.fromkeys(('whole', 'stream', 'left', 'slow', 'full'), 0)

  async def run(self, end):
    while time.monotonic() < end:
      prompt = self._chance.choice(list(self._expected))
      kind = self._chance.choice(('whole', 'whole', 'stream', 'left', 'slow'))
      body = {'prompt': prompt, 'max_tokens': 24, 'temperature': 0}
      asked = getattr(self, f'_{kind}')
      try:
        text = await asked(body)
      except _Full:
        self.done['full'] += 1
        await asyncio.sleep(0.05)
        continue
      assert text in (None, self._expected[prompt])
      self.done[kind] += 1

  async def _whole(self, body):
    found = await self._http.post(f'{self._url}/v1/completions', json=body)
    _check(found.status_code)
    return found.json()['choices'][0]['text']

  async def _stream(self, body, wait=0.0, most=None):
    text, count = '', 0
    body = {**body, 'stream': True}
    async with self._http.stream(
      'POST', f'{self._url}/v1/completions', json=body
    ) as found:
      _check(found.status_code)
      async for line in found.aiter_lines():
        if line.startswith('data: {'):
          text += httpx2.Response(200, text=line[6:]).json()['choices'][0][
            'text'
          ]
          count += 1
          await asyncio.sleep(wait)
        if count == most:
          return None
    return text

  async def _left(self, body):
    return await self._stream({**body, 'max_tokens': 150}, most=2)

  async def _slow(self, body):
    return await self._stream(body, wait=0.05)


class _Full(Exception):
  pass


def _check(status):
  if status == 429:
    raise _Full
  assert status == 200


async def crowd(url, expected, end):
  limits = httpx2.Limits(max_connections=None)
  async with httpx2.AsyncClient(timeout=120, limits=limits) as http:
    clients = [Client(i, url, http, expected) for i in range(CLIENTS)]
    await asyncio.gather(*(client.run(end) for client in clients))
  return [client.done for client in clients]


def files():
  return len(os.listdir('/proc/self/fd'))


@pytest.mark.long
def test_crowd_is_served_and_leaves_nothing():
  model = serving.model()
  prompts = [f'prompt {"x" * n}' for n in range(0, 60, 7)]
  expected = {prompt: model.generate(prompt, 24)[0] for prompt in prompts}
  engine = serving.engine(model, count=8, waiting=40, pieces=(64,))
  with serving.hosted(engine, model.tokenizer) as url:
    asyncio.run(crowd(url, expected, time.monotonic() + 1))
    before = files(), threading.active_count()
    done = asyncio.run(crowd(url, expected, time.monotonic() + SECONDS))
    end = time.monotonic() + 60
    while engine.busy or engine.waiting or files() > before[0]:
      assert time.monotonic() < end, (engine.busy, engine.waiting, files())
      time.sleep(0.1)
    assert threading.active_count() <= before[1]
    metrics = httpx2.get(f'{url}/metrics').text
    assert 'status="500"' not in metrics
  total = {kind: sum(one[kind] for one in done) for kind in done[0]}
  print(total)
  assert min(total.values()) > 0  # The queue was full at times, too.
  engine.close()
  del engine
  gc.collect()
  assert not [x for x in gc.get_objects() if isinstance(x, jobs.Job)]


@pytest.mark.long
def test_a_thousand_connections_are_no_trouble():
  model = serving.model()
  engine = serving.engine(model, pieces=(64,))

  async def ask(url, http):
    host, port = url.removeprefix('http://').split(':')
    idle = [await asyncio.open_connection(host, port) for _ in range(1000)]
    found = await http.post(f'{url}/v1/completions', json={'prompt': 'x'})
    for _, writer in idle:
      writer.close()
    return found.status_code

  async def both(url):
    async with httpx2.AsyncClient(timeout=60) as http:
      return await ask(url, http)

  from zaya_jax.inference.serve import listen

  listen.allow_files()
  with serving.hosted(engine, model.tokenizer) as url:
    assert asyncio.run(both(url)) == 200
  engine.close()
