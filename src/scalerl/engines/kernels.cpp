// What a small model's step spends its time on beside the matmuls: norms, rotation, attention and SwiGLU, each in one
// pass over memory. `kernels.py` compiles this file on the machine it runs on and says what each function takes; the
// same formulas in torch stand in fused.py and fused_decode.py, and are used where there is no compiler.
//
// T is how matmuls' inputs and outputs are stored, float or bfloat16; everything is computed in float.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

typedef int64_t Int;

struct Bf16 {
    uint16_t bits;
};

inline float load(float x) { return x; }

inline float load(Bf16 x) {
    uint32_t bits = (uint32_t)x.bits << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

inline void store(float& to, float x) { to = x; }

inline void store(Bf16& to, float x) {  // to the nearest, ties to even
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    to.bits = (uint16_t)(x != x ? 0x7fc0 : rounded);
}

typedef float Vector __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t IntVector __attribute__((vector_size(64)));

inline int32_t integers(float x) { return (int32_t)x; }
inline IntVector integers(Vector x) { return __builtin_convertvector(x, IntVector); }
inline float as_floats(int32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
inline Vector as_floats(IntVector bits) { return (Vector)bits; }

inline float whole_number(float x) { return __builtin_rintf(x); }
inline Vector whole_number(Vector x) {
    const float big = 12582912.0f;  // 1.5 * 2^23: added, it leaves no room for a fraction
    return (x + big) - big;
}

inline float filled(float, float value) { return value; }
inline Vector filled(Vector, float value) { return Vector{} + value; }

// e^x to two units in the last place, of one number or of a vector; below -87 it stays at e^-87.
template <class F>
inline F exponential(F x) {
    x = x < -87.0f ? filled(x, -87.0f) : x;
    x = x > 88.0f ? filled(x, 88.0f) : x;
    F n = whole_number(x * 1.44269504f);
    F r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    F p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * as_floats((integers(n) + 127) << 23);
}

inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

// ---- RMS norm, with the residual stream's addition before it ----

template <class T>
void add_norm(Int n, Int d, const float* x, const T* y, float* sum, T* unit, float* inverse, float epsilon) {
#pragma omp parallel for
    for (Int i = 0; i < n; i++) {
        const float* row = x + i * d;
        float square = 0;
        if (y) {
            const T* other = y + i * d;
            float* out = sum + i * d;
#pragma omp simd reduction(+ : square)
            for (Int j = 0; j < d; j++) {
                float value = row[j] + load(other[j]);
                out[j] = value;
                square += value * value;
            }
            row = out;
        } else {
#pragma omp simd reduction(+ : square)
            for (Int j = 0; j < d; j++) square += row[j] * row[j];
        }
        float factor = 1.0f / sqrtf(square / (float)d + epsilon);
        if (inverse) inverse[i] = factor;
        T* to = unit + i * d;
#pragma omp simd
        for (Int j = 0; j < d; j++) store(to[j], row[j] * factor);
    }
}

template <class T>
void add_norm_backward(Int n, Int d, const T* grad_unit, const T* unit, const float* inverse, const float* grad_sum,
                       float* grad_x, T* grad_y) {
#pragma omp parallel for
    for (Int i = 0; i < n; i++) {
        const T *g = grad_unit + i * d, *u = unit + i * d;
        const float* later = grad_sum ? grad_sum + i * d : nullptr;
        float* to = grad_x + i * d;
        float along = 0;
#pragma omp simd reduction(+ : along)
        for (Int j = 0; j < d; j++) along += load(g[j]) * load(u[j]);
        along /= (float)d;
        float factor = inverse[i];
        if (later) {
#pragma omp simd
            for (Int j = 0; j < d; j++) to[j] = later[j] + (load(g[j]) - load(u[j]) * along) * factor;
        } else {
#pragma omp simd
            for (Int j = 0; j < d; j++) to[j] = (load(g[j]) - load(u[j]) * along) * factor;
        }
        if (grad_y) {
            T* other = grad_y + i * d;
#pragma omp simd
            for (Int j = 0; j < d; j++) store(other[j], to[j]);
        }
    }
}

// ---- SwiGLU ----

template <class T>
void swiglu(Int n, Int f, const T* gate_up, T* product) {
#pragma omp parallel for
    for (Int i = 0; i < n; i++) {
        const T *gate = gate_up + i * 2 * f, *up = gate + f;
        T* to = product + i * f;
#pragma omp simd
        for (Int j = 0; j < f; j++) {
            float g = load(gate[j]);
            store(to[j], g * sigmoid(g) * load(up[j]));
        }
    }
}

template <class T>
void swiglu_backward(Int n, Int f, const T* gate_up, const T* grad_product, T* grad) {
#pragma omp parallel for
    for (Int i = 0; i < n; i++) {
        const T *gate = gate_up + i * 2 * f, *up = gate + f, *from = grad_product + i * f;
        T *to_gate = grad + i * 2 * f, *to_up = to_gate + f;
#pragma omp simd
        for (Int j = 0; j < f; j++) {
            float g = load(gate[j]), s = sigmoid(g), h = load(from[j]);
            store(to_up[j], h * g * s);
            store(to_gate[j], h * load(up[j]) * s * (1.0f + g * (1.0f - s)));
        }
    }
}

// ---- norm and rotation of queries and keys ----

// cos and sin are one position's row; sin has the signs of rotate_half.
template <class T>
inline float rotated(const Int dim, const T* from, const float* scale, const float* cos, const float* sin, float epsilon,
                     float* unit, float* to) {
    Int half = dim / 2;
    float factor = 1.0f;
    if (scale) {
        float square = 0;
#pragma omp simd reduction(+ : square)
        for (Int j = 0; j < dim; j++) square += load(from[j]) * load(from[j]);
        factor = 1.0f / sqrtf(square / (float)dim + epsilon);
#pragma omp simd
        for (Int j = 0; j < dim; j++) unit[j] = load(from[j]) * factor * scale[j];
    } else {
#pragma omp simd
        for (Int j = 0; j < dim; j++) unit[j] = load(from[j]);
    }
#pragma omp simd
    for (Int j = 0; j < half; j++) {
        to[j] = unit[j] * cos[j] + unit[j + half] * sin[j];
        to[j + half] = unit[j + half] * cos[j + half] + unit[j] * sin[j + half];
    }
    return factor;
}

template <class T>
void rotate(Int n, Int turned, Int row, Int dim, const T* qkv, const float* scale, const float* cos, const float* sin,
            const Int* position, float epsilon, float* out) {
#pragma omp parallel
    {
        std::vector<float> unit(dim);
#pragma omp for
        for (Int i = 0; i < n; i++)
            for (Int h = 0; h < turned; h++)
                rotated(dim, qkv + (i * row + h) * dim, scale ? scale + h * dim : nullptr, cos + position[i] * dim,
                        sin + position[i] * dim, epsilon, unit.data(), out + (i * turned + h) * dim);
    }
}

// By heads, so that the sums for the scale are the same whatever the number of threads.
template <class T>
void rotate_backward(Int n, Int turned, Int row, Int dim, const T* qkv, const float* scale, const float* cos,
                     const float* sin, const Int* position, float epsilon, const float* grad_out, const float* grad_v,
                     T* grad, float* grad_scale) {
    Int half = dim / 2;
#pragma omp parallel for
    for (Int h = 0; h < row; h++) {
        std::vector<float> pulled(dim);
        std::vector<double> total(dim);
        const float* own = scale && h < turned ? scale + h * dim : nullptr;
        for (Int i = 0; i < n; i++) {
            T* to = grad + (i * row + h) * dim;
            if (h >= turned) {
                const float* g = grad_v + (i * (row - turned) + h - turned) * dim;
#pragma omp simd
                for (Int j = 0; j < dim; j++) store(to[j], g[j]);
                continue;
            }
            const float *g = grad_out + (i * turned + h) * dim, *c = cos + position[i] * dim,
                        *s = sin + position[i] * dim;
            float* w = pulled.data();
#pragma omp simd
            for (Int j = 0; j < half; j++) {
                w[j] = g[j] * c[j] + g[j + half] * s[j + half];
                w[j + half] = g[j + half] * c[j + half] + g[j] * s[j];
            }
            if (!own) {
#pragma omp simd
                for (Int j = 0; j < dim; j++) store(to[j], w[j]);
                continue;
            }
            const T* from = qkv + (i * row + h) * dim;
            float square = 0, along = 0;
#pragma omp simd reduction(+ : square, along)
            for (Int j = 0; j < dim; j++) {
                float x = load(from[j]);
                square += x * x;
                along += x * own[j] * w[j];
            }
            float factor = 1.0f / sqrtf(square / (float)dim + epsilon);
            along *= factor / (float)dim;
            double* sums = total.data();
#pragma omp simd
            for (Int j = 0; j < dim; j++) {
                float unit = load(from[j]) * factor;
                sums[j] += (double)(unit * w[j]);
                store(to[j], (own[j] * w[j] - unit * along) * factor);
            }
        }
        if (own)
            for (Int j = 0; j < dim; j++) grad_scale[h * dim + j] = (float)total[j];
    }
}

// ---- attention over whole sequences ----

const Int BLOCK = 32;  // queries at a time; also what columns are rounded up to

// c (m, n) = or += a (m, k) b (k, n); m a multiple of 4 and n of 32. Rows of a may lie side by side: two strides.
template <bool ADD>
void multiply(Int m, Int n, Int k, const float* a, Int a_row, Int a_column, const float* b, Int b_row, float* c,
              Int c_row) {
    for (Int i = 0; i < m; i += 4)
        for (Int j = 0; j < n; j += 32) {
            Vector sum[4][2];
            for (int r = 0; r < 4; r++)
                for (int v = 0; v < 2; v++) sum[r][v] = ADD ? *(Vector*)(c + (i + r) * c_row + j + 16 * v) : Vector{};
            for (Int l = 0; l < k; l++) {
                Vector b0 = *(const Vector*)(b + l * b_row + j), b1 = *(const Vector*)(b + l * b_row + j + 16);
                for (int r = 0; r < 4; r++) {
                    float x = a[(i + r) * a_row + l * a_column];
                    sum[r][0] += b0 * x;
                    sum[r][1] += b1 * x;
                }
            }
            for (int r = 0; r < 4; r++)
                for (int v = 0; v < 2; v++) *(Vector*)(c + (i + r) * c_row + j + 16 * v) = sum[r][v];
        }
}

typedef IntVector Order;
const Order FIRST = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23};
const Order SECOND = {8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};

// Both numbers are multiples of 16; four perfect shuffles turn each square.
void transpose(Int rows, Int columns, const float* from, float* to) {
    for (Int i = 0; i < rows; i += 16)
        for (Int j = 0; j < columns; j += 16) {
            Vector a[16], b[16];
            for (int r = 0; r < 16; r++) a[r] = *(const Vector*)(from + (i + r) * columns + j);
            for (int round = 0; round < 2; round++) {
                for (int r = 0; r < 8; r++) {
                    b[2 * r] = __builtin_shuffle(a[r], a[r + 8], FIRST);
                    b[2 * r + 1] = __builtin_shuffle(a[r], a[r + 8], SECOND);
                }
                for (int r = 0; r < 8; r++) {
                    a[2 * r] = __builtin_shuffle(b[r], b[r + 8], FIRST);
                    a[2 * r + 1] = __builtin_shuffle(b[r], b[r + 8], SECOND);
                }
            }
            for (int r = 0; r < 16; r++) *(Vector*)(to + (j + r) * rows + i) = a[r];
        }
}

inline Int rounded(Int n) { return (n + BLOCK - 1) / BLOCK * BLOCK; }

// One sequence: `own` are its columns from `first` to `last`; those before belong to another path that has them too.
struct Path {
    const Int* nodes;
    Int first, last;
    Path(const Int* paths, const Int* place, Int width, Int p) : nodes(paths + p * width), first(0), last(width) {
        while (last > 0 && place[nodes[last - 1]] != p * width + last - 1) last--;
        while (first < last && place[nodes[first]] != p * width + first) first++;
    }
};

const Order EVEN = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
const Order ODD = {1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31};

// Sums of neighbours, those of a before those of b: four rounds over 16 vectors give one vector of their 16 totals.
inline Vector folded(Vector a, Vector b) { return __builtin_shuffle(a, b, EVEN) + __builtin_shuffle(a, b, ODD); }

inline float total(Vector v) {
    for (int round = 0; round < 4; round++) v = folded(v, v);
    return v[0];
}

inline float greatest(Vector v) {
    for (int round = 0; round < 4; round++) {
        Vector even = __builtin_shuffle(v, v, EVEN), odd = __builtin_shuffle(v, v, ODD);
        v = even > odd ? even : odd;
    }
    return v[0];
}

// Softmax over the first `count` of scores, of which room for whole vectors is needed; those after them become 0.
inline void softmax(Int count, float* scores) {
    Int whole = (count + 15) / 16 * 16;
    for (Int j = count; j < whole; j++) scores[j] = -1e30f;
    Vector most = *(Vector*)scores, sum = {};
    for (Int j = 16; j < whole; j += 16) {
        Vector v = *(Vector*)(scores + j);
        most = v > most ? v : most;
    }
    Vector peak = Vector{} + greatest(most);
    for (Int j = 0; j < whole; j += 16) {
        Vector e = exponential(*(Vector*)(scores + j) - peak);
        *(Vector*)(scores + j) = e;
        sum += e;
    }
    float factor = 1.0f / total(sum);
    for (Int j = 0; j < whole; j += 16) *(Vector*)(scores + j) *= factor;
    for (Int j = count; j < whole; j++) scores[j] = 0;
}

// Row i of scores (rows, stride): over its first `from + i + 1` columns, 0 beyond.
void causal_softmax(Int rows, Int from, Int columns, float* scores, Int stride) {
    for (Int i = 0; i < rows; i++) {
        Int count = from + i + 1 < columns ? from + i + 1 : columns;
        softmax(count, scores + i * stride);
        for (Int j = (count + 15) / 16 * 16; j < columns; j++) scores[i * stride + j] = 0;
    }
}

// Of one path and one head of keys, contiguous: keys and values, by rows and by columns.
struct Local {
    Int dim, stride;
    std::vector<float> keys, values, keys_t, values_t, grad_keys, grad_values, query, pull, p, g, out;
    Local(Int width, Int dim)
        : dim(dim), stride(rounded(width)), keys(stride * dim), values(stride * dim), keys_t(stride * dim),
          values_t(stride * dim), grad_keys(stride * dim), grad_values(stride * dim), query(BLOCK * dim),
          pull(BLOCK * dim), p(BLOCK * stride), g(BLOCK * stride), out(BLOCK * dim) {}

    template <class T>
    void gather(const Path& path, const float* key, Int key_row, const T* value, Int value_row) {
        std::fill(keys.begin() + path.last * dim, keys.end(), 0.0f);
        std::fill(values.begin() + path.last * dim, values.end(), 0.0f);
        for (Int j = 0; j < path.last; j++) {
            memcpy(&keys[j * dim], key + path.nodes[j] * key_row, dim * sizeof(float));
            const T* from = value + path.nodes[j] * value_row;
            float* to = &values[j * dim];
#pragma omp simd
            for (Int d = 0; d < dim; d++) to[d] = load(from[d]);
        }
        transpose(stride, dim, keys.data(), keys_t.data());
    }

    template <class T>
    void rows(const Path& path, Int begin, Int count, const T* from, Int row, float factor, std::vector<float>& to) {
        for (Int i = 0; i < count; i++) {
            const T* source = from + path.nodes[begin + i] * row;
            float* target = &to[i * dim];
#pragma omp simd
            for (Int d = 0; d < dim; d++) target[d] = load(source[d]) * factor;
        }
        std::fill(to.begin() + count * dim, to.begin() + (count + 3) / 4 * 4 * dim, 0.0f);
    }
};

// rotated: (u, heads + kv_heads, dim) queries and keys; qkv: the values' source, (u, heads + 2 kv_heads, dim).
template <class T>
void attend(Int paths_n, Int width, Int heads, Int kv_heads, Int dim, const float* rotated, const T* qkv,
            const Int* paths, const Int* place, float scaling, T* mixed) {
    Int turned = heads + kv_heads, group = heads / kv_heads, full = turned + kv_heads;
#pragma omp parallel
    {
        Local local(width, dim);
#pragma omp for
        for (Int at = 0; at < paths_n * kv_heads; at++) {
            Path path(paths, place, width, at / kv_heads);
            Int kv = at % kv_heads;
            local.gather(path, rotated + (heads + kv) * dim, turned * dim, qkv + (turned + kv) * dim, full * dim);
            for (Int h = kv * group; h < (kv + 1) * group; h++)
                for (Int begin = path.first; begin < path.last; begin += BLOCK) {
                    Int count = path.last - begin < BLOCK ? path.last - begin : BLOCK;
                    Int columns = rounded(begin + count), rows = (count + 3) / 4 * 4;
                    local.rows(path, begin, count, rotated + h * dim, turned * dim, scaling, local.query);
                    multiply<false>(rows, columns, dim, local.query.data(), dim, 1, local.keys_t.data(), local.stride,
                                    local.p.data(), local.stride);
                    causal_softmax(count, begin, columns, local.p.data(), local.stride);
                    multiply<false>(rows, dim, begin + count, local.p.data(), local.stride, 1, local.values.data(), dim,
                                    local.out.data(), dim);
                    for (Int i = 0; i < count; i++) {
                        T* to = mixed + (path.nodes[begin + i] * heads + h) * dim;
                        const float* from = &local.out[i * dim];
#pragma omp simd
                        for (Int d = 0; d < dim; d++) store(to[d], from[d]);
                    }
                }
        }
    }
}

// grad_rotated and grad_v come zeroed. One thread for each head of keys, or paths would add to a node at once.
template <class T>
void attend_backward(Int paths_n, Int width, Int heads, Int kv_heads, Int dim, const float* rotated, const T* qkv,
                     const Int* paths, const Int* place, float scaling, const T* grad_mixed, float* grad_rotated,
                     float* grad_v) {
    Int turned = heads + kv_heads, group = heads / kv_heads, full = turned + kv_heads;
#pragma omp parallel for
    for (Int kv = 0; kv < kv_heads; kv++) {
        Local local(width, dim);
        Int stride = local.stride;
        float *p = local.p.data(), *g = local.g.data();
        for (Int at = 0; at < paths_n; at++) {
            Path path(paths, place, width, at);
            if (path.first == path.last) continue;
            local.gather(path, rotated + (heads + kv) * dim, turned * dim, qkv + (turned + kv) * dim, full * dim);
            transpose(stride, dim, local.values.data(), local.values_t.data());
            std::fill(local.grad_keys.begin(), local.grad_keys.end(), 0.0f);
            std::fill(local.grad_values.begin(), local.grad_values.end(), 0.0f);
            for (Int h = kv * group; h < (kv + 1) * group; h++)
                for (Int begin = path.first; begin < path.last; begin += BLOCK) {
                    Int count = path.last - begin < BLOCK ? path.last - begin : BLOCK;
                    Int columns = rounded(begin + count), rows = (count + 3) / 4 * 4;
                    local.rows(path, begin, count, rotated + h * dim, turned * dim, scaling, local.query);
                    local.rows(path, begin, count, grad_mixed + h * dim, heads * dim, 1.0f, local.pull);
                    multiply<false>(rows, columns, dim, local.query.data(), dim, 1, local.keys_t.data(), stride, p,
                                    stride);
                    causal_softmax(count, begin, columns, p, stride);
                    multiply<false>(rows, columns, dim, local.pull.data(), dim, 1, local.values_t.data(), stride, g,
                                    stride);
                    Int keys = (begin + count + 3) / 4 * 4;
                    multiply<true>(keys, dim, count, p, 1, stride, local.pull.data(), dim, local.grad_values.data(),
                                   dim);
                    for (Int i = 0; i < count; i++) {
                        float *pi = p + i * stride, *gi = g + i * stride, along = 0;
#pragma omp simd reduction(+ : along)
                        for (Int j = 0; j < columns; j++) along += pi[j] * gi[j];
#pragma omp simd
                        for (Int j = 0; j < columns; j++) gi[j] = pi[j] * (gi[j] - along);
                    }
                    multiply<true>(keys, dim, count, g, 1, stride, local.query.data(), dim, local.grad_keys.data(),
                                   dim);
                    multiply<false>(rows, dim, begin + count, g, stride, 1, local.keys.data(), dim, local.out.data(),
                                    dim);
                    for (Int i = 0; i < count; i++) {
                        float* to = grad_rotated + (path.nodes[begin + i] * turned + h) * dim;
                        for (Int d = 0; d < dim; d++) to[d] = local.out[i * dim + d] * scaling;
                    }
                }
            for (Int j = 0; j < path.last; j++) {
                float* to_key = grad_rotated + (path.nodes[j] * turned + heads + kv) * dim;
                float* to_value = grad_v + (path.nodes[j] * kv_heads + kv) * dim;
                for (Int d = 0; d < dim; d++) to_key[d] += local.grad_keys[j * dim + d];
                for (Int d = 0; d < dim; d++) to_value[d] += local.grad_values[j * dim + d];
            }
        }
    }
}

// ---- attention of one new token for each slot ----

// scores[j] = query . keys[j] for 16 keys in a row, of which the first `count` are read.
inline Vector products(Int dim, Int count, const float* query, const float* keys) {
    Vector sums[16];
    for (int j = 0; j < 16; j++) {
        Vector sum = {};
        const float* key = keys + (j < count ? j : 0) * dim;
        for (Int d = 0; d < dim; d += 16) sum += *(const Vector*)(query + d) * *(const Vector*)(key + d);
        sums[j] = sum;
    }
    for (int n = 8; n > 0; n /= 2)
        for (int j = 0; j < n; j++) sums[j] = folded(sums[2 * j], sums[2 * j + 1]);
    return sums[0];
}

// Only columns up to a slot's own position are read: what another rollout left behind them does not matter.
template <class T>
void attend_step(Int n, Int heads, Int kv_heads, Int dim, Int columns, const T* qkv, const float* scale,
                 const float* cos, const float* sin, const Int* position, const Int* at, float epsilon, float scaling,
                 float* keys, float* values, T* mixed) {
    Int turned = heads + kv_heads, group = heads / kv_heads, full = turned + kv_heads;
#pragma omp parallel
    {
        std::vector<float> unit(dim), query(dim), scores(rounded(columns)), out(dim);
#pragma omp for
        for (Int i = 0; i < n; i++) {
            Int count = position[i] + 1;
            const float *c = cos + position[i] * dim, *s = sin + position[i] * dim;
            for (Int kv = 0; kv < kv_heads; kv++) {
                float *key = keys + (i * kv_heads + kv) * columns * dim,
                      *value = values + (i * kv_heads + kv) * columns * dim;
                rotated(dim, qkv + (i * full + heads + kv) * dim, scale ? scale + (heads + kv) * dim : nullptr, c, s,
                        epsilon, unit.data(), key + at[i] * dim);
                const T* new_value = qkv + (i * full + turned + kv) * dim;
                for (Int d = 0; d < dim; d++) value[at[i] * dim + d] = load(new_value[d]);
                for (Int h = kv * group; h < (kv + 1) * group; h++) {
                    rotated(dim, qkv + (i * full + h) * dim, scale ? scale + h * dim : nullptr, c, s, epsilon,
                            unit.data(), query.data());
                    for (Int j = 0; j < count; j += 16)
                        *(Vector*)&scores[j] = products(dim, count - j, query.data(), key + j * dim) * scaling;
                    softmax(count, scores.data());
                    T* to = mixed + (i * heads + h) * dim;
                    for (Int d = 0; d < dim; d += 32) {
                        Vector a[4] = {};
                        Int j = 0;
                        for (; j + 1 < count; j += 2)
                            for (int r = 0; r < 4; r++)
                                a[r] += *(const Vector*)(value + (j + r / 2) * dim + d + r % 2 * 16) * scores[j + r / 2];
                        if (j < count)
                            for (int r = 0; r < 2; r++) a[r] += *(const Vector*)(value + j * dim + d + r * 16) * scores[j];
                        *(Vector*)&out[d] = a[0] + a[2];
                        *(Vector*)&out[d + 16] = a[1] + a[3];
                    }
                    for (Int d = 0; d < dim; d++) store(to[d], out[d]);
                }
            }
        }
    }
}

}  // namespace

// In the order of `kernels.SIGNATURES`.
#define TABLE(T)                                                                                          \
    {(void*)add_norm<T>, (void*)add_norm_backward<T>, (void*)swiglu<T>, (void*)swiglu_backward<T>,        \
     (void*)rotate<T>,   (void*)rotate_backward<T>,   (void*)attend<T>, (void*)attend_backward<T>,        \
     (void*)attend_step<T>}

extern "C" {
void* kernels_float32[] = TABLE(float);
void* kernels_bfloat16[] = TABLE(Bf16);
}
