// Paged attention over a mixed batch, and the way of keys and values into the cache.
#pragma once

#include <cmath>
#include <limits>

#include "step.h"

namespace footplate {

constexpr int kSpan = 256;         // positions whose softmax is taken together, then merged with those before
constexpr int kTokensAnItem = 16;  // query tokens of one sequence and key head that one piece of work attends for

// Query tokens of one sequence that attend together, for one key head.
struct Item {
    int32_t chunk, kv_head, first_token, num_tokens;
};

inline std::vector<Item> items_of(const Model &model, const Step &step) {
    std::vector<Item> items;
    for (int32_t c = 0; c < step.num_chunks; c++)
        for (int32_t first = 0; first < step.chunks[c].num_tokens; first += kTokensAnItem)
            for (int32_t head = 0; head < model.num_kv_heads; head++)
                items.push_back({c, head, first, std::min(kTokensAnItem, step.chunks[c].num_tokens - first)});
    return items;
}

// `count` floats as bf16. A number that is not finite becomes one that is, so that a masked position adds nothing.
inline void store_finite(const float *from, int64_t count, bf16 *to) {
    const __m512 largest = _mm512_set1_ps(3.3895314e38f);
    for (int64_t i = 0; i < count; i += 16) {
        const __mmask16 mask = mask_of(count - i);
        const __m512 x = _mm512_maskz_loadu_ps(mask, from + i);
        const __mmask16 ordered = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
        const __m512 finite = _mm512_max_ps(_mm512_min_ps(_mm512_maskz_mov_ps(ordered, x), largest),
                                            _mm512_sub_ps(_mm512_setzero_ps(), largest));
        _mm256_mask_storeu_epi16(to + i, mask, to_bf16(finite));
    }
}

// One thread's attention: of the layer whose part of the cache is given. Owns scratch memory alone.
class Attention {
  public:
    Attention(const Model &model, const Shape &shape, const Step &step, const Buffers &buffers,
              const std::vector<Item> &items)
        : model_(model), shape_(shape), step_(step), buffers_(buffers), items_(items) {}

    // Queries and keys get their position's rotation, keys and values their places in the cache.
    void rotate_and_store(const Chunk &chunk, int32_t token, const Layer &layer, bf16 *cache) {
        const int64_t row = chunk.first_row + token;
        const int32_t position = chunk.start + token, rotary_row = chunk.first_rotary_row + token;
        float *head = buffers_.qkv + row * shape_.qkv;
        bf16 *query = buffers_.queries + row * model_.num_heads * shape_.head;
        for (int64_t h = 0; h < model_.num_heads; h++, head += model_.head_dim, query += shape_.head) {
            rotate(head, layer.query_norm, rotary_row);
            store(head, query);  // what is not finite stays so, and shows in the row's logits
        }
        const int64_t block = step_.blocks[chunk.first_block + position / kBlock];
        bf16 *keys = cache + block * model_.num_kv_heads * shape_.block_elements;
        const float *value = head + model_.num_kv_heads * model_.head_dim;
        for (int64_t h = 0; h < model_.num_kv_heads; h++, head += model_.head_dim, value += model_.head_dim) {
            rotate(head, layer.key_norm, rotary_row);
            store_key(head, position % kBlock, keys);
            store_value(value, position % kBlock, keys + shape_.head * kBlock);
            keys += shape_.block_elements;
        }
    }

    // Attention of the item's tokens for all query heads that share its key head: spans of kSpan positions, each with a
    // softmax of its own, merged in their order (Milakov and Gimelshein 2018; Dao et al. 2022, "FlashAttention"). Spans
    // that lie before the windows of all its rows are not read.
    void attend(int64_t index, const bf16 *cache, int64_t window) {
        const Item &item = items_[index];
        const Item *next = index + 1 < int64_t(items_.size()) ? &items_[index + 1] : nullptr;
        const Chunk &chunk = step_.chunks[item.chunk];
        const int64_t shared = model_.num_heads / model_.num_kv_heads;
        const int64_t num_rows = item.num_tokens * shared;
        for (int64_t first = 0; first < num_rows; first += kMaxRows) {
            Rows rows;
            rows.count = int(std::min<int64_t>(kMaxRows, num_rows - first));
            for (int r = 0; r < rows.count; r++) {
                const int64_t token = item.first_token + (first + r) / shared;
                const int64_t head = item.kv_head * shared + (first + r) % shared;
                const int64_t row = chunk.first_row + token;
                rows.query[r] = buffers_.queries + (row * model_.num_heads + head) * shape_.head;
                rows.context[r] = buffers_.context + row * shape_.context + head * model_.head_dim;
                rows.position[r] = int(chunk.start + token);
            }
            attend_rows(rows, item, next, cache, window);
        }
    }

