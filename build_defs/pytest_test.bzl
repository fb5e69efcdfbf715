# SPDX-License-Identifier: Apache-2.0
"""Tests in pytest style, which need no __main__ block."""

load("@rules_python//python:py_test.bzl", "py_test")

def pytest_tests(srcs, deps, data = [], smoke = [], **kwargs):
    """One py_test per file, named like it: ops/scale_test.py, ops/scale_test.

    Args:
      srcs: the test files.
      deps: what each of them may import.
      data: files that each of them may read.
      smoke: those of them that `make bazel-test` runs.
      **kwargs: passed to py_test.
    """
    for src in smoke:
        if src not in srcs:
            fail("%s is gone; take another small test." % src)
    for src in srcs:
        py_test(
            name = src[:-len(".py")],
            srcs = [
                src,
                "//build_defs:pytest_main.py",
            ],
            main = "//build_defs:pytest_main.py",
            args = ["$(rootpath %s)" % src],
            data = data,
            tags = ["smoke"] if src in smoke else [],
            # 900 s: two tests share two cores with the compiler of each.
            timeout = "long",
            deps = deps + ["//build_defs:pytest_main"],
            **kwargs
        )
