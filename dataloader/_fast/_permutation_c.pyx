"""Keyed random order, compiled: the twin of `_permutation_py`, which explains it.

The functions that Python calls check arguments, make the arrays and settle what holds
for a whole slice. The loops below them touch no Python object and run without the GIL.
"""

from libc.math cimport sqrt
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memset

import numpy as np

from dataloader._fast import _permutation_py
from dataloader._fast._checks import (
    checked_draws,
    checked_position,
    checked_positions,
    checked_size,
    checked_slice,
    word_of,
)

__all__ = [
    "SORTED_LIMIT",
    "derive_key",
    "permute",
    "permute_array",
    "permute_range",
    "random_below",
    "uniforms",
]

cdef extern from *:
    """
    #define GOLDEN UINT64_C(0x9E3779B97F4A7C15)
    #define MULTIPLIER_1 UINT64_C(0xBF58476D1CE4E5B9)
    #define MULTIPLIER_2 UINT64_C(0x94D049BB133111EB)
    #define FOR_PARTS UINT64_C(0x243F6A8885A308D3)
    #define FOR_ORDER UINT64_C(0x13198A2E03707344)
    #define FOR_DRAWS UINT64_C(0xA4093822299F31D0)
    #define FOR_UNIFORMS UINT64_C(0x082EFA98EC4E6C89)
    """
    const uint64_t GOLDEN, MULTIPLIER_1, MULTIPLIER_2
    const uint64_t FOR_PARTS, FOR_ORDER, FOR_DRAWS, FOR_UNIFORMS
    const int DATALOADER_IS_CHECKED

cdef enum:
    HALF_ROUNDS = 8
    # How many indices go through a half-round side by side: their multiplications
    # overlap, and where the compiler knows vectors it uses them.
    LANES = 8
    BUCKET_BITS = 12
    BUCKETS = 1 << BUCKET_BITS

SORTED_LIMIT = _permutation_py.SORTED_LIMIT

IS_CHECKED = bool(DATALOADER_IS_CHECKED)
"""Whether the kernels check their indices; they were built for debugging then."""


# --- hashing -------------------------------------------------------------------------


cdef inline uint64_t mix(uint64_t word) noexcept nogil:
    word = (word ^ (word >> 30)) * MULTIPLIER_1
    word = (word ^ (word >> 27)) * MULTIPLIER_2
    return word ^ (word >> 31)


cdef inline uint64_t stream_of(uint64_t key, uint64_t purpose) noexcept nogil:
    return mix(key + purpose)


cdef inline uint64_t hash_at(uint64_t stream, uint64_t counter) noexcept nogil:
    return mix(stream + (counter + 1) * GOLDEN)


cdef inline uint64_t high_word(uint64_t x, uint64_t y) noexcept nogil:
    """Return the upper 64 bits of the product, which not all compilers have."""
    cdef uint64_t mask = 0xFFFFFFFF
    cdef uint64_t middle = (x >> 32) * (y & mask) + ((x & mask) * (y & mask) >> 32)
    cdef uint64_t carry = (x & mask) * (y >> 32) + (middle & mask)
    return (x >> 32) * (y >> 32) + (middle >> 32) + (carry >> 32)


def derive_key(*parts):
    """Return a 64-bit hash of several integers."""
    cdef uint64_t key = stream_of(<uint64_t>len(parts), FOR_PARTS)
    cdef uint64_t word
    for part in parts:
        word = word_of(part)
        key = mix(key + stream_of(word, FOR_PARTS))
    return key


# --- the bijection -------------------------------------------------------------------


cdef struct Order:
    uint64_t n
    uint64_t a
    uint64_t b
    uint64_t rotation
    uint64_t[HALF_ROUNDS] keys


def permute(index, n, key):
    """Return the value at one position of the shuffled ``range(n)``."""
    index, n = checked_position(index, n)
    cdef uint64_t word = word_of(key)
    if n <= SORTED_LIMIT:
        return int(_sorted_order(n, word)[index])
    # Too short to be worth letting other threads in.
    cdef Order order = order_of(n, word)
    return settled(walk_once(index, &order), &order)


