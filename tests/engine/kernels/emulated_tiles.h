// The processor's tile instructions in plain C++, so that kernels written for them are tested where there are none.
// Included before everything else. Semantics: Intel's instruction set reference, TILELOADD, TDPBF16PS and TILESTORED.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define __AMX_TILE__ 1
#define __AMX_BF16__ 1

namespace emulated {

struct Register {
    int rows = 0, bytes = 0;
    unsigned char data[16][64] = {};
};

inline thread_local Register registers[8];

inline void configure(const void *shapes) {
    const auto *bytes = static_cast<const unsigned char *>(shapes);
    for (int i = 0; i < 8; i++) {
        uint16_t width;
        std::memcpy(&width, bytes + 16 + 2 * i, 2);
        registers[i] = Register();
        registers[i].bytes = width;
        registers[i].rows = bytes[48 + i];
    }
}

inline void load(int to, const void *from, long stride) {
    for (int r = 0; r < registers[to].rows; r++)
        std::memcpy(registers[to].data[r], static_cast<const char *>(from) + r * stride, registers[to].bytes);
}

inline void store(int from, void *to, long stride) {
    for (int r = 0; r < registers[from].rows; r++)
        std::memcpy(static_cast<char *>(to) + r * stride, registers[from].data[r], registers[from].bytes);
}

inline float wide(const unsigned char *bf16) {
    uint32_t bits = uint32_t(bf16[0]) << 16 | uint32_t(bf16[1]) << 24;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline void multiply(int sums, int left, int right) {
    for (int m = 0; m < registers[sums].rows; m++)
        for (int k = 0; k < registers[left].bytes / 4; k++)
            for (int n = 0; n < registers[sums].bytes / 4; n++) {
                float sum;
                std::memcpy(&sum, registers[sums].data[m] + 4 * n, 4);
                for (int half = 0; half < 2; half++)
                    sum += wide(registers[left].data[m] + 4 * k + 2 * half) *
                           wide(registers[right].data[k] + 4 * n + 2 * half);
                std::memcpy(registers[sums].data[m] + 4 * n, &sum, 4);
            }
}

}  // namespace emulated

#undef _tile_loadconfig
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_zero
#undef _tile_release
#define _tile_loadconfig(shapes) emulated::configure(shapes)
#define _tile_loadd(to, from, stride) emulated::load(to, from, stride)
#define _tile_stored(from, to, stride) emulated::store(from, to, stride)
#define _tile_dpbf16ps(sums, left, right) emulated::multiply(sums, left, right)
#define _tile_zero(tile) std::memset(emulated::registers[tile].data, 0, sizeof emulated::registers[tile].data)
#define _tile_release() ((void)0)
