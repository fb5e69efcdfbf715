// SPDX-License-Identifier: Apache-2.0
// What this library is: the loader (__init__.py) refuses another one.
#define ZAYA_STRING_(x) #x
#define ZAYA_STRING(x) ZAYA_STRING_(x)

// "interface jax target arch"; the first one is `INTERFACE` of __init__.py and
// changes with the arguments or attributes of any handler.
extern "C" const char* zaya_ops_built_for() {
  return "3 " ZAYA_STRING(ZAYA_JAX) " " ZAYA_STRING(ZAYA_TARGET) " "  //
      ZAYA_STRING(ZAYA_ARCH);
}
