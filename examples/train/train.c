// SPDX-License-Identifier: MIT OR Apache-2.0
// Training of a network with one hidden layer: products of matrices, the layers' other parts, and gradient descent; f32, matrices
// in rows. One work-item an element, workgroups of 64.
typedef unsigned int u32;
#define KERNEL __attribute__((amdgpu_kernel, visibility("protected"))) void
#define INDEX (__builtin_amdgcn_workgroup_id_x() * 64 + __builtin_amdgcn_workitem_id_x())

// out = a b + bias, rectified if so wanted. a: rows x inner, b: inner x columns, bias: columns.
KERNEL layer(const float *restrict a, const float *restrict b, const float *restrict bias, float *restrict out, u32 rows,
             u32 inner, u32 columns, u32 rectified)
{
    const u32 at = INDEX;
    if (at >= rows * columns)
        return;
    const u32 row = at / columns, column = at % columns;
    float sum = bias[column];
    for (u32 k = 0; k < inner; k++)
        sum = __builtin_fmaf(a[row * inner + k], b[k * columns + column], sum);
    out[at] = rectified && sum < 0.0f ? 0.0f : sum;
}

// What the probabilities of each row's classes lack of its label, over `share`, in the logits' place; and the row's loss.
KERNEL lack(float *restrict logits, const u32 *restrict labels, float *restrict losses, u32 rows, u32 classes, float share)
{
    const float log2_e = 1.44269504f;
    const u32 row = INDEX;
    if (row >= rows)
        return;
    float *const at = logits + row * classes;
    float most = at[0], sum = 0.0f;
    for (u32 k = 1; k < classes; k++)
        most = at[k] > most ? at[k] : most;
    const u32 label = labels[row];
    const float wanted = at[label] - most;
    for (u32 k = 0; k < classes; k++) {
        at[k] = __builtin_amdgcn_exp2f((at[k] - most) * log2_e);
        sum += at[k];
    }
    losses[row] = __builtin_amdgcn_logf(sum) / log2_e - wanted;
    for (u32 k = 0; k < classes; k++)
        at[k] = (at[k] / sum - (k == label ? 1.0f : 0.0f)) * share;
}

// The gradients of a layer's weights and bias. a: rows x inner, lack: rows x columns; out: inner x columns, then columns.
KERNEL gradients(const float *restrict a, const float *restrict lack, float *restrict out, u32 rows, u32 inner, u32 columns)
{
    const u32 at = INDEX;
    if (at >= (inner + 1) * columns)
        return;
    const u32 k = at / columns, column = at % columns;
    float sum = 0.0f;
    for (u32 row = 0; row < rows; row++)
        sum = __builtin_fmaf(k < inner ? a[row * inner + k] : 1.0f, lack[row * columns + column], sum);
    out[at] = sum;
}

// What the hidden layer lacks. lack: rows x columns, b: inner x columns, hidden and out: rows x inner.
KERNEL backward(const float *restrict lack, const float *restrict b, const float *restrict hidden, float *restrict out, u32 rows,
                u32 inner, u32 columns)
{
    const u32 at = INDEX;
    if (at >= rows * inner)
        return;
    const u32 row = at / inner, k = at % inner;
    float sum = 0.0f;
    for (u32 column = 0; column < columns; column++)
        sum = __builtin_fmaf(lack[row * columns + column], b[k * columns + column], sum);
    out[at] = hidden[at] > 0.0f ? sum : 0.0f;
}

KERNEL descend(float *restrict weights, const float *restrict gradients, u32 count, float rate)
{
    const u32 at = INDEX;
    if (at < count)
        weights[at] = __builtin_fmaf(-rate, gradients[at], weights[at]);
}
