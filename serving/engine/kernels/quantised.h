// Dot products with weights of fewer bits, whose scales belong to one output and a block of inputs each.
//
// Activations are made whole numbers too, so that the products of a block are added up exactly, in whatever order. The
// blocks are then one chain of additions in the order of the inputs, whatever is computed beside it.
#pragma once

#include <limits>

#include "tiles.h"

namespace footplate {

// How two panels keep a block of inputs of their 32 outputs: scales, then vectors of 64 bytes, in which 16 outputs have
// four consecutive inputs each. Vectors of the two panels take turns, so that memory is read in its order.
//   kInt8: 32 inputs; fp32 scales; 8 vectors of bytes a panel.   weight = scale * (byte - 128)
//   kInt4: 32 inputs; fp16 scales, then fp16 offsets; 4 vectors of nibbles a panel, the low ones for four inputs and
//          the high ones for the next.                           weight = scale * nibble + offset
//   kW8A8: 64 inputs; fp32 scales; 16 vectors of bytes a panel.  weight = scale * (byte - 128), of a rotated block
enum class Format : int64_t { kBf16 = 0, kInt8 = 1, kInt4 = 2, kW8A8 = 3 };

constexpr int kQuantisedPanels = 2;  // of a tile: 12 sums of a block and 12 of all blocks fill 24 registers
constexpr int kBlockInputs = 32;     // at least
constexpr int kBlockBytes = 64;      // of a row's activations: 64 of one byte or 32 of two

constexpr int inputs_of_block(Format format) { return format == Format::kW8A8 ? 64 : 32; }

constexpr int lines_of_block(Format format) {  // a panel
    return format == Format::kInt4 ? 5 : 1 + inputs_of_block(format) / 4;
}

inline int64_t panel_bytes_of(Format format, int64_t num_pairs) {
    return format == Format::kBf16 ? 64 * num_pairs
                                   : 2 * num_pairs / inputs_of_block(format) * lines_of_block(format) * 64;
}

// What a block of a row's activations is beside its bytes.
struct BlockFacts {
    float scale;    // of the block; where all blocks of a row have the same, only the first says so
    int32_t start;  // minus the sum of its numbers, times 128 if they are of one byte: for the weights' offset of 128
};

// Some rows as a product with quantised weights reads them.
struct QuantisedRows {
    int8_t *bytes;
    int64_t stride;
    BlockFacts *facts;
    int64_t facts_stride;
};

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

// part += the weights of 32 inputs, which lie at `vectors`, times 32 bytes of each row.
template <int R, Format F>
inline void add_bytes(__m512i (&part)[R][2], const char *vectors, const int8_t *bytes, int64_t stride) {
    const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 8
    for (int v = 0; v < 8; v++, bytes += 4) {
        __m512i weights[2];
        for (int p = 0; p < 2; p++) {
            weights[p] = _mm512_loadu_si512(vectors + 64 * (p + 2 * (F == Format::kInt4 ? v / 2 : v)));
            if (F == Format::kInt4 && v % 2) weights[p] = _mm512_srli_epi16(weights[p], 4);
            if (F == Format::kInt4) weights[p] = _mm512_and_si512(weights[p], low);
        }
        for (int r = 0; r < R; r++) {
            int32_t four;
            std::memcpy(&four, bytes + r * stride, 4);
            const __m512i activations = _mm512_set1_epi32(four);
            for (int p = 0; p < 2; p++) part[r][p] = dot_bytes(part[r][p], weights[p], activations);
        }
    }
}

// total += scale * part (+ sum * offset) for a block that lies at `head`.
template <int R, Format F>
inline void add_block(__m512 (&total)[R][2], const __m512i (&part)[R][2], const char *head, const BlockFacts *facts,
                      int64_t facts_stride) {
    for (int p = 0; p < 2; p++) {
        const __m512 scales = F == Format::kInt4 ? _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(head + 32 * p)))
                                                 : _mm512_loadu_ps(head + 64 * p);
        for (int r = 0; r < R; r++) {
            const __m512 share =
                F == Format::kW8A8 ? _mm512_mul_ps(scales, _mm512_set1_ps(facts[r * facts_stride].scale)) : scales;
            total[r][p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(part[r][p]), share, total[r][p]);
        }
        if (F == Format::kInt4) {
            const __m512 offsets = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(head + 64 + 32 * p)));
            for (int r = 0; r < R; r++) {
                const __m512 minus_sum = _mm512_cvtepi32_ps(_mm512_set1_epi32(facts[r * facts_stride].start));
                total[r][p] = _mm512_fnmadd_ps(minus_sum, offsets, total[r][p]);
            }
        }
    }
}

