// One step of a Llama-like decoder over ragged rows, on the CPU: from token ids to logits, in one call.
//
// All threads walk through the same phases; in each they take pieces of work until none is left, and go on when all are
// done. So a step wakes the other threads once, and a thread that is slowed down by another process holds the others up
// by one piece at most. Which thread computes a piece changes no result.
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>

#include "attention.h"

namespace footplate {

// row / rms(row) * weight. `size` is padded; padding is zero in row and weight.
inline __m512 inverse_rms(const float *row, int64_t size, int64_t padded_size, float eps) {
    __m512 squares = _mm512_setzero_ps();
    for (int64_t i = 0; i < padded_size; i += 16) {
        const __m512 x = _mm512_loadu_ps(row + i);
        squares = _mm512_fmadd_ps(x, x, squares);
    }
    return _mm512_set1_ps(1.0f / std::sqrt(_mm512_reduce_add_ps(squares) / float(size) + eps));
}

// Calls `take(column, sixteen values)`.
template <class Take>
inline void normalise(const float *row, const float *weight, int64_t size, int64_t padded_size, float eps, Take take) {
    const __m512 scale = inverse_rms(row, size, padded_size, eps);
    for (int64_t i = 0; i < padded_size; i += 16)
        take(i, _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(row + i), scale), _mm512_loadu_ps(weight + i)));
}

inline __m512 silu(__m512 x) {
    const __m512 one = _mm512_set1_ps(1.0f);
    const __m512 power = exp_nonpositive(_mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(x)));
    const __mmask16 negative = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
    const __m512 above = _mm512_mask_mov_ps(one, negative, power);
    return _mm512_mul_ps(x, _mm512_div_ps(above, _mm512_add_ps(one, power)));
}

// One thread's way through a step.
class Worker {
  public:
    Worker(const Model &model, const Shape &shape, Step &step, const Buffers &buffers, const std::vector<Item> &items,
           Team &team, int member)
        : model_(model),
          shape_(shape),
          step_(step),
          buffers_(buffers),
          num_items_(int64_t(items.size())),
          team_(team),
          member_(member),
          attention_(model, shape, step, buffers, items) {}

    void run() {
        mark();
        share(step_.num_rows, [&](int64_t row) { embed(row); });
        for (int64_t index = 0; index < model_.num_layers; index++) layer(index, model_.layers[index]);
        share(step_.num_rows, [&](int64_t row) { check(row); });
        share(step_.num_hidden_rows, [&](int64_t row) { hand_out(row); });
        share(step_.num_logit_rows, [&](int64_t row) { norm(step_.logit_rows[row], row, model_.final_norm); });
        spent(2);
        logits();
        spent(0);
    }

    static int64_t num_phases(const Model &model) { return 6 + 12 * model.num_layers; }

  private:
    // Calls `work` for every piece from 0 to `total` among all threads; returns when all are done. A thread takes its
    // own share in order, so that what comes next is known and can be fetched ahead, then what the others have left.
    template <class Work>
    void share(int64_t total, Work work) {
        int64_t count = 0;
        for (int i = 0; i < team_.size(); i++) {
            const int member = (member_ + i) % team_.size();
            for (int64_t piece; (piece = team_.claim(phase_, member, total)) >= 0; count++) work(piece);
        }
        team_.finish(phase_++, count, total);
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
        multiply(layer.qkv, layer.output, buffers_.normed, shape_.hidden, step_.num_rows,
                 [&](int64_t row, int64_t column, __m512 x) {
                     _mm512_storeu_ps(buffers_.qkv + row * shape_.qkv + column, x);
                 });
        spent(0);
        share(step_.num_rows, [&](int64_t row) {
            const Chunk &chunk = step_.chunks[step_.chunk_of[row]];
            attention_.rotate_and_store(chunk, int32_t(row) - chunk.first_row, layer, cache);
        });
        spent(2);
        share(num_items_, [&](int64_t item) { attention_.attend(item, cache, layer.window); });
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
        for (int64_t i = 0; i < shape_.hidden; i += 16) {
            const __mmask16 mask = mask_of(model_.hidden_size - i);
            // Padding too: an earlier row that was not finite may have left something there.
            _mm512_storeu_ps(hidden + i, from_bf16(_mm256_maskz_loadu_epi16(mask, embedding + i)));
        }
    }

    void norm(int64_t row, int64_t to, const float *weight) {
        bf16 *normed = buffers_.normed + to * shape_.hidden;
        normalise(buffers_.hidden + row * shape_.hidden, weight, model_.hidden_size, shape_.hidden, model_.norm_eps,
                  [&](int64_t column, __m512 x) { _mm256_storeu_si256((__m256i *)(normed + column), to_bf16(x)); });
    }

    void hand_out(int64_t index) {
        const float *row = buffers_.hidden + step_.hidden_rows[index] * shape_.hidden;
        const int64_t size = model_.hidden_size;
        float *hidden = step_.hidden + index * size;
        normalise(row, model_.final_norm, size, shape_.hidden, model_.norm_eps, [&](int64_t column, __m512 x) {
            _mm512_mask_storeu_ps(hidden + column, mask_of(size - column), x);
        });
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
        if (matrix.format != Format::kBf16)
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
    void multiply(const Matrix &matrix, const Matrix &next, const bf16 *rows, int64_t stride, int64_t num_rows,
                  Take take) {
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
                     _mm512_mask_storeu_ps(step_.logits + row * size + column, mask_of(size - column), x);
                 });
    }

    const Model &model_;
    const Shape &shape_;
    Step &step_;
    const Buffers &buffers_;
    const int64_t num_items_;
    Team &team_;
    const int member_;
    Attention attention_;
    int64_t phase_ = 0;
    Tiles tiles_;
    std::chrono::steady_clock::time_point marked_;
};

// A step and all that its threads share. The step is done when the caller's part is: it then writes nothing any more.
class StepJob : public Job {
  public:
    StepJob(const Model &model, const Step &step, int64_t capacity, int num_threads)
        : model_(model),
          shape_(model),
          step_(step),
          buffers_(model, shape_, step.workspace, capacity),
          items_(items_of(model, step)),
          team_(num_threads, Worker::num_phases(model)) {}

    void run(int member) override { Worker(model_, shape_, step_, buffers_, items_, team_, member).run(); }

    const double *seconds() const { return step_.seconds; }

  private:
    const Model &model_;
    const Shape shape_;
    Step step_;
    const Buffers buffers_;
    const std::vector<Item> items_;
    Team team_;
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
    std::vector<int8_t> bytes(num_rows * 2 * stride);
    std::vector<BlockFacts> facts(num_rows * stride / kBlockInputs);
    const Activations activations{rows, stride, num_rows, bytes.data(), facts.data()};
    if (matrix->format != Format::kBf16)
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

footplate::Crew *footplate_start_crew(int64_t num_threads) {
    return new footplate::Crew(int(num_threads));
}

void footplate_end_crew(footplate::Crew *crew) {
    delete crew;
}

void footplate_forward(footplate::Crew *crew, const footplate::Model *model, footplate::Step *step, int64_t capacity) {
    const auto job = std::make_shared<footplate::StepJob>(*model, *step, capacity, crew->size());
    crew->run(job);
    std::copy_n(job->seconds(), 3, step->seconds);
}
}
