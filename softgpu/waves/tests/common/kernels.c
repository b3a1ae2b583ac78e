// SPDX-License-Identifier: MIT OR Apache-2.0
// Kernels of the end-to-end tests, compiled by clang for gfx1100. Sizes are fixed by the launches in the tests.
typedef unsigned int u32;
typedef unsigned long u64;
typedef unsigned short u16;
typedef unsigned char u8;
#define KERNEL __attribute__((amdgpu_kernel, visibility("protected"), used)) void
#define GLOBAL __attribute__((address_space(1)))
#define LDS __attribute__((address_space(3)))
#define SHARED static LDS __attribute__((loader_uninitialized))
#define TID __builtin_amdgcn_workitem_id_x()
#define TIDY __builtin_amdgcn_workitem_id_y()
#define WG __builtin_amdgcn_workgroup_id_x()
#define WGY __builtin_amdgcn_workgroup_id_y()
#define BARRIER() do { __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup"); __builtin_amdgcn_s_barrier(); __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup"); } while (0)

KERNEL axpy(GLOBAL const float *x, GLOBAL float *y, float a, u32 n) {
  u32 i = WG * 256 + TID;
  if (i < n) y[i] = __builtin_fmaf(a, x[i], y[i]);
}

KERNEL stencil(GLOBAL const float *in, GLOBAL float *out, u32 w, u32 h) {
  u32 x = WG * 32 + TID, y = WGY * 8 + TIDY;
  if (x == 0 || y == 0 || x >= w - 1 || y >= h - 1) return;
  u32 i = y * w + x;
  out[i] = 0.5f * in[i] + 0.125f * (in[i - 1] + in[i + 1] + in[i - w] + in[i + w]);
}

KERNEL gemm(GLOBAL const float *a, GLOBAL const float *b, GLOBAL float *c, u32 n) {
  SHARED float ta[16][16], tb[16][16];
  u32 tx = TID, ty = TIDY, row = WGY * 16 + ty, col = WG * 16 + tx;
  float sum = 0;
  for (u32 k = 0; k < n; k += 16) {
    ta[ty][tx] = a[row * n + k + tx];
    tb[ty][tx] = b[(k + ty) * n + col];
    BARRIER();
    for (u32 j = 0; j < 16; j++) sum = __builtin_fmaf(ta[ty][j], tb[j][tx], sum);
    BARRIER();
  }
  c[row * n + col] = sum;
}

KERNEL collatz(GLOBAL const u32 *in, GLOBAL u32 *out) {
  u32 i = WG * 64 + TID, n = in[i], steps = 0;
  while (n != 1) {
    n = n & 1 ? 3 * n + 1 : n / 2;
    steps++;
  }
  out[i] = steps;
}

KERNEL reduce(GLOBAL const u32 *in, GLOBAL u32 *out) {
  u32 v = in[WG * 32 + TID];
  // Two steps by DPP in rows, the rest by the crossbar.
  v += __builtin_amdgcn_update_dpp(0, v, 0x111, 0xf, 0xf, 1);
  v += __builtin_amdgcn_update_dpp(0, v, 0x112, 0xf, 0xf, 1);
  v += __builtin_amdgcn_update_dpp(0, v, 0x114, 0xf, 0xf, 1);
  v += __builtin_amdgcn_update_dpp(0, v, 0x118, 0xf, 0xf, 1);
  u32 low = __builtin_amdgcn_ds_bpermute(15 * 4, v);
  if (TID >= 16) v += low;
  out[WG * 32 + TID] = v;
}

KERNEL hash(GLOBAL const u32 *in, GLOBAL u32 *out, GLOBAL u64 *wide) {
  u32 i = WG * 128 + TID, h = in[i];
  for (u32 k = 0; k < 8; k++) {
    h ^= h >> 16;
    h *= 0x7feb352d;
    h = h << 13 | h >> 19;
    h ^= h >> 15;
    h += k * 0x846ca68b;
    h = h % 1000003u + (h / 7u);
  }
  out[i] = h;
  u64 z = (u64)h * 0x9E3779B97F4A7C15ul + i;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ul;
  z = z / (u64)(i + 3);
  wide[i] = z << (i & 31) ^ (u64)((long)z >> 7);
}

KERNEL doubles(GLOBAL const double *x, GLOBAL double *y, GLOBAL long *n) {
  u32 i = WG * 64 + TID;
  double a = x[i];
  double r = __builtin_sqrt(__builtin_fabs(a)) / (a * a + 1.0) + __builtin_fma(a, 0.25, -3.0);
  r += __builtin_floor(a) - (double)(int)a;
  y[i] = a < 0 ? -r : r;
  n[i] = (long)(a * 1000.0);
}

