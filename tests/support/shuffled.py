# SPDX-License-Identifier: Apache-2.0
"""The order in which prepared data hold documents: by hash of their text."""

import hashlib
from collections.abc import Iterable


def text_hash(text: str) -> int:
  """BLAKE2b, 64 bits, little endian."""
  digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
  return int.from_bytes(digest, 'little')


def in_order(texts: Iterable[str]) -> list[str]:
  """Each text once, in the order of the shards."""
  return sorted(set(texts), key=text_hash)
