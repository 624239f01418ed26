// Dot products with weights of fewer bits, whose scales belong to one output and a block of 32 inputs each.
//
// A block's products are added up before they are scaled. As in tiles.h, every output is one chain of additions in the
// order of the inputs, whatever is computed beside it.
#pragma once

#include <cmath>
#include <limits>

#include "tiles.h"

namespace footplate {

// How a panel keeps a block of 32 inputs of its 16 outputs: 64 bytes of scales, then vectors of 64 bytes.
//   kInt4: 16 scales and 16 offsets (fp16); 4 vectors.              weight = scale * nibble + offset
//   kInt8: 16 scales (fp32); 4 vectors of low and 4 of high halves. weight = scale * (16 * signed high + low)
//          In both a vector holds 32 words, laid out as a pair of bf16 panels; the four nibbles of a word belong to
//          four consecutive pairs. Activations are bf16.
//   kW8A8: 16 scales (fp32); 8 vectors of four inputs a byte each.  weight = scale * (byte - 128)
//          Activations are bytes too, quantised when they come with a scale for each block.
enum class Format : int64_t { kBf16 = 0, kInt8 = 1, kInt4 = 2, kW8A8 = 3 };

constexpr int kBlockInputs = 32;
constexpr int kBlockPairs = kBlockInputs / 2;
constexpr int kQuantisedPanels = 2;  // of a tile: 12 sums of a block and 12 of all blocks fill 24 registers
constexpr int kByteRows = 4;         // whose sums of a block are needed as integers and as floats

inline int64_t panel_bytes_of(Format format, int64_t num_pairs) {
    return num_pairs * (format == Format::kBf16 ? 64 : format == Format::kInt4 ? 20 : 36);
}

// What a block of a row's activations is beside its values: the scale of its bytes, and the sum of what is multiplied
// with the weights, which their offsets need.
struct BlockFacts {
    float scale;
    float sum;
};

// What nibbles mean, as bf16, twice: five bits of a word choose, and the fifth belongs to the next nibble.
inline __m512i meaning_of_low() {  // 0 to 15
    return _mm512_broadcast_i64x4(_mm256_set_epi16(0x4170, 0x4160, 0x4150, 0x4140, 0x4130, 0x4120, 0x4110, 0x4100,
                                                   0x40e0, 0x40c0, 0x40a0, 0x4080, 0x4040, 0x4000, 0x3f80, 0));
}

inline __m512i meaning_of_high() {  // 0, 16 to 112, then -128 to -16
    return _mm512_broadcast_i64x4(_mm256_set_epi16(int16_t(0xc180), int16_t(0xc200), int16_t(0xc240), int16_t(0xc280),
                                                   int16_t(0xc2a0), int16_t(0xc2c0), int16_t(0xc2e0), int16_t(0xc300),
                                                   0x42e0, 0x42c0, 0x42a0, 0x4280, 0x4240, 0x4200, 0x4180, 0));
}

// total += scale * part (+ sum * offset) for a block that lies at `head`.
template <int R, int P, Format F>
inline void add_block(__m512 (&total)[R][P], const __m512 (&part)[R][P], const char *const *heads,
                      const BlockFacts *facts, int64_t facts_stride) {
    for (int p = 0; p < P; p++) {
        const __m512 scales = F == Format::kInt4 ? _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)heads[p]))
                                                 : _mm512_loadu_ps(heads[p]);
        for (int r = 0; r < R; r++) {
            const __m512 share =
                F != Format::kW8A8 ? scales : _mm512_mul_ps(scales, _mm512_set1_ps(facts[r * facts_stride].scale));
            total[r][p] = _mm512_fmadd_ps(part[r][p], share, total[r][p]);
        }
        if (F == Format::kInt4) {
            const __m512 offsets = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(heads[p] + 32)));
            for (int r = 0; r < R; r++)
                total[r][p] = _mm512_fmadd_ps(_mm512_set1_ps(facts[r * facts_stride].sum), offsets, total[r][p]);
        }
    }
}