template <int R, Format F>
inline void quantised_tile_of(const QuantisedRows &rows, const char *head, int64_t num_blocks, bool fetches,
                              float *sums, int64_t sums_stride) {
    constexpr int kAhead = 8192;
    const BlockFacts *facts = rows.facts;
    const int8_t *bytes = rows.bytes;
    const int64_t stride = rows.stride, facts_stride = rows.facts_stride;
    __m512 total[R][2] = {};
    for (int64_t block = 0; block < num_blocks; block++, facts++, bytes += kBlockBytes) {
        if (fetches)
            for (int line = 0; line < 2 * lines_of_block(F); line++)
                _mm_prefetch(head + kAhead + 64 * line, _MM_HINT_T1);
        const char *vectors = head + 2 * 64;
        __m512i part[R][2];
        for (int r = 0; r < R; r++) {
            const int32_t start = F == Format::kInt4 ? 0 : facts[r * facts_stride].start;
            for (int p = 0; p < 2; p++) part[r][p] = _mm512_set1_epi32(start);
        }
        add_bytes<R, F>(part, vectors, bytes, stride);
        if (F == Format::kW8A8) {
            vectors += 16 * 64;
        } else {  // these were the high halves of the same 32 inputs
            for (int r = 0; r < R; r++)
                for (int p = 0; p < 2; p++) part[r][p] = _mm512_slli_epi32(part[r][p], 7);
        }
        add_bytes<R, F>(part, vectors, bytes + 32, stride);
        add_block<R, F>(total, part, head, facts, facts_stride);
        head += 2 * 64 * lines_of_block(F);
    }
    for (int r = 0; r < R; r++) {
        const __m512 scale = _mm512_set1_ps(F == Format::kW8A8 ? 1.0f : rows.facts[r * facts_stride].scale);
        for (int p = 0; p < 2; p++)
            _mm512_storeu_ps(sums + r * sums_stride + p * kColumns, _mm512_mul_ps(total[r][p], scale));
    }
}

using QuantisedTile = void (*)(const QuantisedRows &, const char *, int64_t, bool, float *, int64_t);

template <Format F>
inline QuantisedTile quantised_tile_in(int num_rows) {
    static constexpr QuantisedTile kTiles[kMaxRows] = {quantised_tile_of<1, F>, quantised_tile_of<2, F>,
                                                       quantised_tile_of<3, F>, quantised_tile_of<4, F>,
                                                       quantised_tile_of<5, F>, quantised_tile_of<6, F>};
    return kTiles[num_rows - 1];
}

// The product of 1 to kMaxRows rows with two panels. `fetches` brings near what lies behind them in memory.
inline void quantised_tile(int num_rows, const QuantisedRows &rows, Format format, const char *panels,
                           int64_t num_pairs, bool fetches, float *sums, int64_t sums_stride) {
    const QuantisedTile tile = format == Format::kInt8   ? quantised_tile_in<Format::kInt8>(num_rows)
                               : format == Format::kInt4 ? quantised_tile_in<Format::kInt4>(num_rows)
                                                         : quantised_tile_in<Format::kW8A8>(num_rows);
    tile(rows, panels, 2 * num_pairs / inputs_of_block(format), fetches, sums, sums_stride);
}

constexpr float kLeast = 1e-30f;  // counts as zero, since the inverse of less might not be finite

// The bytes of 64 numbers that were packed from four vectors, in order.
inline __m512i in_order(__m512i bytes) {
    const __m512i order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    return _mm512_permutexvar_epi32(order, bytes);
}