KERNEL histogram(GLOBAL const u32 *in, GLOBAL u32 *bins, GLOBAL u32 *highest, GLOBAL float *sum) {
  SHARED u32 local[64];
  u32 i = WG * 256 + TID;
  if (TID < 64) local[TID] = 0;
  BARRIER();
  u32 v = in[i];
  __atomic_fetch_add(&local[v & 63], 1, __ATOMIC_RELAXED);
  __scoped_atomic_fetch_max(highest, v, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
  BARRIER();
  if (TID < 64) __scoped_atomic_fetch_add(&bins[TID], local[TID], __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
  if ((v & 1023) == 7) __builtin_amdgcn_global_atomic_fadd_f32(sum, 0.5f);
}

KERNEL spill(GLOBAL const u32 *in, GLOBAL u32 *out) {
  u32 i = WG * 64 + TID;
  volatile u32 stack[40];
  for (u32 k = 0; k < 40; k++) stack[k] = in[i] * (k + 1);
  u32 sum = 0;
  for (u32 k = 0; k < 200; k++) {
    u32 at = (in[i] + k * 7) % 40;
    sum = sum * 31 + stack[at];
    stack[at] = sum;
  }
  volatile u8 bytes[16];
  for (u32 k = 0; k < 16; k++) bytes[k] = sum >> k;
  out[i] = sum + bytes[i & 15];
}

KERNEL floats(GLOBAL const float *x, GLOBAL const float *y, GLOBAL float *out, u32 n) {
  u32 i = WG * 64 + TID;
  float a = x[i], b = y[i];
  out[i] = a / b;
  out[n + i] = __builtin_sqrtf(__builtin_fabsf(a));
  out[2 * n + i] = __builtin_fmaxf(a, b) - __builtin_fminf(a, b);
  out[3 * n + i] = (float)(int)a + (float)(u32)b + __builtin_truncf(a) + __builtin_rintf(b) + __builtin_ceilf(a);
  out[4 * n + i] = a > b ? __builtin_fabsf(a) : __builtin_isnan(b) ? 1.0f : -b;
}

typedef _Float16 half2 __attribute__((ext_vector_type(2)));
typedef short short2 __attribute__((ext_vector_type(2)));
KERNEL halves(GLOBAL const half2 *x, GLOBAL const half2 *y, GLOBAL half2 *out, GLOBAL float *f, GLOBAL short2 *s) {
  u32 i = WG * 64 + TID;
  half2 a = x[i], b = y[i];
  out[i] = a * b + a;
  f[i] = (float)a.x * (float)b.y + f[i];
  short2 p = s[i];
  s[i] = (p + (short2)3) * p - (p >> 2);
}

KERNEL chars(GLOBAL const u8 *in, GLOBAL u8 *out, GLOBAL u16 *wide, u32 n) {
  u32 i = WG * 64 + TID;
  if (i >= n) return;
  u8 a = in[i], b = in[(i * 7 + 3) % n];
  out[i] = a > b ? a - b : (a ^ b) + 1;
  wide[i] = (u16)(a * b) >> (b & 7);
}

__attribute__((noinline)) static u32 fib(u32 n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
KERNEL calls(GLOBAL u32 *out) {
  u32 i = WG * 32 + TID;
  out[i] = fib(i & 7);
}

KERNEL endless(GLOBAL u32 *flag) {
  while (__scoped_atomic_load_n(flag, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM) == 0) __builtin_amdgcn_s_sleep(1);
  flag[1 + WG] = 7;
}

// out[64] becomes 1 when a wave runs.
KERNEL spin(GLOBAL u32 *out) {
  u32 v = TID;
  __scoped_atomic_store_n(out + 64, 1, __ATOMIC_RELAXED, __MEMORY_SCOPE_SYSTEM);
  for (;;) {
    v = v * 1664525u + 1013904223u;
    if (v == 0x12345 && out[0] == 99) break;
  }
  out[TID] = v;
}

// Every workgroup waits until all are there.
KERNEL meet(GLOBAL u32 *there, u32 groups) {
  if (TID == 0) __scoped_atomic_fetch_add(there, 1, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
  while (__scoped_atomic_load_n(there, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE) < groups) __builtin_amdgcn_s_sleep(8);
}

KERNEL long_mix(GLOBAL u32 *data, u32 rounds) {
  SHARED u32 shared[256];
  u32 i = WG * 256 + TID, v = data[i];
  for (u32 r = 0; r < rounds; r++) {
    shared[TID] = v;
    BARRIER();
    u32 other = shared[(TID * 5 + r) & 255];
    BARRIER();
    if (other & 1) v = v * 747796405u + other; else v ^= other >> 3;
  }
  data[i] = v;
}

KERNEL wild(GLOBAL u32 *out, u64 address) {
  if (TID == 5) *(GLOBAL u32 *)address = 1;
  out[TID] = 1;
}

KERNEL trap(GLOBAL u32 *out) {
  if (out[0] == 1) __builtin_trap();
  out[1] = 2;
}

KERNEL flat(GLOBAL u32 *out, u32 which) {
  SHARED u32 shared[64];
  u32 mine[4];
  shared[TID] = TID * 3;
  mine[0] = TID; mine[1] = TID + 1; mine[2] = 5; mine[3] = 6;
  BARRIER();
  u32 *p = which == 0 ? (u32 *)&shared[TID ^ 1] : which == 1 ? &mine[TID & 3] : (u32 *)&out[64 + TID];
  *(volatile u32 *)p += 100;
  BARRIER();
  out[TID] = *(volatile u32 *)p + shared[TID] + mine[TID & 3];
}