// As `dot_tile`, with kInt4 and kInt8 panels: nibbles are multiplied as they are, exactly.
template <int R, int P, Format F>
inline void nibble_tile(const bf16 *rows, int64_t stride, const BlockFacts *facts, int64_t facts_stride,
                        const char *const *panels, int64_t num_blocks, float *sums, int64_t sums_stride, Ahead &ahead) {
    const __m512i low = meaning_of_low(), high = meaning_of_high();
    __m512 total[R][P] = {};
    for (int64_t block = 0; block < num_blocks; block++) {
        const char *heads[P];
        for (int p = 0; p < P; p++) heads[p] = panels[p] + block * panel_bytes_of(F, kBlockPairs);
        __m512 part[R][P] = {};
        for (int four = 0; four < 4; four++) {
            __m512i words[P], high_words[P];
            for (int p = 0; p < P; p++) {
                words[p] = _mm512_loadu_si512(heads[p] + 64 * (1 + four));
                if (F == Format::kInt8) high_words[p] = _mm512_loadu_si512(heads[p] + 64 * (5 + four));
            }
            for (int k = 0; k < 4; k++) {
                ahead.fetch();
                __m512i weights[P], high_weights[P];
                for (int p = 0; p < P; p++) {
                    weights[p] = _mm512_permutexvar_epi16(words[p], low);
                    words[p] = _mm512_srli_epi16(words[p], 4);
                    if (F == Format::kInt8) {
                        high_weights[p] = _mm512_permutexvar_epi16(high_words[p], high);
                        high_words[p] = _mm512_srli_epi16(high_words[p], 4);
                    }
                }
                for (int r = 0; r < R; r++) {
                    int32_t pair;
                    std::memcpy(&pair, rows + r * stride + kBlockInputs * block + 8 * four + 2 * k, 4);
                    const __m512i activations = _mm512_set1_epi32(pair);
                    for (int p = 0; p < P; p++) {
                        part[r][p] = dot_pairs(part[r][p], activations, weights[p]);
                        if (F == Format::kInt8) part[r][p] = dot_pairs(part[r][p], activations, high_weights[p]);
                    }
                }
            }
        }
        add_block<R, P, F>(total, part, heads, facts + block, facts_stride);
    }
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++) _mm512_storeu_ps(sums + r * sums_stride + p * kColumns, total[r][p]);
}

// sums + four unsigned bytes times four signed ones, in each of 16 places.
inline __m512i dot_bytes(__m512i sums, __m512i weights, __m512i activations) {
#ifdef __AVX512VNNI__
    return _mm512_dpbusd_epi32(sums, weights, activations);
#else
    const __m512i even = _mm512_madd_epi16(_mm512_and_si512(weights, _mm512_set1_epi16(0xff)),
                                           _mm512_srai_epi16(_mm512_slli_epi16(activations, 8), 8));
    const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(weights, 8), _mm512_srai_epi16(activations, 8));
    return _mm512_add_epi32(sums, _mm512_add_epi32(even, odd));
#endif
}

// As `dot_tile`, with kW8A8 panels and rows of bytes: a block's products are added up as integers, exactly.
template <int R, int P>
inline void byte_tile(const int8_t *rows, int64_t stride, const BlockFacts *facts, int64_t facts_stride,
                      const char *const *panels, int64_t num_blocks, float *sums, int64_t sums_stride, Ahead &ahead) {
    __m512 total[R][P] = {};
    for (int64_t block = 0; block < num_blocks; block++) {
        const char *heads[P];
        for (int p = 0; p < P; p++) heads[p] = panels[p] + block * panel_bytes_of(Format::kW8A8, kBlockPairs);
        __m512i part[R][P];
        for (int r = 0; r < R; r++)  // begins with what the weights' offset of 128 adds too much
            for (int p = 0; p < P; p++) part[r][p] = _mm512_set1_epi32(-128 * int(facts[r * facts_stride + block].sum));
        for (int four = 0; four < kBlockInputs; four += 4) {
            ahead.fetch();
            __m512i weights[P];
            for (int p = 0; p < P; p++) weights[p] = _mm512_loadu_si512(heads[p] + 64 + 16 * four);
            for (int r = 0; r < R; r++) {
                int32_t bytes;
                std::memcpy(&bytes, rows + r * stride + kBlockInputs * block + four, 4);
                const __m512i activations = _mm512_set1_epi32(bytes);
                for (int p = 0; p < P; p++) part[r][p] = dot_bytes(part[r][p], weights[p], activations);
            }
        }
        __m512 sum[R][P];
        for (int r = 0; r < R; r++)
            for (int p = 0; p < P; p++) sum[r][p] = _mm512_cvtepi32_ps(part[r][p]);
        add_block<R, P, Format::kW8A8>(total, sum, heads, facts + block, facts_stride);
    }
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++) _mm512_storeu_ps(sums + r * sums_stride + p * kColumns, total[r][p]);
}