def permute_range(start, stop, n, key):
    """Return the slice ``[start:stop]`` of the shuffled ``range(n)``."""
    start, stop, n = checked_slice(start, stop, n)
    cdef uint64_t word = word_of(key)
    if n <= SORTED_LIMIT:
        return _sorted_order(n, word)[start:stop].copy()
    values = np.empty(stop - start, dtype=np.int64)
    cdef Order order = order_of(n, word)
    cdef int64_t[::1] out = values
    cdef uint64_t first = start
    with nogil:
        fill_slice(out, first, &order)
    return values


def permute_array(indices, n, key):
    """Return the values at the given positions of the shuffled ``range(n)``."""
    positions, n = checked_positions(indices, n)
    cdef uint64_t word = word_of(key)
    values = positions.reshape(-1)
    if n <= SORTED_LIMIT:
        return _sorted_order(n, word)[values].reshape(positions.shape)
    cdef Order order = order_of(n, word)
    cdef uint64_t[::1] flat = values
    with nogil:
        replace_positions(flat, &order)
    return positions.view(np.int64)


def _sorted_order(Py_ssize_t n, uint64_t key):
    values = np.empty(n, dtype=np.int64)
    cdef int64_t[::1] order = values
    cdef uint64_t[::1] hashes = np.empty(n, dtype=np.uint64)
    with nogil:
        sort_by_hash(order, hashes, stream_of(key, FOR_ORDER))
    return values


cdef void sort_by_hash(
    int64_t[::1] order, uint64_t[::1] hashes, uint64_t stream
) noexcept nogil:
    """Fill ``order`` with the counters in the order of their hashes.

    Each goes to about its place, by the upper bits, and then past its few neighbours.
    """
    cdef Py_ssize_t count = order.shape[0]
    cdef Py_ssize_t[BUCKETS + 1] places
    cdef Py_ssize_t i, place
    cdef uint64_t word
    memset(places, 0, sizeof(places))
    for i in range(count):
        places[(hash_at(stream, i) >> (64 - BUCKET_BITS)) + 1] += 1
    for i in range(BUCKETS):
        places[i + 1] += places[i]
    for i in range(count):
        word = hash_at(stream, i)
        place = places[word >> (64 - BUCKET_BITS)]
        places[word >> (64 - BUCKET_BITS)] = place + 1
        hashes[place] = word
        order[place] = i
    insert_in_order(order, hashes)


cdef void insert_in_order(int64_t[::1] order, uint64_t[::1] hashes) noexcept nogil:
    cdef Py_ssize_t i, place
    cdef int64_t value
    cdef uint64_t word
    for i in range(1, order.shape[0]):
        word, value = hashes[i], order[i]
        place = i
        while place > 0 and hashes[place - 1] > word:
            hashes[place] = hashes[place - 1]
            order[place] = order[place - 1]
            place -= 1
        hashes[place] = word
        order[place] = value


cdef Order order_of(uint64_t n, uint64_t key) noexcept nogil:
    cdef Order order
    cdef uint64_t stream = stream_of(key, FOR_ORDER)
    cdef int counter
    order.n = n
    order.a = root_of(n - 1) + 1
    order.a += order.a & 1
    order.b = (n - 1) // order.a + 1
    for counter in range(HALF_ROUNDS):
        order.keys[counter] = hash_at(stream, counter)
    order.rotation = high_word(hash_at(stream, HALF_ROUNDS), n)
    return order


cdef uint64_t root_of(uint64_t square) noexcept nogil:
    """Return the square root of an integer below 2**63, rounded down."""
    cdef uint64_t root = <uint64_t>sqrt(<double>square)
    while root * root > square:
        root -= 1
    while (root + 1) * (root + 1) <= square:
        root += 1
    return root


cdef inline uint64_t shift(uint64_t half, uint64_t key, uint64_t size) noexcept nogil:
    cdef uint64_t word = (half + key) * MULTIPLIER_1
    word = (word ^ (word >> 32)) * MULTIPLIER_2
    return (word >> 32) * size >> 32


cdef inline uint64_t moved(
    uint64_t half, uint64_t other, uint64_t key, uint64_t size
) noexcept nogil:
    cdef uint64_t sum = half + shift(other, key, size)
    return sum - size if sum >= size else sum


cdef uint64_t walk_once(uint64_t value, const Order* order) noexcept nogil:
    cdef uint64_t left = value // order.b
    cdef uint64_t right = value % order.b
    cdef int i
    for i in range(0, HALF_ROUNDS, 2):
        left = moved(left, right, order.keys[i], order.a)
        right = moved(right, left, order.keys[i + 1], order.b)
    return left * order.b + right


