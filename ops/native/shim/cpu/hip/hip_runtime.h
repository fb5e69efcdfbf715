// SPDX-License-Identifier: Apache-2.0
// Runs HIP kernels on the CPU, to test them: one block after the other, one
// fiber per thread, waves of 64 lanes.
//
// Between two barriers one wave after the other runs as far as it can, in
// random order: what a missing barrier spoils, is spoiled. Shared memory holds
// NaN when a block begins. A launch stops, and hipGetLastError tells it, where
// a barrier or a wave's instruction is not reached by all threads at the same
// line, and where memory is written outside of what the kernel has (guard.h).
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#define ZAYA_EMULATION 1
#define __HIP_PLATFORM_AMD__ 1
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline dim3 threadIdx, blockIdx, blockDim, gridDim;
typedef void* hipStream_t;
typedef int hipError_t;
constexpr hipError_t hipSuccess = 0;

namespace emulation {

enum State { kReady, kAtInstruction, kAtBarrier, kDone };

struct Fiber {
  ucontext_t start;
  jmp_buf place;
  std::vector<char> stack = std::vector<char>(128 << 10);
  bool started = false;
  State state = kReady;
  dim3 thread;
  // Where it waits; of a wave's instruction: what it does, from and to where.
  int line = 0;
  void (*instruction)(Fiber** lanes, int count) = nullptr;
  const void* in = nullptr;
  void* out = nullptr;
};

inline std::mutex one_launch;
inline std::vector<Fiber> fibers;
inline Fiber* current;
inline jmp_buf scheduler;
inline std::function<void()> body;
inline std::vector<unsigned char> arena;  // Shared memory, then a margin.
inline thread_local std::string error;
inline thread_local std::function<bool()> is_intact;  // See guard.h.
constexpr size_t kMargin = 4096;
constexpr int kLanes = 64;

inline void* shared_memory() {
  auto address = reinterpret_cast<uintptr_t>(arena.data());
  return reinterpret_cast<void*>((address + 63) / 64 * 64);
}

inline void wait(State state, int line) {
  current->state = state;
  current->line = line;
  // Not swapcontext, which asks the kernel for the signal mask each time.
  if (!_setjmp(current->place)) _longjmp(scheduler, 1);
}

inline void enter() {
  for (;;) {
    body();
    wait(kDone, 0);
  }
}

inline void resume(Fiber& fiber) {
  current = &fiber;
  threadIdx = fiber.thread;
  if (_setjmp(scheduler)) return;
  if (fiber.started) _longjmp(fiber.place, 1);
  fiber.started = true;
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = fiber.stack.data();
  fiber.start.uc_stack.ss_size = fiber.stack.size();
  makecontext(&fiber.start, enter, 0);
  setcontext(&fiber.start);
}

// Whether all of [begin, end) wait at one line for `state`.
inline bool together(int begin, int end, State state, const char* what) {
  int count = 0, line = 0;
  bool same = true;
  for (int i = begin; i < end; ++i) {
    if (fibers[i].state != state) continue;
    same = same && (!count || line == fibers[i].line);
    line = fibers[i].line;
    ++count;
  }
  if (same && count == end - begin) return true;
  error = std::string(what) + " at line " + std::to_string(line) + ": " +
          (same ? std::to_string(count) + " of " + std::to_string(end - begin) +
                      " threads are there"
                : "other threads wait at another line");
  return false;
}

// Runs a wave until all of its lanes are at a barrier or done.
inline bool run_wave(int begin, int end) {
  Fiber* lanes[kLanes];
  for (;;) {
    bool waiting = false;
    for (int i = begin; i < end; ++i) {
      lanes[i - begin] = &fibers[i];
      if (fibers[i].state == kReady) resume(fibers[i]);
      waiting = waiting || fibers[i].state == kAtInstruction;
    }
    if (!waiting) return true;
    if (!together(begin, end, kAtInstruction, "wave instruction")) return false;
    lanes[0]->instruction(lanes, end - begin);
    for (int i = begin; i < end; ++i) fibers[i].state = kReady;
  }
}

inline bool run_block(size_t shared, uint32_t& random) {
  auto* memory = static_cast<unsigned char*>(shared_memory());
  std::fill(memory, memory + shared + kMargin, 0xff);
  int count = fibers.size();
  for (Fiber& fiber : fibers) fiber.state = kReady;
  std::vector<int> waves;
  for (int i = 0; i < count; i += kLanes) waves.push_back(i);
  for (;;) {
    for (size_t i = waves.size(); i > 1; --i) {
      random = random * 1664525u + 1013904223u;
      std::swap(waves[i - 1], waves[(random >> 8) % i]);
    }
    for (int begin : waves)
      if (!run_wave(begin, std::min(begin + kLanes, count))) return false;
    if (std::all_of(fibers.begin(), fibers.end(),
                    [](Fiber& fiber) { return fiber.state == kDone; }))
      break;
    if (!together(0, count, kAtBarrier, "barrier")) return false;
    for (Fiber& fiber : fibers) fiber.state = kReady;
  }
  if (std::all_of(memory + shared, memory + shared + kMargin,
                  [](unsigned char byte) { return byte == 0xff; }))
    return true;
  error = "shared memory is written past its end";
  return false;
}

inline void launch(const char* kernel, dim3 grid, dim3 block, size_t shared,
                   std::function<void()> run) {
  std::lock_guard<std::mutex> lock(one_launch);
  gridDim = grid;
  blockDim = block;
  body = run;
  error.clear();
  arena.resize(shared + kMargin + 64);
  size_t count = size_t(block.x) * block.y * block.z;
  if (fibers.size() != count) fibers = std::vector<Fiber>(count);
  for (unsigned i = 0; i < count; ++i)
    fibers[i].thread =
        dim3(i % block.x, i / block.x % block.y, i / block.x / block.y);
  uint32_t random = 1;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = dim3(x, y, z);
        if (run_block(shared, random)) continue;
        error = std::string(kernel) + ", block " + std::to_string(x) + ", " +
                error;
        fibers.clear();  // Some are in the middle of the kernel.
        return;
      }
  if (is_intact && !is_intact())
    error = std::string(kernel) + ", memory is written outside of the results";
}

