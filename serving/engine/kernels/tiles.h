// Dot products of a few rows of activations with panels of weights: the arithmetic under every matrix product here.
//
// A panel holds 16 output columns of a matrix whose inner dimension comes in pairs: [pairs][16][2] of bf16, one 64-byte
// vector a pair. A weight matrix [N, K] is N / 16 panels of K / 2 pairs; the keys of a KV block are one panel of
// head_dim / 2 pairs (its columns are the 16 positions), and its values are head_dim / 16 panels of 8 pairs.
//
// Every output is one chain of additions over the pairs in ascending order, whatever the number of rows and panels that
// are computed together. So no result depends on the company that a row has.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace footplate {

using bf16 = uint16_t;

constexpr int kColumns = 16;                 // of a panel
constexpr int kPairElements = 2 * kColumns;  // one pair of every column: 64 bytes
constexpr int kMaxRows = 6;                  // rows and panels of a tile: 24 sums, 4 weights and an activation
constexpr int kMaxPanels = 4;                // fill 29 of the 32 vector registers
constexpr int kInnerMultiple = 64;           // the inner dimension of a product is padded to this

inline __m512 dot_pairs(__m512 sums, __m512i activations, __m512i weights) {
#ifdef __AVX512BF16__
    return _mm512_dpbf16_ps(sums, (__m512bh)activations, (__m512bh)weights);
#else
    const __m512i odd = _mm512_set1_epi32(int(0xffff0000u));
    sums = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(activations, odd)),
                           _mm512_castsi512_ps(_mm512_and_si512(weights, odd)), sums);
    return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(activations, 16)),
                           _mm512_castsi512_ps(_mm512_slli_epi32(weights, 16)), sums);
#endif
}

// 16 floats as bf16, rounded to the nearest, ties to even. Not for NaN.
inline __m256i to_bf16(__m512 values) {
#ifdef __AVX512BF16__
    return (__m256i)_mm512_cvtneps_pbh(values);
#else
    const __m512i bits = _mm512_castps_si512(values);
    const __m512i lowest = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(lowest, _mm512_set1_epi32(0x7fff)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
#endif
}

inline __m512 from_bf16(__m256i values) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(values), 16));
}

// The first `count` of 16 places, or all.
inline __mmask16 mask_of(int64_t count) {
    return count >= 16 ? 0xffff : count <= 0 ? 0 : __mmask16((1u << count) - 1);
}

// What will be needed next, brought near while something else is computed: pieces of memory, a few cache lines of them
// with every pair. Memory and arithmetic are then at work at the same time.
struct Ahead {
    static constexpr int kMaxPieces = 16;
    const char *pieces[kMaxPieces];
    int num_pieces = 0;
    int lines_a_piece = 0;
    int lines_a_pair = 0;
    int piece = 0, line = 0;

    // Spreads all lines over `num_pairs` pairs to come.
    void spread(int64_t num_pairs) {
        lines_a_pair = int((int64_t(num_pieces) * lines_a_piece + num_pairs - 1) / std::max<int64_t>(1, num_pairs));
    }

    void fetch() {
        for (int i = 0; i < lines_a_pair && piece < num_pieces; i++) {
            _mm_prefetch(pieces[piece] + 64 * line, _MM_HINT_T1);
            if (++line == lines_a_piece) {
                line = 0;
                piece++;
            }
        }
    }
};

// sums[r][p * 16 + column] = row r · column of panel p, over `segments` pieces of `pairs` pairs each: piece s of panel
// p begins at panels[s * P + p], and the rows go on from piece to piece.
template <int R, int P>
inline void dot_tile(const bf16 *const *rows, const bf16 *const *panels, int segments, int pairs, float *sums,
                     int64_t stride, Ahead &ahead) {
    __m512 total[R][P];
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++) total[r][p] = _mm512_setzero_ps();
    const bf16 *row[R];
    for (int r = 0; r < R; r++) row[r] = rows[r];
    for (int s = 0; s < segments; s++) {
        const bf16 *panel[P];
        for (int p = 0; p < P; p++) panel[p] = panels[s * P + p];
        for (int k = 0; k < pairs; k++) {
            ahead.fetch();
            __m512i weights[P];
            for (int p = 0; p < P; p++) weights[p] = _mm512_loadu_si512(panel[p] + int64_t(k) * kPairElements);
            for (int r = 0; r < R; r++) {
                int32_t pair;
                std::memcpy(&pair, row[r] + 2 * k, 4);
                const __m512i activations = _mm512_set1_epi32(pair);
                for (int p = 0; p < P; p++) total[r][p] = dot_pairs(total[r][p], activations, weights[p]);
            }
        }
        for (int r = 0; r < R; r++) row[r] += 2 * pairs;
    }
    for (int r = 0; r < R; r++)
        for (int p = 0; p < P; p++) _mm512_storeu_ps(sums + r * stride + p * kColumns, total[r][p]);
}

using DotTile = void (*)(const bf16 *const *, const bf16 *const *, int, int, float *, int64_t, Ahead &);

template <int R>
inline DotTile dot_tile_of(int panels) {
    static constexpr DotTile kTiles[] = {dot_tile<R, 1>, dot_tile<R, 2>, dot_tile<R, 3>, dot_tile<R, 4>};
    return kTiles[panels - 1];
}

