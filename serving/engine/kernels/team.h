// Several threads at one piece of work after another.
#pragma once

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace footplate {

inline int64_t padded(int64_t count, int64_t multiple) {
    return (count + multiple - 1) / multiple * multiple;
}

// A count that threads sleep on until something holds that others bring about and then ring for.
class Bell {
  public:
    void ring() {
        rings_.fetch_add(1);
        if (sleeping_.load()) futex(FUTEX_WAKE_PRIVATE, INT_MAX);
    }

    template <class Condition>
    void sleep_until(Condition holds) {
        sleeping_.fetch_add(1);
        for (;;) {
            const int seen = rings_.load();
            if (holds()) break;
            futex(FUTEX_WAIT_PRIVATE, seen);
        }
        sleeping_.fetch_sub(1);
    }

  private:
    void futex(int operation, int value) { syscall(SYS_futex, &rings_, operation, value, nullptr, nullptr, 0); }

    alignas(64) std::atomic<int> rings_{0};
    std::atomic<int> sleeping_{0};
};

// What is left to do in each phase of a step, and whether a phase is done.
//
// A phase is done when all of its pieces are, not when all threads have been there: who finds nothing left goes on to
// wait for the pieces that others still hold. So a thread whose core another process has at the moment, and which holds
// no piece, is missed by nobody; when it comes back it finds those phases done.
class Team {
  public:
    Team(int size, int64_t num_phases)
        : size_(size), num_phases_(num_phases), claimed_(num_phases * size), done_(num_phases) {}

    int size() const { return size_; }

    // The pieces of a phase that lie nearest to a member: those it begins with.
    int64_t first_of(int member, int64_t total) const { return total * member / size_; }

    // The next piece of `member`'s in `phase`, or -1 where none is left. Any member may ask.
    int64_t claim(int64_t phase, int member, int64_t total) {
        const int64_t first = first_of(member, total), count = first_of(member + 1, total) - first;
        if (phase >= num_phases_) std::abort();
        std::atomic<int64_t> &claimed = claimed_[phase * size_ + member];
        if (claimed.load(std::memory_order_relaxed) >= count) return -1;
        const int64_t next = claimed.fetch_add(1, std::memory_order_relaxed);
        return next < count ? first + next : -1;
    }

    // Adds `count` finished pieces to those of `phase`, and waits until all `total` are.
    void finish(int64_t phase, int64_t count, int64_t total) {
        std::atomic<int64_t> &done = done_[phase];
        if (count && done.fetch_add(count) + count == total) phases_done_.ring();
        // Brief waits cost least awake. A long one means that another process has the other's core, and may have ours:
        // asleep, not by yielding, after which one would wait for that process's whole turn.
        for (int spins = 0; spins < kSpins; spins++) {
            if (done.load(std::memory_order_acquire) >= total) return;
            _mm_pause();
        }
        phases_done_.sleep_until([&] { return done.load() >= total; });
    }

  private:
    static constexpr int kSpins = 2000;

    const int size_;
    const int64_t num_phases_;
    std::vector<std::atomic<int64_t>> claimed_;
    std::vector<std::atomic<int64_t>> done_;
    Bell phases_done_;
};

// What several threads compute together.
class Job {
  public:
    virtual ~Job() = default;
    virtual void run(int member) = 0;
};

// Owns the threads that compute with the caller. Between jobs they sleep, and leave their cores to whoever wants them.
class Crew {
  public:
    explicit Crew(int size) {
        try {
            for (int member = 1; member < size; member++) threads_.emplace_back([this, member] { serve(member); });
        } catch (const std::system_error &) {  // as many as the system allows
        }
    }

    ~Crew() {
        is_over_ = true;
        news_.ring();
        for (std::thread &thread : threads_) thread.join();
    }

    int size() const { return int(threads_.size()) + 1; }

    // Runs the job on all threads, the caller's too, and returns when the caller's part is done. Another thread may
    // come to the job later still, or never; so the job says itself when it is done, and lives on while it is held.
    void run(const std::shared_ptr<Job> &job) {
        {
            const std::lock_guard lock(mutex_);
            job_ = job;
        }
        num_jobs_.fetch_add(1);
        news_.ring();
        job->run(0);
    }

  private:
    void serve(int member) {
        for (int64_t seen = 0;;) {
            news_.sleep_until([&] { return is_over_ || num_jobs_.load() != seen; });
            if (is_over_) return;
            seen = num_jobs_.load();
            std::shared_ptr<Job> job;
            {
                const std::lock_guard lock(mutex_);
                job = job_;
            }
            job->run(member);
        }
    }

    std::mutex mutex_;
    std::shared_ptr<Job> job_;
    std::atomic<int64_t> num_jobs_{0};
    std::atomic<bool> is_over_{false};
    Bell news_;
    std::vector<std::thread> threads_;
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
