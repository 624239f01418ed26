// One step of a Llama-like decoder over ragged rows, on the CPU: from token ids to logits, in one call.
//
// All threads walk through the same phases; in each they take pieces of work from a counter until none is left, and meet
// at a barrier. So a step costs one fork and join instead of several a layer, and a thread that is slowed down by
// another process holds the others up by one piece at most. Which thread computes a piece changes no result.
#include <omp.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "quantised.h"

namespace footplate {

constexpr int kBlock = 16;         // positions of a KV block
constexpr int kSpan = 256;         // positions whose softmax is taken together, then merged with those before
constexpr int kTokensAnItem = 16;  // query tokens of one sequence and key head that one piece of work attends for

// [out, in] as panels in one of the formats; `bias` has an entry a column or is null.
struct Matrix {
    const char *panels;
    const float *bias;
    int64_t num_panels;
    int64_t num_pairs;
    Format format;
};

struct Layer {
    const float *input_norm;
    const float *mlp_norm;
    const float *query_norm;  // null where the family has none
    const float *key_norm;
    Matrix qkv;
    Matrix output;
    Matrix gate_up;  // panels of gate and up in turn
    Matrix down;
};

struct Model {
    int64_t num_layers, hidden_size, num_heads, num_kv_heads, head_dim, vocab_size, num_blocks;
    float norm_eps;
    const Layer *layers;
    const bf16 *embedding;  // [vocab_size, hidden_size]
    const float *final_norm;
    Matrix vocabulary;
    const float *cosines;  // [max_model_len, head_dim / 2]
    const float *sines;
    bf16 *cache;  // [num_layers, num_blocks, num_kv_heads, 2, padded head_dim * kBlock], see `Shape`
};

struct Chunk {
    int32_t first_row, num_tokens, start, first_block;  // `first_block` is an index into `Step::blocks`
};

struct Step {
    int64_t num_rows, num_chunks, num_logit_rows;
    const int32_t *token_ids;
    const int32_t *chunk_of;  // [num_rows]
    const Chunk *chunks;
    const int32_t *blocks;  // the chunks' block tables, one after the other
    const int32_t *logit_rows;
    float *logits;           // [num_logit_rows, vocab_size]
    uint8_t *is_unsound;     // [num_rows]: whether a number of the row is not finite
    char *workspace;         // zeroed once, of `footplate_workspace_bytes`
    double seconds[3];       // linear, attention, the rest
};

inline int64_t padded(int64_t count, int64_t multiple) { return (count + multiple - 1) / multiple * multiple; }

// Sizes that follow from the model. A head's keys in a block are one panel of head_dim / 2 pairs, its values
// head_dim / 16 panels of 8 pairs, both with head_dim padded to a multiple of 16.
struct Shape {
    int64_t hidden, qkv, context, inner, widest, head, block_elements, layer_elements;

    explicit Shape(const Model &model)
        : hidden(padded(model.hidden_size, 32)),
          qkv(model.layers[0].qkv.num_panels * kColumns),
          context(padded(model.num_heads * model.head_dim, 32)),
          inner(padded(model.layers[0].down.num_pairs * 2, 32)),
          widest(std::max({hidden, context, inner})),
          head(padded(model.head_dim, 16)),
          block_elements(2 * head * kBlock),
          layer_elements(model.num_blocks * model.num_kv_heads * block_elements) {}
};

// The step's buffers. Columns of padding are zero from the start and stay so.
struct Buffers {
    float *hidden;  // [num_rows, shape.hidden], the residual stream
    float *qkv;     // [num_rows, shape.qkv]
    BlockFacts *facts;  // [num_rows, shape.widest / kBlockInputs], of the activations' blocks
    bf16 *normed;   // [num_rows, shape.hidden]
    bf16 *queries;  // [num_rows, num_heads, shape.head]
    bf16 *context;  // [num_rows, shape.context]
    bf16 *inner;    // [num_rows, shape.inner]
    int8_t *bytes;  // [num_rows, shape.widest], quantised activations