// A row as whole numbers of 14 bits and a sign, the largest at 16319: for each block their high halves, which count 128
// times, then the low ones.
inline void quantise_finely(const bf16 *row, int64_t size, const QuantisedRows &to) {
    constexpr float kMost = 127 * 128 + 63;
    __m512i most = _mm512_setzero_si512();  // as bits, whose order is that of the numbers
    for (int64_t i = 0; i < size; i += 32)
        most = _mm512_max_epu16(most, _mm512_and_si512(_mm512_loadu_si512(row + i), _mm512_set1_epi16(0x7fff)));
    const __m512 odd = _mm512_castsi512_ps(_mm512_andnot_si512(_mm512_set1_epi32(0xffff), most));
    const __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(most, 16));
    const float largest = _mm512_reduce_max_ps(_mm512_max_ps(odd, even));
    const bool is_finite = !_mm512_cmpgt_epu16_mask(most, _mm512_set1_epi16(0x7f7f));
    const __m512 inverse = _mm512_set1_ps(is_finite && largest > kLeast ? kMost / largest : 0.0f);
    for (int64_t block = 0; block < size / 32; block++, row += 32) {
        const __m512 first = from_bf16(_mm256_loadu_si256((const __m256i *)row));
        const __m512 second = from_bf16(_mm256_loadu_si256((const __m256i *)(row + 16)));
        const __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(first, inverse));
        const __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(second, inverse));
        const __m512i numbers = _mm512_packs_epi32(a, b);
        const __m512i high = _mm512_srai_epi16(_mm512_add_epi16(numbers, _mm512_set1_epi16(64)), 7);
        const __m512i low = _mm512_sub_epi16(numbers, _mm512_slli_epi16(high, 7));
        _mm512_storeu_si512(to.bytes + block * kBlockBytes, in_order(_mm512_packs_epi16(high, low)));
        to.facts[block].start = -_mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
    }
    to.facts[0].scale = is_finite ? largest / kMost : std::numeric_limits<float>::quiet_NaN();
}

// Sums and differences of the values whose places differ by `distance`, a power of two.
inline __m512 butterfly(__m512 values, int distance) {
    const __m512i places = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i bit = _mm512_set1_epi32(distance);
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 signs = _mm512_mask_sub_ps(one, _mm512_test_epi32_mask(places, bit), _mm512_setzero_ps(), one);
    return _mm512_fmadd_ps(values, signs, _mm512_permutexvar_ps(_mm512_xor_si512(places, bit), values));
}

// A row as bytes, the largest of each block at 127, after each block is rotated: it is multiplied with a Hadamard
// matrix, which spreads a large value over the block, so that the others do not round to nothing beside it (Ashkboos et
// al. 2024, "QuaRot"). A number that is not finite makes the whole block so, and its scale.
inline void quantise_coarsely(const bf16 *row, int64_t size, const QuantisedRows &to) {
    for (int64_t block = 0; block < size / 64; block++, row += 64) {
        __m512 x[4];
        for (int i = 0; i < 4; i++) x[i] = from_bf16(_mm256_loadu_si256((const __m256i *)(row + 16 * i)));
        for (int distance = 1; distance < 16; distance *= 2)
            for (int i = 0; i < 4; i++) x[i] = butterfly(x[i], distance);
        const __m512 a = _mm512_add_ps(x[0], x[1]), b = _mm512_sub_ps(x[0], x[1]);
        const __m512 c = _mm512_add_ps(x[2], x[3]), d = _mm512_sub_ps(x[2], x[3]);
        x[0] = _mm512_add_ps(a, c), x[1] = _mm512_add_ps(b, d), x[2] = _mm512_sub_ps(a, c), x[3] = _mm512_sub_ps(b, d);
        const __m512 most = _mm512_max_ps(_mm512_max_ps(_mm512_abs_ps(x[0]), _mm512_abs_ps(x[1])),
                                          _mm512_max_ps(_mm512_abs_ps(x[2]), _mm512_abs_ps(x[3])));
        const float largest = _mm512_reduce_max_ps(most);
        const __m512 inverse = _mm512_set1_ps(largest > kLeast ? 127.0f / largest : 0.0f);
        __m512i numbers[4];
        for (int i = 0; i < 4; i++) numbers[i] = _mm512_cvtps_epi32(_mm512_mul_ps(x[i], inverse));
        const __m512i bytes = in_order(_mm512_packs_epi16(_mm512_packs_epi32(numbers[0], numbers[1]),
                                                          _mm512_packs_epi32(numbers[2], numbers[3])));
        _mm512_storeu_si512(to.bytes + block * kBlockBytes, bytes);
        const __m512i sums = dot_bytes(_mm512_setzero_si512(), _mm512_set1_epi8(1), bytes);
        to.facts[block] = {largest / 127.0f, -128 * _mm512_reduce_add_epi32(sums)};
    }
}

}  // namespace footplate
