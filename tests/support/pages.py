# SPDX-License-Identifier: Apache-2.0
"""Pages as a browser would read them."""

import html.parser
import json
from typing import Any


class Parsed(html.parser.HTMLParser):
  """Tags, ids, links, scripts, words and policy of a page."""

  def __init__(self, text):
    super().__init__()
    self.tags, self.ids, self.links, self.scripts = [], [], [], []
    self.words, self._data, self._inside = '', '', None
    self.feed(text)
    self.close()

  def handle_starttag(self, tag, attrs):
    attrs = dict(attrs)
    self.tags.append(tag)
    assert not [name for name in attrs if name.startswith('on')]
    self.links += [attrs[k] for k in ('src', 'href') if k in attrs]
    if 'id' in attrs:
      self.ids.append(attrs['id'])
    self._inside = tag
    if tag == 'script':
      self.scripts.append('')
    if attrs.get('http-equiv') == 'Content-Security-Policy':
      self.policy = attrs['content']

  def handle_data(self, data):
    if self._inside == 'script':
      self.scripts[-1] += data
    elif self._inside != 'style':
      self.words += data

  def handle_endtag(self, tag):
    self._inside = None


def figures(text: str) -> dict[str, dict[str, Any]]:
  """The figures in the data of a page, by id."""
  (data,) = [s for s in Parsed(text).scripts if s.startswith('{')]
  return {figure['id']: figure for figure in json.loads(data)['figures']}