    static int64_t bytes_a_row(const Model &model, const Shape &shape) {
        return 4 * (shape.hidden + shape.qkv) + int64_t(sizeof(BlockFacts)) * shape.widest / kBlockInputs +
               2 * (shape.hidden + model.num_heads * shape.head + shape.context + shape.inner) + shape.widest;
    }

    // `capacity` is the number of rows that the workspace was made for: the places must not move with the step's rows,
    // or padding would not stay zero.
    Buffers(const Model &model, const Shape &shape, char *workspace, int64_t capacity) {
        hidden = (float *)workspace;
        qkv = hidden + capacity * shape.hidden;
        facts = (BlockFacts *)(qkv + capacity * shape.qkv);
        normed = (bf16 *)(facts + capacity * shape.widest / kBlockInputs);
        queries = normed + capacity * shape.hidden;
        context = queries + capacity * model.num_heads * shape.head;
        inner = context + capacity * shape.context;
        bytes = (int8_t *)(inner + capacity * shape.inner);
    }
};

// Where the threads of a step meet and what is left to do in each phase.
class Team {
  public:
    Team(int size, int64_t num_phases) : size_(size), counters_(num_phases * size) {}

    int size() const { return size_; }

    // The pieces of a phase that lie nearest to a member: those it begins with.
    int64_t first_of(int member, int64_t total) const { return total * member / size_; }

    // The next piece of `member`'s in `phase`, or -1 where none is left. Any member may ask.
    int64_t claim(int64_t phase, int member, int64_t total) {
        const int64_t first = first_of(member, total), count = first_of(member + 1, total) - first;
        std::atomic<int64_t> &counter = counters_[phase * size_ + member];
        if (counter.load(std::memory_order_relaxed) >= count) return -1;
        const int64_t next = counter.fetch_add(1, std::memory_order_relaxed);
        return next < count ? first + next : -1;
    }

    void meet() {
        const int round = round_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
            arrived_.store(0, std::memory_order_relaxed);
            round_.store(round + 1, std::memory_order_release);
            return;
        }
        // Brief waits cost least awake; a long one means that another process has the other's core, and may need ours.
        for (int spins = 0; round_.load(std::memory_order_acquire) == round; spins++) {
            if (spins < kSpins) _mm_pause();
            else sched_yield();
        }
    }

  private:
    static constexpr int kSpins = 2000;
    const int size_;
    std::vector<std::atomic<int64_t>> counters_;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> round_{0};
};

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

// out = rows / rms(rows) * weight. `size` is padded; padding is zero in rows and weight.
inline __m512 inverse_rms(const float *row, int64_t size, int64_t padded_size, float eps) {
    __m512 squares = _mm512_setzero_ps();
    for (int64_t i = 0; i < padded_size; i += 16) {
        const __m512 x = _mm512_loadu_ps(row + i);
        squares = _mm512_fmadd_ps(x, x, squares);
    }
    return _mm512_set1_ps(1.0f / std::sqrt(_mm512_reduce_add_ps(squares) / float(size) + eps));
}

inline void normalise(const float *row, const float *weight, int64_t size, int64_t padded_size, float eps, bf16 *out) {
    const __m512 scale = inverse_rms(row, size, padded_size, eps);
    for (int64_t i = 0; i < padded_size; i += 16) {
        const __m512 x = _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(row + i), scale), _mm512_loadu_ps(weight + i));
        _mm256_storeu_si256((__m256i *)(out + i), to_bf16(x));
    }
}

inline __m512 silu(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 power = exp_nonpositive(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(x)));
    const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    const __m512 above = _mm512_mask_mov_ps(one, negative, power);
    return _mm512_mul_ps(x, _mm512_div_ps(above, _mm512_add_ps(one, power)));
}

