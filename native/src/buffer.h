// Memory on cache lines, zero to begin with.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace sentport {

template <class T>
class Buffer {
public:
    Buffer() = default;
    explicit Buffer(long count) { reserve(count); }

    // At least so many; what it held is lost where it grows.
    void reserve(long count) {
        if (count <= size_) return;
        const std::size_t bytes = (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
        data_.reset();
        size_ = 0;
        data_.reset(static_cast<T*>(std::aligned_alloc(64, bytes)));
        if (!data_) throw std::bad_alloc();
        std::memset(data_.get(), 0, bytes);
        size_ = count;
    }
    T* data() { return data_.get(); }
    const T* data() const { return data_.get(); }
    T& operator[](long i) { return data_.get()[i]; }
    const T& operator[](long i) const { return data_.get()[i]; }

private:
    struct Free {
        void operator()(T* p) const { std::free(p); }
    };
    std::unique_ptr<T, Free> data_;
    long size_ = 0;
};

}  // namespace sentport
