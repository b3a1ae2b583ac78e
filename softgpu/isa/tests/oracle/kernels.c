// Kernels for the decoder's corpus test: each one exists for the instruction families named above it.
typedef float f4 __attribute__((ext_vector_type(4)));
typedef _Float16 h2 __attribute__((ext_vector_type(2)));
#define KERNEL __attribute__((amdgpu_kernel)) void
#define GLOBAL __attribute__((address_space(1)))
#define LDS __attribute__((address_space(3)))
static unsigned lane(void) { return __builtin_amdgcn_workgroup_id_x() * 256u + __builtin_amdgcn_workitem_id_x(); }

// Scalar loads, global loads and stores, FMA.
KERNEL axpy(GLOBAL float *y, const GLOBAL float *x, float a, unsigned n) {
  unsigned i = lane();
  if (i < n) y[i] = a * x[i] + y[i];
}

// 128-bit memory, dual issue.
KERNEL scale4(GLOBAL f4 *x, float a, float b) {
  unsigned i = lane();
  f4 v = x[i];
  for (int k = 0; k < 8; k++) v = v * a + b;
  x[i] = v;
}

// Integer multiply and shifts, 64-bit arithmetic.
KERNEL hash(GLOBAL unsigned long *out, unsigned long seed) {
  unsigned i = lane();
  unsigned long z = seed + i * 0x9e3779b97f4a7c15ul;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ul;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebul;
  out[i] = z ^ (z >> 31);
}

// LDS and barriers.
static LDS float part[256] __attribute__((loader_uninitialized));
KERNEL reduce(GLOBAL float *out, const GLOBAL float *in) {
  unsigned t = __builtin_amdgcn_workitem_id_x();
  part[t] = in[lane()];
  for (unsigned s = 128; s > 0; s >>= 1) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
    if (t < s) part[t] += part[t + s];
  }
  if (t == 0) out[__builtin_amdgcn_workgroup_id_x()] = part[0];
}

// Atomics of every width and scope, device fence.
KERNEL histogram(GLOBAL unsigned *bins, GLOBAL unsigned long *total, GLOBAL float *sum, const GLOBAL unsigned *in) {
  unsigned v = in[lane()];
  __atomic_fetch_add(&bins[v & 255], 1u, __ATOMIC_RELAXED);
  __atomic_fetch_max(&bins[256], v, __ATOMIC_SEQ_CST);
  __atomic_fetch_add(total, (unsigned long)v, __ATOMIC_ACQ_REL);
  unsigned expected = 7;
  __atomic_compare_exchange_n(&bins[257], &expected, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  bins[258] = expected;
}

// Divergent loop, compare and select.
KERNEL mandel(GLOBAL unsigned *out, float step) {
  unsigned i = lane();
  float cx = (float)(i & 1023) * step - 2.0f, cy = (float)(i >> 10) * step - 1.0f, x = 0, y = 0;
  unsigned n = 0;
  while (n < 256 && x * x + y * y < 4.0f) {
    float t = x * x - y * y + cx;
    y = 2.0f * x * y + cy;
    x = t;
    n++;
  }
  out[i] = n;
}

// IEEE division and square root (div_scale, div_fmas, denorm mode), f64.
KERNEL divide(GLOBAL float *a, GLOBAL double *b, double d) {
  unsigned i = lane();
  a[i] = __builtin_sqrtf(a[i]) / (a[i] + 1.0f);
  b[i] = __builtin_floor(b[i] / d) + (double)a[i];
}

// Packed and scalar f16, dot products.
KERNEL halves(GLOBAL h2 *x, GLOBAL _Float16 *y, GLOBAL int *z, int a) {
  unsigned i = lane();
  h2 v = x[i];
  x[i] = v * v + v;
  y[i] = y[i] * (_Float16)2.0f + (_Float16)1.0f;
  z[i] = __builtin_amdgcn_sudot4(1, a, 0, z[i], z[i], 1);
}

// Bytes, bit fields, packing.
KERNEL bytes(GLOBAL unsigned char *out, const GLOBAL signed char *in, GLOBAL short *s) {
  unsigned i = lane();
  out[i] = (unsigned char)((in[i] * 3 + s[i]) >> 2);
  s[i] = (short)__builtin_popcount(out[i]) + (short)__builtin_clz(i | 1u);
}

// Scratch: a private array indexed at run time.
KERNEL spill(GLOBAL unsigned *out, unsigned a) {
  unsigned table[64];
  unsigned i = lane();
  for (unsigned k = 0; k < 64; k++) table[k] = k * a + i;
  unsigned s = 0;
  for (unsigned k = 0; k < a; k++) { s += table[(s + k) & 63]; table[(s ^ k) & 63] = s; }
  out[i] = s;
}

// Flat addressing, a call, a trap.
__attribute__((noinline)) unsigned mix(unsigned *p, unsigned v) { return *p * 31u + v; }
KERNEL flat(unsigned *p, GLOBAL unsigned *out) {
  unsigned i = lane();
  if (i == 12345u) __builtin_trap();
  out[i] = mix(p + i, i);
}

// Wave operations: readlane, DPP, ballot, cycle counter.
KERNEL wave(GLOBAL unsigned *out) {
  unsigned i = lane();
  unsigned v = __builtin_amdgcn_readfirstlane(i) + __builtin_amdgcn_readlane(i, 3);
  v += __builtin_amdgcn_update_dpp(0, i, 0x111, 15, 15, 0);
  v += __builtin_amdgcn_mov_dpp8(i, 0x53977);
  v += __builtin_amdgcn_ds_bpermute((int)i * 4, (int)v);
  v += __builtin_amdgcn_permlanex16(0, i, 1, 2, 0, 0);
  v += (unsigned)__builtin_readcyclecounter() + __builtin_amdgcn_mbcnt_lo(~0u, 0);
  out[i] = v;
}