cdef inline uint64_t settled(uint64_t value, const Order* order) noexcept nogil:
    """Return the result that belongs to a value that was walked once."""
    while value >= order.n:
        value = walk_once(value, order)
    value += order.rotation
    return value - order.n if value >= order.n else value


cdef inline void walk_lanes(
    uint64_t* left, uint64_t* right, const Order* order
) noexcept nogil:
    """Do what `walk_once` does to the halves of several values."""
    cdef uint64_t a = order.a
    cdef uint64_t b = order.b
    cdef int i, lane
    for i in range(0, HALF_ROUNDS, 2):
        for lane in range(LANES):
            left[lane] = moved(left[lane], right[lane], order.keys[i], a)
        for lane in range(LANES):
            right[lane] = moved(right[lane], left[lane], order.keys[i + 1], b)


cdef void fill_slice(
    int64_t[::1] out, uint64_t start, const Order* order
) noexcept nogil:
    cdef uint64_t left = start // order.b
    cdef uint64_t right = start % order.b
    cdef uint64_t[LANES] lefts
    cdef uint64_t[LANES] rights
    cdef Py_ssize_t begin = 0
    cdef Py_ssize_t lane
    while begin < out.shape[0]:
        for lane in range(LANES):
            lefts[lane], rights[lane] = left, right
            right += 1
            if right == order.b:
                left, right = left + 1, 0
        walk_lanes(lefts, rights, order)
        for lane in range(min(LANES, out.shape[0] - begin)):
            out[begin + lane] = settled(lefts[lane] * order.b + rights[lane], order)
        begin += LANES


cdef void replace_positions(uint64_t[::1] values, const Order* order) noexcept nogil:
    cdef uint64_t[LANES] lefts
    cdef uint64_t[LANES] rights
    cdef Py_ssize_t begin = 0
    cdef Py_ssize_t lane, count
    memset(lefts, 0, sizeof(lefts))
    memset(rights, 0, sizeof(rights))
    while begin < values.shape[0]:
        count = min(LANES, values.shape[0] - begin)
        for lane in range(count):
            lefts[lane] = values[begin + lane] // order.b
            rights[lane] = values[begin + lane] % order.b
        walk_lanes(lefts, rights, order)
        for lane in range(count):
            values[begin + lane] = settled(lefts[lane] * order.b + rights[lane], order)
        begin += LANES


# --- draws with replacement ----------------------------------------------------------


def random_below(counter_start, count, n, key):
    """Return draws ``counter_start, counter_start + 1, ...`` of a stream below ``n``."""
    first, count = checked_draws(counter_start, count)
    cdef uint64_t size = checked_size(n)
    cdef uint64_t word = word_of(key)
    cdef uint64_t counter = first
    values = np.empty(count, dtype=np.int64)
    cdef int64_t[::1] out = values
    with nogil:
        draw_below(out, stream_of(word, FOR_DRAWS), counter, size)
    return values


cdef void draw_below(
    int64_t[::1] out, uint64_t stream, uint64_t counter, uint64_t n
) noexcept nogil:
    # 2**64 modulo n, of which the words below have one value too many.
    cdef uint64_t uneven = (0 - n) % n
    cdef uint64_t word
    cdef Py_ssize_t i
    for i in range(out.shape[0]):
        word = hash_at(stream, counter + i)
        while word * n < uneven:
            word = mix(word + FOR_DRAWS)
        out[i] = high_word(word, n)


def uniforms(counter_start, count, key):
    """Return draws ``counter_start, counter_start + 1, ...`` of a stream in [0, 1)."""
    first, count = checked_draws(counter_start, count)
    cdef uint64_t word = word_of(key)
    cdef uint64_t counter = first
    values = np.empty(count, dtype=np.float64)
    cdef double[::1] out = values
    with nogil:
        draw_uniforms(out, stream_of(word, FOR_UNIFORMS), counter)
    return values


cdef void draw_uniforms(
    double[::1] out, uint64_t stream, uint64_t counter
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(out.shape[0]):
        out[i] = <double>(hash_at(stream, counter + i) >> 11) * 2.0**-53