// What a product with quantised weights reads of some rows: bf16 or bytes, and their blocks' facts.
struct QuantisedRows {
    const bf16 *wide;
    const int8_t *bytes;
    int64_t stride;
    const BlockFacts *facts;
    int64_t facts_stride;
};

template <int R, int P>
inline void quantised_tile_of(const QuantisedRows &rows, Format format, const char *const *panels, int64_t num_blocks,
                              float *sums, int64_t stride, Ahead &ahead) {
    const auto facts = rows.facts;
    if (format == Format::kW8A8)
        byte_tile<R, P>(rows.bytes, rows.stride, facts, rows.facts_stride, panels, num_blocks, sums, stride, ahead);
    else if (format == Format::kInt8)
        nibble_tile<R, P, Format::kInt8>(rows.wide, rows.stride, facts, rows.facts_stride, panels, num_blocks, sums,
                                         stride, ahead);
    else
        nibble_tile<R, P, Format::kInt4>(rows.wide, rows.stride, facts, rows.facts_stride, panels, num_blocks, sums,
                                         stride, ahead);
}

// The product of 1 to kMaxRows rows with 1 or 2 panels.
inline void quantised_tile(int num_rows, int num_panels, const QuantisedRows &rows, Format format,
                           const char *const *panels, int64_t num_blocks, float *sums, int64_t stride, Ahead &ahead) {
    using Tile = void (*)(const QuantisedRows &, Format, const char *const *, int64_t, float *, int64_t, Ahead &);
    static constexpr Tile kTiles[kMaxRows][kQuantisedPanels] = {
        {quantised_tile_of<1, 1>, quantised_tile_of<1, 2>}, {quantised_tile_of<2, 1>, quantised_tile_of<2, 2>},
        {quantised_tile_of<3, 1>, quantised_tile_of<3, 2>}, {quantised_tile_of<4, 1>, quantised_tile_of<4, 2>},
        {quantised_tile_of<5, 1>, quantised_tile_of<5, 2>}, {quantised_tile_of<6, 1>, quantised_tile_of<6, 2>}};
    kTiles[num_rows - 1][num_panels - 1](rows, format, panels, num_blocks, sums, stride, ahead);
}

// The sums of a row's blocks, for weights with offsets.
inline void add_up_row(const bf16 *row, int64_t num_blocks, BlockFacts *facts) {
    const __m512i ones = _mm512_set1_epi16(0x3f80);
    for (int64_t block = 0; block < num_blocks; block++) {
        const __m512i activations = _mm512_loadu_si512(row + block * kBlockInputs);
        facts[block] = {1.0f, _mm512_reduce_add_ps(dot_pairs(_mm512_setzero_ps(), activations, ones))};
    }
}

// A row as signed bytes, the largest of each block at 127, and what they add up to.
inline void quantise_row(const bf16 *row, int64_t num_blocks, int8_t *bytes, BlockFacts *facts) {
    for (int64_t block = 0; block < num_blocks; block++, row += kBlockInputs, bytes += kBlockInputs) {
        const __m512 first = from_bf16(_mm256_loadu_si256((const __m256i *)row));
        const __m512 second = from_bf16(_mm256_loadu_si256((const __m256i *)(row + 16)));
        const float largest = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(first), _mm512_abs_ps(second)));
        const __mmask16 strange =
            _mm512_cmp_ps_mask(first, first, _CMP_UNORD_Q) | _mm512_cmp_ps_mask(second, second, _CMP_UNORD_Q);
        if (strange || std::isinf(largest)) {  // bytes cannot say so, the scale can
            std::memset(bytes, 0, kBlockInputs);
            facts[block] = {std::numeric_limits<float>::quiet_NaN(), 0.0f};
            continue;
        }
        const __m512 inverse = _mm512_set1_ps(largest > 0 ? 127.0f / largest : 0.0f);
        const __m512i low = _mm512_cvtps_epi32(_mm512_mul_ps(first, inverse));
        const __m512i high = _mm512_cvtps_epi32(_mm512_mul_ps(second, inverse));
        _mm_storeu_si128((__m128i *)bytes, _mm512_cvtsepi32_epi8(low));
        _mm_storeu_si128((__m128i *)(bytes + 16), _mm512_cvtsepi32_epi8(high));
        facts[block] = {largest / 127.0f, float(_mm512_reduce_add_epi32(_mm512_add_epi32(low, high)))};
    }
}

}  // namespace footplate
