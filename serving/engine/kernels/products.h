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
    int8_t *bytes;      // [num_rows, 2 * stride]
    BlockFacts *facts;  // [num_rows, stride / kBlockInputs]

    void make_ready(Format format, int64_t row) const {
        if (format == Format::kW8A8)
            quantise_coarsely(rows + row * stride, stride, from(row));
        else
            quantise_finely(rows + row * stride, stride, from(row));
    }

    QuantisedRows from(int64_t row) const {
        const int64_t num_facts = stride / kBlockInputs;
        return {bytes + row * 2 * stride, 2 * stride, facts + row * num_facts, num_facts};
    }
};

// Panels that are computed together.
struct Group {
    int64_t first;
    int count;
    const char *panel[kMaxPanels];
    int64_t panel_bytes;
};

// A matrix's panels in groups, as many to each thread, of which the last may have fewer panels or none: so the threads'
// shares are alike, and all else is done in the largest tiles. Two panels that belong together stay together.
struct Groups {
    const Matrix &matrix;
    int64_t width, share, groups_a_share, count;

    Groups(const Matrix &whole, int num_threads) : matrix(whole) {
        width = matrix.format == Format::kBf16 ? kMaxPanels : kQuantisedPanels;
        share = ((matrix.num_panels + 1) / 2 + num_threads - 1) / num_threads * 2;
        groups_a_share = (share + width - 1) / width;
        count = groups_a_share * num_threads;
    }

    Group at(int64_t index) const {
        const int64_t end = std::min((index / groups_a_share + 1) * share, matrix.num_panels);
        Group group{index / groups_a_share * share + index % groups_a_share * width,
                    0,
                    {},
                    panel_bytes_of(matrix.format, matrix.num_pairs)};
        group.count = int(std::clamp<int64_t>(end - group.first, 0, width));
        for (int p = 0; p < group.count; p++) group.panel[p] = matrix.panels + (group.first + p) * group.panel_bytes;
        return group;
    }
};

// Calls `tile(first_row, num_rows, first_panel, num_panels, sums)` for every tile of the rows times the group's panels,
// and fetches the group `after` meanwhile.
template <class Tile>
inline void multiply_group(Tiles &tiles, const Matrix &matrix, const Group &group, const Group &after,
                           const Activations &activations, Tile tile) {
    if (!group.count) return;
    const bool is_plain = matrix.format == Format::kBf16;
    const int64_t num_tiles = (activations.num_rows + kProductRows - 1) / kProductRows;
    Ahead ahead;
    ahead.num_pieces = after.count;
    ahead.lines_a_piece = int(after.panel_bytes / 64);
    for (int p = 0; p < after.count; p++) ahead.pieces[p] = after.panel[p];
    ahead.spread(num_tiles * matrix.num_pairs);
    // Few rows wait for memory, which the processor then reads ahead by itself, and faster; more keep it from that.
    const bool is_work = 4 * activations.num_rows > lines_of_block(matrix.format);
    alignas(64) float sums[kProductRows * kMaxPanels * kColumns];
    for (int64_t first = 0, count; first < activations.num_rows; first += count) {
        const int64_t left = activations.num_rows - first;
        count = is_plain ? product_rows(left) : rows_alike(left, kMaxRows);
        if (is_plain) {
            product_tile(tiles, activations.rows + first * activations.stride, activations.stride, int(count),
                         (const bf16 *const *)group.panel, group.count, int(matrix.num_pairs), sums,
                         kMaxPanels * kColumns, ahead);
        } else {
            quantised_tile(int(count), activations.from(first), matrix.format, group.panel[0], matrix.num_pairs,
                           is_work && first == 0, sums, kMaxPanels * kColumns);
        }
        tile(first, int(count), group.first, group.count, sums);
    }
}

}  // namespace footplate
