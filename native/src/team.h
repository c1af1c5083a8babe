// Threads that compute one block together: what a call of a single block, such as one short text, has them for. Most of
// its time goes into reading the weights, which each of them reads a part of.
#pragma once

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace sentport {

class Team {
public:
    // The caller and up to `size` - 1 others, as many as are to be had.
    explicit Team(int size) {
        others_.reserve(static_cast<std::size_t>(size - 1));
        try {
            while (this->size() < size) others_.emplace_back([this] { follow(); });
        } catch (const std::system_error&) {
        }
    }
    ~Team() {
        over_ = true;
        for (std::thread& other : others_) other.join();
    }
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    int size() const { return 1 + static_cast<int>(others_.size()); }

    // job(from, to) over 0 .. count in parts that whoever is free takes next, so that a thread without a core holds up
    // nobody. It must not throw.
    template <class Job>
    void share(long count, const Job& job) {
        if (others_.empty()) return job(0, count);
        job_ = &job;
        call_ = [](const void* job, long from, long to) { (*static_cast<const Job*>(job))(from, to); };
        count_ = count;
        parts_ = std::min(count, kParts * size());
        unfinished_ = parts_;
        untaken_ = parts_;  // from here on the others see it
        while (take()) {}
        for (int tries = 0; unfinished_ > 0; ++tries) rest(tries);
    }

private:
    static constexpr long kParts = 6;  // for each thread: enough to be done at about the same time

    bool take() {
        long part = untaken_;
        do {
            if (part <= 0) return false;
        } while (!untaken_.compare_exchange_weak(part, part - 1));
        call_(job_, count_ * (part - 1) / parts_, count_ * part / parts_);
        --unfinished_;
        return true;
    }

    void follow() {
        for (int tries = 0; !over_; ++tries)
            if (take()) tries = 0;
            else rest(tries);
    }

    // Jobs are some microseconds apart, too short to sleep; yet where cores are shared, others get theirs.
    static void rest(int tries) {
        if (tries > 2000) std::this_thread::yield();
        else __builtin_ia32_pause();
    }

    std::vector<std::thread> others_;
    const void* job_ = nullptr;
    void (*call_)(const void* job, long from, long to) = nullptr;
    long count_ = 0, parts_ = 0;
    std::atomic<long> untaken_{0}, unfinished_{0};
    std::atomic<bool> over_{false};
};

}  // namespace sentport
