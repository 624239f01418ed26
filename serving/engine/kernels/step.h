// What a step reads and writes: the structures of the C interface, and the buffers between its phases.
#pragma once

#include <algorithm>

#include "products.h"
#include "team.h"

namespace footplate {

constexpr int kBlock = 16;  // positions of a KV block

struct Layer {
    const float *input_norm;
    const float *mlp_norm;
    const float *query_norm;  // null where the family has none
    const float *key_norm;
    Matrix qkv;
    Matrix output;
    Matrix gate_up;  // panels of gate and up in turn
    Matrix down;
    int64_t window;  // positions that a row sees, its own the last; more than any context has where it sees all
};

struct Model {
    int64_t num_layers, hidden_size, num_heads, num_kv_heads, head_dim, rotary_dim, vocab_size, num_blocks;
    float norm_eps;
    const Layer *layers;
    const bf16 *embedding;  // [vocab_size, hidden_size]
    const float *final_norm;
    Matrix vocabulary;
    const float *cosines;  // [rotary rows, rotary_dim / 2]
    const float *sines;
    bf16 *cache;  // [num_layers, num_blocks, num_kv_heads, 2, padded head_dim * kBlock], see `Shape`
};

struct Chunk {
    int32_t first_row, num_tokens, start, first_block;  // `first_block` is an index into `Step::blocks`
    int32_t first_rotary_row;                           // of the tables of cosines and sines, for position `start`
};

struct Step {
    int64_t num_rows, num_chunks, num_logit_rows, num_hidden_rows;
    const int32_t *token_ids;
    const int32_t *chunk_of;  // [num_rows]
    const Chunk *chunks;
    const int32_t *blocks;  // the chunks' block tables, one after the other
    const int32_t *logit_rows;
    float *logits;  // [num_logit_rows, vocab_size]
    const int32_t *hidden_rows;
    float *hidden;        // [num_hidden_rows, hidden_size], normed as they enter the output layer, but not rounded
    uint8_t *is_unsound;  // [num_rows]: whether a number of the row is not finite
    char *workspace;      // zeroed once, of `footplate_workspace_bytes`
    double seconds[3];    // linear, attention, the rest
};

// Sizes that follow from the model. A head's keys in a block are one panel of head_dim / 2 pairs, its values
// head_dim / 16 panels of 8 pairs, both with head_dim padded to a multiple of 16.
struct Shape {
    int64_t hidden, qkv, context, inner, widest, head, block_elements, layer_elements;

    explicit Shape(const Model &model)
        : hidden(padded(model.hidden_size, kInnerMultiple)),
          qkv(model.layers[0].qkv.num_panels * kColumns),
          context(padded(model.num_heads * model.head_dim, kInnerMultiple)),
          inner(padded(model.layers[0].down.num_pairs * 2, kInnerMultiple)),
          widest(std::max({hidden, context, inner})),
          head(padded(model.head_dim, 16)),
          block_elements(2 * head * kBlock),
          layer_elements(model.num_blocks * model.num_kv_heads * block_elements) {}
};

// The step's buffers. Columns of padding are zero from the start and stay so.
struct Buffers {
    float *hidden;      // [num_rows, shape.hidden], the residual stream
    float *qkv;         // [num_rows, shape.qkv]
    BlockFacts *facts;  // [num_rows, shape.widest / kBlockInputs], of the activations' blocks
    bf16 *normed;       // [num_rows, shape.hidden]
    bf16 *queries;      // [num_rows, num_heads, shape.head]
    bf16 *context;      // [num_rows, shape.context]
    bf16 *inner;        // [num_rows, shape.inner]
    int8_t *bytes;      // [num_rows, 2 * shape.widest], quantised activations

    static int64_t bytes_a_row(const Model &model, const Shape &shape) {
        return 4 * (shape.hidden + shape.qkv) + int64_t(sizeof(BlockFacts)) * shape.widest / kBlockInputs +
               2 * (shape.hidden + model.num_heads * shape.head + shape.context + shape.inner) + 2 * shape.widest;
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

}  // namespace footplate
