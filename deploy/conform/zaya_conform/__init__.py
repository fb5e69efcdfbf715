# SPDX-License-Identifier: Apache-2.0
"""Compares an implementation of ZAYA1 with the conformance kit.

from zaya_conform import conformance

report = conformance.check({'logits': logits})
"""