// The tile for 1 to kMaxRows rows and 1 to kMaxPanels panels.
inline DotTile dot_tile_for(int rows, int panels) {
    switch (rows) {
        case 1:
            return dot_tile_of<1>(panels);
        case 2:
            return dot_tile_of<2>(panels);
        case 3:
            return dot_tile_of<3>(panels);
        case 4:
            return dot_tile_of<4>(panels);
        case 5:
            return dot_tile_of<5>(panels);
        default:
            return dot_tile_of<6>(panels);
    }
}

// The rows of the next tile where `left` are left and a tile has at most `most`: tiles alike, as small ones are slow.
inline int64_t rows_alike(int64_t left, int64_t most) { return left / ((left + most - 1) / most); }

#ifdef __AMX_BF16__
constexpr int kProductRows = 32;  // of a tile of a matrix product: two registers of 16

inline int64_t product_rows(int64_t left) { return std::min<int64_t>(left, kProductRows); }

// As the processor wants to be told of the shapes of its eight tile registers.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t num_rows[16] = {};
};

// Owns how many rows a thread's tile registers are set for. Registers 0 to 3 hold sums, 4 and 5 activations of the
// first and second 16 rows, 6 and 7 weights.
class Tiles {
  public:
    ~Tiles() { _tile_release(); }

    void set(int num_rows) {
        if (num_rows == num_rows_) return;
        num_rows_ = num_rows;
        const uint8_t first = uint8_t(num_rows < 16 ? num_rows : 16),
                      second = uint8_t(num_rows < 17 ? 1 : num_rows - 16);
        TileShapes shapes;
        for (int i = 0; i < 8; i++) {
            shapes.row_bytes[i] = 64;
            shapes.num_rows[i] = i > 5 ? 16 : i == 2 || i == 3 || i == 5 ? second : first;
        }
        _tile_loadconfig(&shapes);
    }

  private:
    int num_rows_ = 0;
};

// sums[r][p * 16 + column] for 1 to 32 rows and 1 to 4 panels: two panels at a time, so that weights are loaded once
// for both halves of the rows. A row's chain of additions is the same in every register and among any number of rows.
inline void product_tile(Tiles &tiles, const bf16 *rows, int64_t stride, int num_rows, const bf16 *const *panels,
                         int num_panels, int pairs, float *sums, int64_t sums_stride, Ahead &ahead) {
    tiles.set(num_rows);
    const int64_t row_bytes = stride * 2, sum_bytes = sums_stride * 4;
    for (int p = 0; p < num_panels; p += 2) {
        const bf16 *left = panels[p], *right = panels[p + 1 < num_panels ? p + 1 : p];
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int k = 0; k < pairs; k += 16) {
            for (int i = 0; i < 16; i++) ahead.fetch();
            _tile_loadd(4, rows + 2 * k, row_bytes);
            _tile_loadd(6, left + int64_t(k) * kPairElements, 64);
            _tile_loadd(7, right + int64_t(k) * kPairElements, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if (num_rows > 16) {
                _tile_loadd(5, rows + 16 * stride + 2 * k, row_bytes);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
        float *to = sums + p * kColumns;
        _tile_stored(0, to, sum_bytes);
        if (p + 1 < num_panels) _tile_stored(1, to + kColumns, sum_bytes);
        if (num_rows > 16) {
            _tile_stored(2, to + 16 * sums_stride, sum_bytes);
            if (p + 1 < num_panels) _tile_stored(3, to + 16 * sums_stride + kColumns, sum_bytes);
        }
    }
}
#else
constexpr int kProductRows = kMaxRows;

inline int64_t product_rows(int64_t left) { return rows_alike(left, kProductRows); }

struct Tiles {};

inline void product_tile(Tiles &, const bf16 *rows, int64_t stride, int num_rows, const bf16 *const *panels,
                         int num_panels, int pairs, float *sums, int64_t sums_stride, Ahead &ahead) {
    const bf16 *row[kMaxRows];
    for (int r = 0; r < num_rows; r++) row[r] = rows + r * stride;
    dot_tile_for(num_rows, num_panels)(row, panels, 1, pairs, sums, sums_stride, ahead);
}
#endif

// e to the power of each value, which are 0 or less: 2 units in the last place; 0 below -87.
inline __m512 exp_nonpositive(__m512 values) {
    const __mmask16 vanishing = _mm512_cmp_ps_mask(values, _mm512_set1_ps(-87.0f), _CMP_LT_OQ);
    const __m512 scaled = _mm512_mul_ps(values, _mm512_set1_ps(1.44269504f));
    const __m512 whole = _mm512_roundscale_ps(scaled, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(0.693359375f), values);
    rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(-2.12194440e-4f), rest);
    __m512 power = _mm512_set1_ps(1.9875691500e-4f);  // Cephes' expf
    power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(1.3981999507e-3f));
    power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(8.3334519073e-3f));
    power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(4.1665795894e-2f));
    power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(1.6666665459e-1f));
    power = _mm512_fmadd_ps(power, rest, _mm512_set1_ps(5.0000001201e-1f));
    power = _mm512_fmadd_ps(power, _mm512_mul_ps(rest, rest), _mm512_add_ps(rest, _mm512_set1_ps(1.0f)));
    return _mm512_mask_mov_ps(_mm512_scalef_ps(power, whole), vanishing, _mm512_setzero_ps());
}

}  // namespace footplate
