// SPDX-License-Identifier: Apache-2.0
// What XLA calls: one handler per kernel, the symbol zaya_NAME.
#pragma once
#include <string>

#include "port.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

#if defined(ZAYA_EMULATION)
#include "shim/cpu/guard.h"
// XLA's CPU has no stream; the handler is written as if.
struct Stream {};
template <>
struct xla::ffi::CtxDecoding<Stream> {
  using Type = hipStream_t;
  static std::optional<Type> Decode(const XLA_FFI_Api*,
                                    XLA_FFI_ExecutionContext*,
                                    DiagnosticEngine&) {
    return hipStream_t{};
  }
};
#else
using Stream = ffi::PlatformStream<hipStream_t>;
#endif

// What the handler returns after its launches.
inline ffi::Error launched() {
  hipError_t error = hipGetLastError();
  if (error == hipSuccess) return ffi::Error::Success();
  return ffi::Error::Internal(std::string("zaya_ops: ") +
                              hipGetErrorString(error));
}

// ZAYA_HANDLER(name, function, Bind().Arg<..>().Attr<..>("..").Ret<..>());
// the function's first argument is the stream. A launch may become part of a
// command buffer (HIP graph): it depends on its arguments only.
#if defined(ZAYA_EMULATION)
#define ZAYA_HANDLER(name, function, binding)                       \
  XLA_FFI_DEFINE_HANDLER(name##_unguarded, function,                \
                         ffi::Ffi::binding);                        \
  extern "C" XLA_FFI_Error* zaya_##name(XLA_FFI_CallFrame* frame) { \
    return emulation::guarded(frame, name##_unguarded);             \
  }
#else
#define ZAYA_HANDLER(name, function, binding)          \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(zaya_##name, function, \
                                ffi::Ffi::binding,     \
                                {ffi::Traits::kCmdBufferCompatible})
#endif