// `count` floats as bf16. A number that is not finite becomes one that is, so that a masked position adds nothing.
inline void store_finite(const float *from, int64_t count, bf16 *to) {
    const __m512 largest = _mm512_set1_ps(3.3895314e38f);
    for (int64_t i = 0; i < count; i += 16) {
        const __mmask16 mask = count - i >= 16 ? 0xffff : __mmask16((1u << (count - i)) - 1);
        const __m512 x = _mm512_maskz_loadu_ps(mask, from + i);
        const __mmask16 ordered = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
        const __m512 finite = _mm512_max_ps(_mm512_min_ps(_mm512_maskz_mov_ps(ordered, x), largest),
                                            _mm512_sub_ps(_mm512_setzero_ps(), largest));
        _mm256_mask_storeu_epi16(to + i, mask, to_bf16(finite));
    }
}

// Rows that are multiplied: bf16, and what quantised weights need of them.
struct Activations {
    const bf16 *rows;
    int64_t stride, num_rows;
    int8_t *bytes;      // [num_rows, stride]
    BlockFacts *facts;  // [num_rows, stride / kBlockInputs]

    int64_t num_blocks() const { return stride / kBlockInputs; }

    void make_ready(Format format, int64_t row) const {
        BlockFacts *of_row = facts + row * num_blocks();
        if (format == Format::kW8A8) quantise_row(rows + row * stride, num_blocks(), bytes + row * stride, of_row);
        else add_up_row(rows + row * stride, num_blocks(), of_row);
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

// Scratch memory that grows, aligned to cache lines.
template <class T>
class Scratch {
  public:
    ~Scratch() { std::free(memory_); }

    T *of(int64_t count) {
        if (count > count_) {
            std::free(memory_);
            count_ = count;
            memory_ = (T *)std::aligned_alloc(64, padded(count * int64_t(sizeof(T)), 64));
            if (!memory_) std::abort();
        }
        return memory_;
    }

  private:
    T *memory_ = nullptr;
    int64_t count_ = 0;
};

// One thread's way through a step.
class Worker {
  public:
    Worker(const Model &model, const Shape &shape, Step &step, const Buffers &buffers, const std::vector<Item> &items,
           Team &team, int member)
        : model_(model), shape_(shape), step_(step), buffers_(buffers), items_(items), team_(team), member_(member) {}

    void run() {
        mark();
        share(step_.num_rows, [&](int64_t row) { embed(row); });
        for (int64_t index = 0; index < model_.num_layers; index++) layer(index, model_.layers[index]);
        share(step_.num_rows, [&](int64_t row) { check(row); });
        share(step_.num_logit_rows, [&](int64_t row) { norm(step_.logit_rows[row], row, model_.final_norm); });
        spent(2);
        logits();
        spent(0);
    }

    static int64_t num_phases(const Model &model) { return 5 + 12 * model.num_layers; }

  private:
    // Calls `work` for every piece from 0 to `total` among all threads; returns when all are done. A thread takes its own
    // share in order, so that what comes next is known and can be fetched ahead, then what the others have left.
    template <class Work>
    void share(int64_t total, Work work) {
        for (int i = 0; i < team_.size(); i++) {
            const int member = (member_ + i) % team_.size();
            for (int64_t piece; (piece = team_.claim(phase_, member, total)) >= 0;) work(piece);
        }
        phase_++;
        team_.meet();
    }

    void mark() {
        if (member_ == 0) marked_ = std::chrono::steady_clock::now();
    }

    void spent(int on) {
        if (member_ != 0) return;
        const auto now = std::chrono::steady_clock::now();
        step_.seconds[on] += std::chrono::duration<double>(now - marked_).count();
        marked_ = now;
    }

    void layer(int64_t index, const Layer &layer) {
        bf16 *cache = model_.cache + index * shape_.layer_elements;
        share(step_.num_rows, [&](int64_t row) { norm(row, row, layer.input_norm); });
        spent(2);
        multiply(layer.qkv, layer.output, buffers_.normed, shape_.hidden, step_.num_rows, [&](int64_t row, int64_t column, __m512 x) {
            _mm512_storeu_ps(buffers_.qkv + row * shape_.qkv + column, x);
        });
        spent(0);
        share(step_.num_rows, [&](int64_t row) {
            const Chunk &chunk = step_.chunks[step_.chunk_of[row]];
            rotate_and_store(chunk, int32_t(row) - chunk.first_row, layer, cache);
        });
        spent(2);
        share(int64_t(items_.size()), [&](int64_t item) { attend(item, cache); });
        spent(1);
        const auto add = [&](int64_t row, int64_t column, __m512 x) {
            float *hidden = buffers_.hidden + row * shape_.hidden + column;
            _mm512_storeu_ps(hidden, _mm512_add_ps(_mm512_loadu_ps(hidden), x));
        };
        multiply(layer.output, layer.gate_up, buffers_.context, shape_.context, step_.num_rows, add);
        spent(0);
        share(step_.num_rows, [&](int64_t row) { norm(row, row, layer.mlp_norm); });
        spent(2);
        multiply_gated(layer.gate_up, layer.down);
        const Matrix &next = index + 1 == model_.num_layers ? model_.vocabulary : model_.layers[index + 1].qkv;
        multiply(layer.down, next, buffers_.inner, shape_.inner, step_.num_rows, add);
        spent(0);
    }

    void embed(int64_t row) {
        const bf16 *embedding = model_.embedding + int64_t(step_.token_ids[row]) * model_.hidden_size;
        float *hidden = buffers_.hidden + row * shape_.hidden;
        for (int64_t i = 0; i < model_.hidden_size; i++) {
            const uint32_t bits = uint32_t(embedding[i]) << 16;
            std::memcpy(hidden + i, &bits, 4);
        }
    }

    void norm(int64_t row, int64_t to, const float *weight) {
        normalise(buffers_.hidden + row * shape_.hidden, weight, model_.hidden_size, shape_.hidden, model_.norm_eps,
                  buffers_.normed + to * shape_.hidden);
    }

    void check(int64_t row) {
        const float *hidden = buffers_.hidden + row * shape_.hidden;
        __m512 zeros = _mm512_setzero_ps();  // a number times zero is zero, unless it is not finite
        for (int64_t i = 0; i < shape_.hidden; i += 16)
            zeros = _mm512_fmadd_ps(_mm512_loadu_ps(hidden + i), _mm512_setzero_ps(), zeros);
        step_.is_unsound[row] = std::isnan(_mm512_reduce_add_ps(zeros));
    }

    // Calls `tile(first_row, num_rows, first_panel, num_panels, sums)` for every tile of the product. `next` is the
    // matrix of the next product, of which this thread's first panels are fetched in the end.
    template <class Tile>
    void multiply_tiles(const Matrix &matrix, const Matrix &next, const bf16 *rows, int64_t stride, int64_t num_rows,
                        Tile tile) {
        const Activations activations{rows, stride, num_rows, buffers_.bytes, buffers_.facts};
        const Groups groups(matrix, team_.size()), coming(next, team_.size());
        if (matrix.format == Format::kInt4 || matrix.format == Format::kW8A8)
            share(num_rows, [&](int64_t row) { activations.make_ready(matrix.format, row); });
        const int64_t end = team_.first_of(member_ + 1, groups.count);
        share(groups.count, [&](int64_t index) {
            const Group after = index + 1 == end ? coming.at(team_.first_of(member_, coming.count))
                                                 : groups.at(std::min(index + 1, groups.count - 1));
            multiply_group(tiles_, matrix, groups.at(index), after, activations, tile);
        });
    }

    // Calls `take(row, column, sixteen values)` for everything that rows times matrix plus bias gives.
    template <class Take>
    void multiply(const Matrix &matrix, const Matrix &next, const bf16 *rows, int64_t stride, int64_t num_rows, Take take) {
        multiply_tiles(matrix, next, rows, stride, num_rows,
                       [&](int64_t first, int count, int64_t first_panel, int num_panels, const float *sums) {
                           for (int p = 0; p < num_panels; p++) {
                               const int64_t column = (first_panel + p) * kColumns;
                               const __m512 bias = bias_of(matrix, column);
                               for (int r = 0; r < count; r++) {
                                   const float *from = sums + (r * kMaxPanels + p) * kColumns;
                                   take(first + r, column, _mm512_add_ps(_mm512_load_ps(from), bias));
                               }
                           }
                       });
    }

    // inner = silu(gate) * up.
    void multiply_gated(const Matrix &matrix, const Matrix &next) {
        multiply_tiles(matrix, next, buffers_.normed, shape_.hidden, step_.num_rows,
                       [&](int64_t first, int count, int64_t first_panel, int num_panels, const float *sums) {
                           for (int p = 0; p < num_panels; p += 2) {
                               const int64_t column = (first_panel + p) * kColumns;
                               const __m512 gate_bias = bias_of(matrix, column);
                               const __m512 up_bias = bias_of(matrix, column + kColumns);
                               for (int r = 0; r < count; r++) {
                                   const float *from = sums + (r * kMaxPanels + p) * kColumns;
                                   const __m512 gate = _mm512_add_ps(_mm512_load_ps(from), gate_bias);
                                   const __m512 up = _mm512_add_ps(_mm512_load_ps(from + kColumns), up_bias);
                                   bf16 *to = buffers_.inner + (first + r) * shape_.inner + column / 2;
                                   _mm256_storeu_si256((__m256i *)to, to_bf16(_mm512_mul_ps(silu(gate), up)));
                               }
                           }
                       });
    }

    static __m512 bias_of(const Matrix &matrix, int64_t column) {
        return matrix.bias ? _mm512_loadu_ps(matrix.bias + column) : _mm512_setzero_ps();
    }

    void logits() {
        if (!step_.num_logit_rows) return;
        const int64_t size = model_.vocab_size;
        multiply(model_.vocabulary, model_.layers[0].qkv, buffers_.normed, shape_.hidden, step_.num_logit_rows,
                 [&](int64_t row, int64_t column, __m512 x) {
                     const int64_t left = size - column;
                     const __mmask16 mask = left >= kColumns ? 0xffff : __mmask16((1u << left) - 1);
                     _mm512_mask_storeu_ps(step_.logits + row * size + column, mask, x);
                 });
    }

    // Queries and keys get their position's rotation, keys and values their places in the cache.
    void rotate_and_store(const Chunk &chunk, int32_t token, const Layer &layer, bf16 *cache) {
        const int64_t row = chunk.first_row + token;
        const int32_t position = chunk.start + token;
        float *head = buffers_.qkv + row * shape_.qkv;
        bf16 *query = buffers_.queries + row * model_.num_heads * shape_.head;
        for (int64_t h = 0; h < model_.num_heads; h++, head += model_.head_dim, query += shape_.head) {
            rotate(head, layer.query_norm, position);
            store_finite(head, model_.head_dim, query);
        }
        const int64_t block = step_.blocks[chunk.first_block + position / kBlock];
        bf16 *keys = cache + block * model_.num_kv_heads * shape_.block_elements;
        const float *value = head + model_.num_kv_heads * model_.head_dim;
        for (int64_t h = 0; h < model_.num_kv_heads; h++, head += model_.head_dim, value += model_.head_dim) {
            rotate(head, layer.key_norm, position);
            store_key(head, position % kBlock, keys);
            store_value(value, position % kBlock, keys + shape_.head * kBlock);
            keys += shape_.block_elements;
        }
    }

    // Column `slot` of a panel whose pairs are those of the head's dimensions.
    void store_key(const float *key, int slot, bf16 *panel) {
        bf16 *narrow = narrow_.of(shape_.head);
        narrow[shape_.head - 1] = 0;  // of an odd number of pairs' padding
        store_finite(key, model_.head_dim, narrow);
        for (int64_t pair = 0; pair < (model_.head_dim + 1) / 2; pair++)
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

    // In place; `norm` is null where heads are not normalised. The pairs are dimension i and i + head_dim / 2.
    void rotate(float *head, const float *norm, int32_t position) {
        const int64_t half = model_.head_dim / 2;
        if (norm) {
            float squares = 0;
            for (int64_t d = 0; d < 2 * half; d++) squares += head[d] * head[d];
            const float scale = 1.0f / std::sqrt(squares / float(2 * half) + model_.norm_eps);
            for (int64_t d = 0; d < 2 * half; d++) head[d] *= scale * norm[d];
        }
        const float *cosines = model_.cosines + position * half, *sines = model_.sines + position * half;
        for (int64_t d = 0; d < half; d += 16) {
            const __mmask16 mask = half - d >= 16 ? 0xffff : __mmask16((1u << (half - d)) - 1);
            const __m512 cosine = _mm512_maskz_loadu_ps(mask, cosines + d), sine = _mm512_maskz_loadu_ps(mask, sines + d);
            const __m512 first = _mm512_maskz_loadu_ps(mask, head + d);
            const __m512 second = _mm512_maskz_loadu_ps(mask, head + half + d);
            _mm512_mask_storeu_ps(head + d, mask,
                                  _mm512_fmsub_ps(first, cosine, _mm512_mul_ps(second, sine)));
            _mm512_mask_storeu_ps(head + half + d, mask,
                                  _mm512_fmadd_ps(second, cosine, _mm512_mul_ps(first, sine)));
        }
    }

    // Attention of the item's tokens for all query heads that share its key head: spans of kSpan positions, each with a
    // softmax of its own, merged in their order (Milakov and Gimelshein 2018; Dao et al. 2022, "FlashAttention").
    void attend(int64_t index, const bf16 *cache) {
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
            attend_rows(rows, item, next, cache);
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

    void attend_rows(const Rows &rows, const Item &item, const Item *next, const bf16 *cache) {
        float *merged = weighted_.of(2 * kMaxRows * shape_.head), *fresh = merged + kMaxRows * shape_.head;
        float peak[kMaxRows], weight[kMaxRows];
        const int last = rows.position[rows.count - 1];
        for (int begin = 0; begin <= last; begin += kSpan) {
            const bf16 *keys[kSpan / kBlock];
            const int num_blocks = span_of(item, begin, last, cache, keys);
            Ahead ahead;
            const bf16 *coming[kSpan / kBlock];
            if (begin + kSpan <= last) ahead.num_pieces = span_of(item, begin + kSpan, last, cache, coming);
            else if (next) ahead.num_pieces = span_of(*next, 0, last_position(*next), cache, coming);
            for (int b = 0; b < ahead.num_pieces; b++) ahead.pieces[b] = (const char *)coming[b];
            ahead.lines_a_piece = int(shape_.block_elements * 2 / 64);
            ahead.spread(num_blocks * (shape_.head / 2 / kMaxPanels + kBlock / 2 * shape_.head / kColumns / kMaxPanels));
            score(rows, keys, num_blocks, ahead);
            float span_peak[kMaxRows], span_weight[kMaxRows];
            for (int r = 0; r < rows.count; r++)
                soften(r, rows.position[r] - begin + 1, num_blocks, &span_peak[r], &span_weight[r]);
            float *into = begin == 0 ? merged : fresh;
            weigh(rows.count, keys, num_blocks, into, ahead);
            for (int r = 0; r < rows.count; r++) {
                if (begin == 0) {
                    peak[r] = span_peak[r];
                    weight[r] = span_weight[r];
                } else if (span_weight[r] > 0) {
                    merge(merged + r * shape_.head, fresh + r * shape_.head, peak[r], weight[r], span_peak[r], span_weight[r]);
                }
            }
        }
        for (int r = 0; r < rows.count; r++) finish(merged + r * shape_.head, weight[r], rows.context[r]);
    }

    // scores_[r][position] = query r · key at the position, for all positions of the blocks.
    void score(const Rows &rows, const bf16 *const *keys, int num_blocks, Ahead &ahead) {
        for (int b = 0; b < num_blocks; b += kMaxPanels) {
            const int count = std::min(kMaxPanels, num_blocks - b);
            dot_tile_for(rows.count, count)(rows.query, keys + b, 1, int(shape_.head / 2), scores_ + b * kBlock, kSpan, ahead);
        }
    }

    // Row r's scores of the `num_visible` first positions become weights: exp(score - peak); all others are 0.
    void soften(int r, int num_visible, int num_blocks, float *peak, float *sum) {
        float *scores = scores_ + r * kSpan;
        const __m512 scale = _mm512_set1_ps(1.0f / std::sqrt(float(model_.head_dim)));
        const __m512 lowest = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
        __m512 peaks = lowest;
        for (int b = 0; b < num_blocks; b++) {
            const int left = std::min(std::max(num_visible - b * kBlock, 0), kBlock);
            const __m512 scaled = _mm512_mul_ps(_mm512_load_ps(scores + b * kBlock), scale);
            const __m512 seen = _mm512_mask_mov_ps(lowest, __mmask16((1u << left) - 1), scaled);
            _mm512_store_ps(scores + b * kBlock, seen);
            peaks = _mm512_max_ps(peaks, seen);
        }
        *peak = _mm512_reduce_max_ps(peaks);
        const __m512 top = _mm512_set1_ps(num_visible > 0 ? *peak : 0.0f);
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
            dot_tile_for(num_rows, count)(weights, values, num_blocks, kBlock / 2, into + first * kColumns, shape_.head, ahead);
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
            const int64_t left = model_.head_dim - d;
            const __mmask16 mask = left >= 16 ? 0xffff : __mmask16((1u << left) - 1);
            _mm256_mask_storeu_epi16(context + d, mask, to_bf16(_mm512_mul_ps(_mm512_loadu_ps(merged + d), share)));
        }
    }

    const Model &model_;
    const Shape &shape_;
    Step &step_;
    const Buffers &buffers_;
    const std::vector<Item> &items_;
    Team &team_;
    const int member_;
    int64_t phase_ = 0;
    Tiles tiles_;
    std::chrono::steady_clock::time_point marked_;
    alignas(64) float scores_[kMaxRows * kSpan];
    alignas(64) bf16 weights_[kMaxRows * kSpan];
    Scratch<float> weighted_;
    Scratch<bf16> narrow_;
};

}  // namespace footplate

extern "C" {

// Whether the system lets this process use what the kernels were built for.
int footplate_is_usable() {
#if defined(__AMX_BF16__) && !defined(FOOTPLATE_EMULATED_TILES)
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
    return 1;
#endif
}

// out[row][column] for all columns of `matrix`: one product alone, on the caller's thread.
void footplate_multiply(const footplate::bf16 *rows, int64_t stride, int64_t num_rows, const footplate::Matrix *matrix,
                        float *out) {
    using namespace footplate;
    const int64_t num_columns = matrix->num_panels * kColumns;
    std::vector<int8_t> bytes(num_rows * stride);
    std::vector<BlockFacts> facts(num_rows * stride / kBlockInputs);
    const Activations activations{rows, stride, num_rows, bytes.data(), facts.data()};
    for (int64_t row = 0; row < num_rows; row++) activations.make_ready(matrix->format, row);
    const Groups groups(*matrix, 1);
    Tiles tiles;
    for (int64_t index = 0; index < groups.count; index++)
        multiply_group(tiles, *matrix, groups.at(index), groups.at(index), activations,
                       [&](int64_t first, int count, int64_t first_panel, int num_panels, const float *sums) {
                           for (int r = 0; r < count; r++)
                               std::memcpy(out + (first + r) * num_columns + first_panel * kColumns,
                                           sums + r * kMaxPanels * kColumns, num_panels * kColumns * sizeof(float));
                       });
}

int64_t footplate_workspace_bytes(const footplate::Model *model, int64_t num_rows) {
    const footplate::Shape shape(*model);
    return num_rows * footplate::Buffers::bytes_a_row(*model, shape);
}

void footplate_forward(const footplate::Model *model, footplate::Step *step, int64_t capacity, int64_t num_threads) {
    using namespace footplate;
    const Shape shape(*model);
    const Buffers buffers(*model, shape, step->workspace, capacity);
    const std::vector<Item> items = items_of(*model, *step);
    Team team(int(num_threads), Worker::num_phases(*model));
#pragma omp parallel num_threads(int(num_threads))
    {
        Worker(*model, shape, *step, buffers, items, team, omp_get_thread_num()).run();
    }
}
}
