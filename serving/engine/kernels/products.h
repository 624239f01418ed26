// Products of activations with weight matrices in any format.
#pragma once

#include <algorithm>

#include "quantised.h"

namespace footplate {

// [out, in] as panels in one of the formats; `bias` has an entry a column or is null.
struct Matrix {
    const char *panels;
    const float *bias;
    int64_t num_panels;
    int64_t num_pairs;
    Format format;
};

// Rows that are multiplied: bf16, and what quantised weights need of them.
struct Activations {
    const bf16 *rows;
    int64_t stride, num_rows;
    int8_t *bytes;      // [num_rows, stride]
    BlockFacts *facts;  // [num_rows, stride / kBlockInputs]

    int64_t num_blocks() const { return stride / kBlockInputs; }

    void make_ready(Format format, int64_t row) const {
        BlockFacts *of_row = facts + row * num_blocks();
        if (format == Format::kW8A8)
            quantise_row(rows + row * stride, num_blocks(), bytes + row * stride, of_row);
        else
            add_up_row(rows + row * stride, num_blocks(), of_row);
    }

    QuantisedRows from(int64_t row) const {
        return {rows + row * stride, bytes + row * stride, stride, facts + row * num_blocks(), num_blocks()};
    }
};

// Panels that are computed together.
struct Group {
    int64_t first;
    int count;
    const char *panel[kMaxPanels];
    int64_t panel_bytes;
};

// A matrix's panels in groups. Few panels make smaller ones, so that the threads' shares are alike.
struct Groups {
    const Matrix &matrix;
    int64_t width, count;

    Groups(const Matrix &whole, int num_threads) : matrix(whole) {
        const bool is_wide = matrix.format == Format::kBf16 && matrix.num_panels >= 64 * num_threads;
        width = is_wide ? kMaxPanels : kQuantisedPanels;
        count = (matrix.num_panels + width - 1) / width;
    }

    Group at(int64_t index) const {
        Group group{index * width, 0, {}, panel_bytes_of(matrix.format, matrix.num_pairs)};
        group.count = int(std::min(width, matrix.num_panels - group.first));
        for (int p = 0; p < group.count; p++) group.panel[p] = matrix.panels + (group.first + p) * group.panel_bytes;
        return group;
    }
};

// Calls `tile(first_row, num_rows, first_panel, num_panels, sums)` for every tile of the rows times the group's panels,
// and fetches the group `after` meanwhile.
template <class Tile>
inline void multiply_group(Tiles &tiles, const Matrix &matrix, const Group &group, const Group &after,
                           const Activations &activations, Tile tile) {
    const bool is_plain = matrix.format == Format::kBf16;
    const int64_t tile_rows = is_plain ? kProductRows : matrix.format == Format::kW8A8 ? kByteRows : kMaxRows;
    Ahead ahead;
    ahead.num_pieces = after.count;
    ahead.lines_a_piece = int(after.panel_bytes / 64);
    for (int p = 0; p < after.count; p++) ahead.pieces[p] = after.panel[p];
    const int64_t fetches_a_tile = matrix.num_pairs / (matrix.format == Format::kW8A8 ? 2 : 1);
    ahead.spread((activations.num_rows + tile_rows - 1) / tile_rows * fetches_a_tile);
    alignas(64) float sums[kProductRows * kMaxPanels * kColumns];
    for (int64_t first = 0; first < activations.num_rows; first += tile_rows) {
        const int count = int(std::min(tile_rows, activations.num_rows - first));
        if (is_plain) {
            product_tile(tiles, activations.rows + first * activations.stride, activations.stride, count,
                         (const bf16 *const *)group.panel, group.count, int(matrix.num_pairs), sums,
                         kMaxPanels * kColumns, ahead);
        } else {
            quantised_tile(count, group.count, activations.from(first), matrix.format, group.panel,
                           matrix.num_pairs / kBlockPairs, sums, kMaxPanels * kColumns, ahead);
        }
        tile(first, count, group.first, group.count, sums);
    }
}

}  // namespace footplate
