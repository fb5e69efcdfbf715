# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium that a test drives over a pipe; no library is needed.

Its DevTools protocol: JSON messages, each ended by a zero byte.
"""

import base64
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

PROGRAM = shutil.which('chromium') or shutil.which('chromium-browser')
_FLAGS = (
  '--headless=new',
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--disable-sync',
  '--disable-extensions',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-dev-shm-usage',
  '--no-first-run',
  '--remote-debugging-pipe',
)


def one() -> Iterator['Browser']:
  """A fixture: a browser that ends with the tests."""
  made = Browser()
  yield made
  made.close()


class Browser:
  """One tab. `faults` are what a page should not do; `requests` its fetches."""

  def __init__(self):
    self.faults: list[str] = []
    self.requests: list[str] = []
    self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    down, self._write = os.pipe()
    self._read, up = os.pipe()
    # The program takes commands from file 3 and answers on file 4. Moved up
    # first: a number that is to be replaced may be one of ours.
    script = f'exec 3<&{down} 4>&{up}; exec "$@"'
    self._process = subprocess.Popen(
      [
        'bash',
        '-c',
        script,
        'bash',
        PROGRAM,
        *_FLAGS,
        self._folder,
        'about:blank',
      ],
      pass_fds=(down, up),
      stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    os.close(down)
    os.close(up)
    self._left, self._count, self._session = b'', 0, None
    target = self.call('Target.createTarget', url='about:blank')['targetId']
    self._session = self.call(
      'Target.attachToTarget', targetId=target, flatten=True
    )['sessionId']
    for domain in ('Page', 'Runtime', 'Log', 'Network'):
      self.call(f'{domain}.enable')

  @property
  def _folder(self) -> str:
    return f'--user-data-dir={self._profile.name}'

  def close(self) -> None:
    os.close(self._write)
    self._process.terminate()
    self._process.wait()
    os.close(self._read)
    self._profile.cleanup()

  def call(self, method: str, **params: Any) -> dict[str, Any]:
    """Sends a command and waits for its answer."""
    self._count += 1
    message = {'id': self._count, 'method': method, 'params': params}
    if self._session:
      message['sessionId'] = self._session
    os.write(self._write, json.dumps(message).encode() + b'\0')
    while True:
      answer = self._receive()
      if answer.get('id') == self._count:
        assert 'error' not in answer, (method, answer['error'])
        return answer['result']

  def open(self, url: str, *, width=1280, dark=False, whole=True) -> None:
    """Opens a page and waits until it has drawn its figures, or the first."""
    self.faults.clear()
    self.requests.clear()
    self.call(
      'Emulation.setDeviceMetricsOverride',
      width=width,
      height=900,
      deviceScaleFactor=1,
      mobile=False,
    )
    scheme = {
      'name': 'prefers-color-scheme',
      'value': 'dark' if dark else 'light',
    }
    self.call('Emulation.setEmulatedMedia', features=[scheme])
    self.call('Page.navigate', url='about:blank')
    self.call('Page.navigate', url=url)
    self.wait('document.documentElement?.dataset.drawn')
    if whole:  # What is out of sight too, as before it is printed.
      self.run("dispatchEvent(new Event('beforeprint'))")

  def wait(self, condition: str) -> None:
    """Waits until a JavaScript expression is true."""
    script = (
      'new Promise((done, fail) => {const end = Date.now() + 30000;'
      f'const look = () => {{ if ({condition}) done(true); else if'
      ' (Date.now() > end) fail("never true"); else setTimeout(look, 20)};'
      'look()})'
    )
    assert self.run(script) is True

  def run(self, script: str) -> Any:
    """The value of a JavaScript expression; promises are awaited."""
    answer = self.call(
      'Runtime.evaluate',
      expression=script,
      returnByValue=True,
      awaitPromise=True,
      userGesture=True,
    )
    assert 'exceptionDetails' not in answer, answer['exceptionDetails']
    return answer['result'].get('value')

  def press(self, key: str, code: int) -> None:
    """Presses a key, with what has the focus."""
    for kind in ('keyDown', 'keyUp'):
      self.call(
        'Input.dispatchKeyEvent',
        type=kind,
        key=key,
        code=key,
        windowsVirtualKeyCode=code,
        **({'text': '\r'} if key == 'Enter' and kind == 'keyDown' else {}),
      )

  def screenshot(self, path: pathlib.Path, height: int | None = None) -> None:
    """Writes a picture of the whole page."""
    size = self.call('Page.getLayoutMetrics')['cssContentSize']
    clip = {'x': 0, 'y': 0, 'width': size['width'], 'scale': 1}
    clip['height'] = height or size['height']
    data = self.call(
      'Page.captureScreenshot', captureBeyondViewport=True, clip=clip
    )['data']
    path.write_bytes(base64.b64decode(data))

  def _receive(self) -> dict[str, Any]:
    while b'\0' not in self._left:
      more = os.read(self._read, 1 << 20)
      assert more, 'Chromium has ended.'
      self._left += more
    line, _, self._left = self._left.partition(b'\0')
    event = json.loads(line)
    params = event.get('params', {})
    match event.get('method'):
      case 'Runtime.exceptionThrown':
        self.faults.append(str(params['exceptionDetails']))
      case 'Runtime.consoleAPICalled' if params['type'] in ('error', 'warning'):
        self.faults.append(str(params['args']))
      case 'Log.entryAdded' if params['entry']['level'] in ('error', 'warning'):
        self.faults.append(str(params['entry']))
      case 'Network.requestWillBeSent':
        self.requests.append(params['request']['url'])
    return event