  private:
    void store(const float *head, bf16 *to) {
        for (int64_t d = 0; d < model_.head_dim; d += 16) {
            const __mmask16 mask = mask_of(model_.head_dim - d);
            _mm256_mask_storeu_epi16(to + d, mask, to_bf16(_mm512_maskz_loadu_ps(mask, head + d)));
        }
    }

    // Column `slot` of a panel whose pairs are those of the head's dimensions.
    void store_key(const float *key, int slot, bf16 *panel) {
        bf16 *narrow = narrow_.of(shape_.head);
        store_finite(key, model_.head_dim, narrow);
        for (int64_t pair = 0; pair < model_.head_dim / 2; pair++)
            std::memcpy(panel + pair * kPairElements + 2 * slot, narrow + 2 * pair, 4);
    }

    // Row `slot` of panels whose pairs are those of the positions.
    void store_value(const float *value, int slot, bf16 *panels) {
        bf16 *narrow = narrow_.of(shape_.head);
        store_finite(value, model_.head_dim, narrow);
        const __mmask32 places = slot % 2 ? 0xaaaaaaaau : 0x55555555u;
        for (int64_t d = 0; d < model_.head_dim; d += 16) {
            bf16 *pair = panels + (d / 16 * (kBlock / 2) + slot / 2) * kPairElements;
            const int64_t left = model_.head_dim - d;
            const __mmask32 columns = left >= 16 ? 0xffffffffu : (1u << (2 * left)) - 1;
            const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(narrow + d)));
            _mm512_mask_storeu_epi16(pair, places & columns, slot % 2 ? _mm512_slli_epi32(wide, 16) : wide);
        }
    }

    // In place; `norm` is null where heads are not normalised. The pairs are dimension i and i + rotary_dim / 2.
    void rotate(float *head, const float *norm, int64_t rotary_row) {
        const int64_t half = model_.rotary_dim / 2, size = model_.head_dim;
        if (norm) {
            float squares = 0;
            for (int64_t d = 0; d < size; d++) squares += head[d] * head[d];
            const float scale = 1.0f / std::sqrt(squares / float(size) + model_.norm_eps);
            for (int64_t d = 0; d < size; d++) head[d] *= scale * norm[d];
        }
        const float *cosines = model_.cosines + rotary_row * half, *sines = model_.sines + rotary_row * half;
        for (int64_t d = 0; d < half; d += 16) {
            const __mmask16 mask = mask_of(half - d);
            const __m512 cosine = _mm512_maskz_loadu_ps(mask, cosines + d),
                         sine = _mm512_maskz_loadu_ps(mask, sines + d);
            const __m512 first = _mm512_maskz_loadu_ps(mask, head + d);
            const __m512 second = _mm512_maskz_loadu_ps(mask, head + half + d);
            _mm512_mask_storeu_ps(head + d, mask, _mm512_fmsub_ps(first, cosine, _mm512_mul_ps(second, sine)));
            _mm512_mask_storeu_ps(head + half + d, mask, _mm512_fmadd_ps(second, cosine, _mm512_mul_ps(first, sine)));
        }
    }

    struct Rows {
        int count;
        const bf16 *query[kMaxRows];
        bf16 *context[kMaxRows];
        int position[kMaxRows];  // ascending
    };

    // Blocks of the span that begins at `begin`, as far as the item's last token sees; returns how many.
    int span_of(const Item &item, int begin, int last, const bf16 *cache, const bf16 **keys) const {
        const int32_t *blocks = step_.blocks + step_.chunks[item.chunk].first_block;
        const int num_blocks = std::min(kSpan, last + 1 - begin + kBlock - 1) / kBlock;
        for (int b = 0; b < num_blocks; b++) {
            const int64_t block = blocks[begin / kBlock + b];
            keys[b] = cache + (block * model_.num_kv_heads + item.kv_head) * shape_.block_elements;
        }
        return num_blocks;
    }

    int last_position(const Item &item) const {
        return step_.chunks[item.chunk].start + item.first_token + item.num_tokens - 1;
    }

    // The first position that a row at `position` sees.
    static int first_seen(int position, int64_t window) {
        return int(std::max<int64_t>(0, position + 1 - window));
    }

    // The span with which the item begins: that of the first position which its first token sees.
    int first_span(const Item &item, int64_t window) const {
        return first_seen(step_.chunks[item.chunk].start + item.first_token, window) / kSpan * kSpan;
    }

    void attend_rows(const Rows &rows, const Item &item, const Item *next, const bf16 *cache, int64_t window) {
        float *merged = weighted_.of(2 * kMaxRows * shape_.head), *fresh = merged + kMaxRows * shape_.head;
        float peak[kMaxRows], weight[kMaxRows];
        const int last = rows.position[rows.count - 1];
        const int first = first_seen(rows.position[0], window) / kSpan * kSpan;
        for (int begin = first; begin <= last; begin += kSpan) {
            const bf16 *keys[kSpan / kBlock];
            const int num_blocks = span_of(item, begin, last, cache, keys);
            Ahead ahead;
            const bf16 *coming[kSpan / kBlock];
            if (begin + kSpan <= last)
                ahead.num_pieces = span_of(item, begin + kSpan, last, cache, coming);
            else if (next)
                ahead.num_pieces = span_of(*next, first_span(*next, window), last_position(*next), cache, coming);
            for (int b = 0; b < ahead.num_pieces; b++) ahead.pieces[b] = (const char *)coming[b];
            ahead.lines_a_piece = int(shape_.block_elements * 2 / 64);
            ahead.spread(num_blocks *
                         (shape_.head / 2 / kMaxPanels + kBlock / 2 * shape_.head / kColumns / kMaxPanels));
            score(rows, keys, num_blocks, ahead);
            float span_peak[kMaxRows], span_weight[kMaxRows];
            for (int r = 0; r < rows.count; r++)
                soften(r, first_seen(rows.position[r], window) - begin, rows.position[r] + 1 - begin, num_blocks,
                       &span_peak[r], &span_weight[r]);
            float *into = begin == first ? merged : fresh;
            weigh(rows.count, keys, num_blocks, into, ahead);
            for (int r = 0; r < rows.count; r++) {
                if (begin == first || weight[r] == 0) {  // nothing that the row sees came before
                    if (begin != first) std::copy_n(fresh + r * shape_.head, shape_.head, merged + r * shape_.head);
                    peak[r] = span_peak[r];
                    weight[r] = span_weight[r];
                } else if (span_weight[r] != 0) {
                    merge(merged + r * shape_.head, fresh + r * shape_.head, peak[r], weight[r], span_peak[r],
                          span_weight[r]);
                }
            }
        }
        for (int r = 0; r < rows.count; r++) finish(merged + r * shape_.head, weight[r], rows.context[r]);
    }

    // scores_[r][position] = query r · key at the position, for all positions of the blocks.
    void score(const Rows &rows, const bf16 *const *keys, int num_blocks, Ahead &ahead) {
        for (int b = 0; b < num_blocks; b += kMaxPanels) {
            const int count = std::min(kMaxPanels, num_blocks - b);
            dot_tile_for(rows.count, count)(rows.query, keys + b, 1, int(shape_.head / 2), scores_ + b * kBlock, kSpan,
                                            ahead);
        }
    }

    // Row r's scores of the positions from `seen_from` to before `seen_to`, both counted from the span's first and
    // maybe outside it, become weights: exp(score - peak); all others are 0.
    void soften(int r, int seen_from, int seen_to, int num_blocks, float *peak, float *sum) {
        float *scores = scores_ + r * kSpan;
        const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(float(model_.head_dim)));
        const __m512 lowest = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
        __m512 peaks = lowest;
        for (int b = 0; b < num_blocks; b++) {
            const __mmask16 visible = mask_of(seen_to - b * kBlock) & ~mask_of(seen_from - b * kBlock);
            const __m512 scaled = _mm512_mul_ps(_mm512_load_ps(scores + b * kBlock), scale);
            const __m512 seen = _mm512_mask_mov_ps(lowest, visible, scaled);
            _mm512_store_ps(scores + b * kBlock, seen);
            peaks = _mm512_max_ps(peaks, seen);
        }
        *peak = _mm512_reduce_max_ps(peaks);
        const bool sees_any = std::min(seen_to, num_blocks * kBlock) > std::max(seen_from, 0);
        const __m512 top = _mm512_set1_ps(sees_any ? *peak : 0.0f);
        __m512 sums = _mm512_setzero_ps();
        for (int b = 0; b < num_blocks; b++) {
            const __m512 weights = exp_nonpositive(_mm512_sub_ps(_mm512_load_ps(scores + b * kBlock), top));
            sums = _mm512_add_ps(sums, weights);
            _mm256_store_si256((__m256i *)(weights_ + r * kSpan + b * kBlock), to_bf16(weights));
        }
        *sum = _mm512_reduce_add_ps(sums);
    }

    // into[r] = sum of the blocks' values by row r's weights.
    void weigh(int num_rows, const bf16 *const *keys, int num_blocks, float *into, Ahead &ahead) {
        const bf16 *weights[kMaxRows];
        for (int r = 0; r < num_rows; r++) weights[r] = weights_ + r * kSpan;
        const int num_panels = int(shape_.head / kColumns);
        for (int first = 0; first < num_panels; first += kMaxPanels) {
            const int count = std::min(kMaxPanels, num_panels - first);
            const bf16 *values[kSpan / kBlock * kMaxPanels];
            for (int b = 0; b < num_blocks; b++)
                for (int p = 0; p < count; p++)
                    values[b * count + p] = keys[b] + shape_.head * kBlock + (first + p) * 8 * kPairElements;
            dot_tile_for(num_rows, count)(weights, values, num_blocks, kBlock / 2, into + first * kColumns, shape_.head,
                                          ahead);
        }
    }

    void merge(float *merged, const float *fresh, float &peak, float &weight, float span_peak, float span_weight) {
        const float top = std::max(peak, span_peak);
        const __m512 old_share = exp_nonpositive(_mm512_set1_ps(peak - top));
        const __m512 new_share = exp_nonpositive(_mm512_set1_ps(span_peak - top));
        for (int64_t d = 0; d < shape_.head; d += 16) {
            const __m512 old = _mm512_mul_ps(_mm512_loadu_ps(merged + d), old_share);
            _mm512_storeu_ps(merged + d, _mm512_fmadd_ps(_mm512_loadu_ps(fresh + d), new_share, old));
        }
        weight = weight * _mm512_cvtss_f32(old_share) + span_weight * _mm512_cvtss_f32(new_share);
        peak = top;
    }

    void finish(const float *merged, float weight, bf16 *context) {
        const __m512 share = _mm512_set1_ps(1.0f / weight);
        for (int64_t d = 0; d < model_.head_dim; d += 16) {
            const __mmask16 mask = mask_of(model_.head_dim - d);
            _mm256_mask_storeu_epi16(context + d, mask, to_bf16(_mm512_mul_ps(_mm512_loadu_ps(merged + d), share)));
        }
    }

    const Model &model_;
    const Shape &shape_;
    const Step &step_;
    const Buffers &buffers_;
    const std::vector<Item> &items_;
    alignas(64) float scores_[kMaxRows * kSpan];
    alignas(64) bf16 weights_[kMaxRows * kSpan];
    Scratch<float> weighted_;
    Scratch<bf16> narrow_;
};

}  // namespace footplate
