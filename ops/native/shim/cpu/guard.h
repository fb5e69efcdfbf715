// SPDX-License-Identifier: Apache-2.0
// Between XLA and an emulated handler: kernels get copies of the buffers with
// margins. A result holds NaN before it is written, and around it; an argument
// has large numbers around it, since NaN stays NaN in what is written outside.
// That, or an argument that is written, fails the launch.
#pragma once
#include <cstring>
#include <memory>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace emulation {

struct Copy {
  static constexpr size_t kOutside = 512 << 10;
  void* original;
  size_t size;
  bool result;  // Also if it is an argument too.
  unsigned char fill;
  std::vector<unsigned char> memory;

  Copy(void* original, size_t size, bool result)
      : original(original),
        size(size),
        result(result),
        fill(result ? 0xff : 0xfb),  // -2.6e36 in 32 bits, -65,376 in float16.
        memory(size + 2 * kOutside + 64, fill) {}
  unsigned char* data() {  // Aligned as XLA's buffers are.
    auto address = reinterpret_cast<uintptr_t>(memory.data() + kOutside);
    return reinterpret_cast<unsigned char*>((address + 63) / 64 * 64);
  }
  bool intact() {
    auto is_margin = [this](unsigned char byte) { return byte == fill; };
    return std::all_of(memory.data(), data(), is_margin) &&
           std::all_of(data() + size, memory.data() + memory.size(),
                       is_margin) &&
           (result || !size || !std::memcmp(data(), original, size));
  }
};

inline XLA_FFI_Error* guarded(XLA_FFI_CallFrame* frame,
                              XLA_FFI_Handler* handler) {
  std::vector<std::unique_ptr<Copy>> copies;
  std::vector<std::pair<XLA_FFI_Buffer*, Copy*>> buffers;
  auto add = [&](void* item, bool result) {
    auto* buffer = static_cast<XLA_FFI_Buffer*>(item);
    size_t size = xla::ffi::ByteWidth(xla::ffi::DataType(buffer->dtype));
    for (int64_t i = 0; i < buffer->rank; ++i) size *= buffer->dims[i];
    Copy* copy = nullptr;  // A result may have the memory of an argument.
    for (auto& other : copies)
      if (size && other->original == buffer->data) copy = other.get();
    if (!copy) {
      copies.push_back(std::make_unique<Copy>(buffer->data, size, result));
      copy = copies.back().get();
      if (size && !result) std::memcpy(copy->data(), buffer->data, size);
    }
    copy->result |= result;
    buffers.emplace_back(buffer, copy);
  };
  auto& args = frame->args;
  auto& rets = frame->rets;
  for (int64_t i = 0; i < args.size; ++i) add(args.args[i], false);
  for (int64_t i = 0; i < rets.size; ++i) add(rets.rets[i], true);
  for (auto& [buffer, copy] : buffers) buffer->data = copy->data();
  is_intact = [&] {
    return std::all_of(copies.begin(), copies.end(),
                       [](auto& copy) { return copy->intact(); });
  };
  XLA_FFI_Error* error = handler(frame);
  is_intact = nullptr;
  for (auto& [buffer, copy] : buffers) buffer->data = copy->original;
  for (auto& copy : copies)
    if (copy->result && copy->size)
      std::memcpy(copy->original, copy->data(), copy->size);
  return error;
}

}  // namespace emulation