// All lanes of the wave come here with `in`, and leave with `out`.
template <class In, class Out>
Out together(const In& in, int line, void (*instruction)(Fiber**, int)) {
  Out out;
  current->in = &in;
  current->out = &out;
  current->instruction = instruction;
  wait(kAtInstruction, line);
  return out;
}

template <class T>
T shuffle(T value, int from, int line) {
  struct In {
    T value;
    int from;
  };
  return together<In, T>({value, from}, line, [](Fiber** lanes, int count) {
    for (int i = 0; i < count; ++i) {
      int from = static_cast<const In*>(lanes[i]->in)->from;
      // From a lane that does not exist: its own value, as in the hardware.
      const void* in = lanes[from >= 0 && from < count ? from : i]->in;
      *static_cast<T*>(lanes[i]->out) = static_cast<const In*>(in)->value;
    }
  });
}

inline int lane() { return (current - fibers.data()) % kLanes; }

}  // namespace emulation

inline hipError_t hipGetLastError() { return !emulation::error.empty(); }
inline const char* hipGetErrorString(hipError_t) {
  return emulation::error.c_str();
}

#define ZAYA_LINE int line = __builtin_LINE()
inline void __syncthreads(ZAYA_LINE) {
  emulation::wait(emulation::kAtBarrier, line);
}
template <class T>
T __shfl(T value, int from, ZAYA_LINE) {
  return emulation::shuffle(value, from, line);
}
template <class T>
T __shfl_xor(T value, int mask, ZAYA_LINE) {
  return emulation::shuffle(value, emulation::lane() ^ mask, line);
}
template <class T>
T __shfl_up(T value, int by, ZAYA_LINE) {
  return emulation::shuffle(value, emulation::lane() - by, line);
}
template <class T>
T __shfl_down(T value, int by, ZAYA_LINE) {
  return emulation::shuffle(value, emulation::lane() + by, line);
}

// Fibers change only where they wait, so these are atomic.
template <class T>
T atomicAdd(T* to, T value) {
  T before = *to;
  *to += value;
  return before;
}
template <class T>
T atomicMax(T* to, T value) {
  T before = *to;
  *to = std::max(before, value);
  return before;
}
inline void __threadfence() {}
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }

// A float for each of the types of port.h, whose names come later.
template <class T>
float float_of_bits(T, short bits) {
  T value;
  std::memcpy(&value, &bits, sizeof(value));
  return float_of(value);
}

// See port.h for who has what.
template <int size, int depth, class T, class Bits, class Accumulator>
Accumulator emulated_mfma(T, Bits a, Bits b, Accumulator c, ZAYA_LINE) {
  struct In {
    Bits a, b;
    Accumulator c;
  };
  return emulation::together<In, Accumulator>(
      {a, b, c}, line, [](emulation::Fiber** lanes, int) {
        static float a[depth][size], b[depth][size];
        for (int lane = 0; lane < 64; ++lane)
          for (int i = 0; i < 4; ++i) {
            auto& in = *static_cast<const In*>(lanes[lane]->in);
            a[4 * (lane / size) + i][lane % size] = float_of_bits(T(), in.a[i]);
            b[4 * (lane / size) + i][lane % size] = float_of_bits(T(), in.b[i]);
          }
        for (int lane = 0; lane < 64; ++lane) {
          auto& in = *static_cast<const In*>(lanes[lane]->in);
          auto& out = *static_cast<Accumulator*>(lanes[lane]->out);
          constexpr int kGroup = 4 * (64 / size);
          for (int r = 0; r < int(sizeof(Accumulator) / 4); ++r) {
            int row = kGroup * (r / 4) + 4 * (lane / size) + r % 4;
            float sum = in.c[r];
            for (int k = 0; k < depth; ++k)
              sum += a[k][row] * b[k][lane % size];
            out[r] = sum;
          }
        }
      });
}
