// SPDX-License-Identifier: MIT OR Apache-2.0
// v * (1 + erf(v / sqrt 2)) / 2, the exact form. erf by Abramowitz and Stegun 7.1.26, whose error is below 1.5e-7.
INLINE float gelu(float v)
{
    const float z = __builtin_fabsf(v) * 0.70710678f;
    const float t = __builtin_amdgcn_rcpf(__builtin_fmaf(0.3275911f, z, 1.0f));
    float p = 1.061405429f;
    p = __builtin_fmaf(p, t, -1.453152027f);
    p = __builtin_fmaf(p, t, 1.421413741f);
    p = __builtin_fmaf(p, t, -0.284496736f);
    p = __builtin_fmaf(p, t, 0.254829592f);
    // exp(-z z): a value below the smallest number becomes 0, and erf becomes 1.
    const float erf = 1.0f - p * t * __builtin_amdgcn_exp2f(z * z * -1.44269504f);
    return 0.5f * v * (1.0f + __builtin_copysignf(erf, v));
}
