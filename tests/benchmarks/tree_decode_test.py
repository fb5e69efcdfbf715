# SPDX-License-Identifier: Apache-2.0
"""Bytes that are read off programs, beside closed forms; no times."""

import pytest

from benchmarks import traffic, tree_decode

H, K, C = tree_decode.HEADS, tree_decode.KV_HEADS, tree_decode.CHANNELS
S, TOKENS = 64, 3

# What XLA makes of collectives on GPUs: asynchronous pairs, several arrays in
# one, wrapped programs, and loops that are partly unrolled.
GPU = """HloModule jit_f, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

%wrapped (p: f32[5]) -> f32[5] {
  %p = f32[5]{0} parameter(0)
  ROOT %all-reduce.1 = f32[5]{0} all-reduce(%p), to_apply=%sum
}

%body (c: (s32[], f32[5])) -> (s32[], f32[5]) {
  %c = (s32[], f32[5]{0}) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %x = f32[5]{0} get-tuple-element(%c), index=1
  %m = pred[2,2]{1,0} constant({
    { 1, 0 },
    { 0, 1 } })
  %start = ((f32[5]{0}), f32[5]{0}) async-start(%x), calls=%wrapped
  %done = f32[5]{0} async-done(%start), calls=%wrapped
  ROOT %t = (s32[], f32[5]{0}) tuple(%i, %done)
}

ENTRY %main (x: f32[2,5], y: bf16[3]) -> f32[5] {
  %x.1 = f32[2,5]{1,0} parameter(0)
  %y = bf16[3]{0} parameter(1)
  %r = (f32[2,5]{1,0}, bf16[3]{0}) all-reduce-start(%x.1, %y), to_apply=%sum
  %r.1 = (f32[2,5]{1,0}, bf16[3]{0}) all-reduce-done(%r)
  %s = (bf16[3]{0}, bf16[3]{0}, u32[]) collective-permute-start(%y)
  %s.1 = bf16[3]{0} collective-permute-done(%s)
  %t.1 = (s32[], f32[5]{0}) tuple(%x.1, %y)
  ROOT %w = (s32[], f32[5]{0}) while(%t.1), body=%body, LENGTH
}
""".replace('LENGTH', 'backend_config={"known_trip_count":{"n":"7"}}')


def measured(way, devices, dtype='float32'):
  _, hlo = tree_decode._program(way, devices, S, dtype, TOKENS)
  payload, sent = traffic.count(hlo, devices)
  return payload / TOKENS, sent / TOKENS


@pytest.mark.parametrize('devices', [2, 8])
def test_bytes_of_compiled_programs_have_closed_forms(devices):
  n = devices
  tree = 4 * (H * C + 2 * H)  # Outputs, maxima and weights.
  assert measured('tree', n) == (tree, tree * 2 * (n - 1) / n)
  ring = 4 * (n - 1) * H * (C + 1)
  assert measured('ring', n) == (ring, ring)
  keys = 4 * (n - 1) * 2 * K * (S // n) * C
  assert measured('ring_of_keys', n) == (keys, keys)


def test_one_device_sends_nothing():
  assert measured('one', 1)[1] == 0


def test_programs_of_gpus_are_read():
  each = 4 * 2 * 5 + 2 * 3 + 7 * 4 * 5  # One all-reduce, and one in the loop.
  assert traffic.count(GPU, 4) == (each + 6, 1.5 * each + 6)


@pytest.mark.parametrize(
  'old, new, message',
  [
    ('"7"', 'unknown', 'a loop of unknown length'),
    (' all-reduce-start', ' all-gather-start', 'bytes of all-gather-start'),
  ],
)
def test_what_cannot_be_counted_is_refused(old, new, message):
  with pytest.raises(ValueError, match=message):
    traffic.count(GPU.replace(old, new), 4)


def test_ways_agree_and_have_a_row():
  row = tree_decode.measure(S, 2, 'float32', TOKENS, repeats=1)
  assert list(row['ways']) == ['one', 'tree', 'ring', 'ring_of_keys']
  for way in row['ways'].values():
    assert way['ms'] > 0 and way['difference'] < 1e-5
  tree, ring = row['ways']['tree'], row['ways']['ring']
  assert row['ms_tree_over_ring'] == tree['ms'] / ring['ms']
  assert row['sent_tree_over_ring'] == tree['sent'] / ring['sent']
  assert len(tree_decode.table([row, row]).splitlines()) == 4
