// Several threads at one piece of work after another.
#pragma once

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <vector>

namespace footplate {

inline int64_t padded(int64_t count, int64_t multiple) {
    return (count + multiple - 1) / multiple * multiple;
}

// Where the threads of a step meet and what is left to do in each phase.
class Team {
  public:
    Team(int size, int64_t num_phases) : size_(size), num_phases_(num_phases), counters_(num_phases * size) {}

    int size() const { return size_; }

    // The pieces of a phase that lie nearest to a member: those it begins with.
    int64_t first_of(int member, int64_t total) const { return total * member / size_; }

    // The next piece of `member`'s in `phase`, or -1 where none is left. Any member may ask.
    int64_t claim(int64_t phase, int member, int64_t total) {
        const int64_t first = first_of(member, total), count = first_of(member + 1, total) - first;
        if (phase >= num_phases_) std::abort();
        std::atomic<int64_t> &counter = counters_[phase * size_ + member];
        if (counter.load(std::memory_order_relaxed) >= count) return -1;
        const int64_t next = counter.fetch_add(1, std::memory_order_relaxed);
        return next < count ? first + next : -1;
    }

    void meet() {
        const int round = round_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
            arrived_.store(0, std::memory_order_relaxed);
            round_.store(round + 1);
            if (sleeping_.load()) futex(FUTEX_WAKE_PRIVATE, size_);
            return;
        }
        // Brief waits cost least awake. A long one means that another process has the other's core, and may have ours:
        // asleep, not by yielding, after which one would wait for that process's whole turn.
        for (int spins = 0; spins < kSpins; spins++) {
            if (round_.load(std::memory_order_acquire) != round) return;
            _mm_pause();
        }
        sleeping_.fetch_add(1);
        while (round_.load() == round) futex(FUTEX_WAIT_PRIVATE, round);
        sleeping_.fetch_sub(1);
    }

  private:
    static constexpr int kSpins = 2000;

    void futex(int operation, int value) { syscall(SYS_futex, &round_, operation, value, nullptr, nullptr, 0); }

    const int size_;
    const int64_t num_phases_;
    std::vector<std::atomic<int64_t>> counters_;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<int> round_{0};
    std::atomic<int> sleeping_{0};
};

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

}  // namespace footplate
