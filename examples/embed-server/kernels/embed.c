// SPDX-License-Identifier: MIT OR Apache-2.0
// all-MiniLM-L6-v2 for gfx11, wave32. Tokens of all sentences of a batch follow each other without padding between them, so
// nothing that is computed for a sentence depends on its neighbours: only which rows they are. All row counts are multiples
// of 16; rows behind the last token are computed like others and read by nobody.
#ifdef __GFX11__
#include "wave.h"
// norm.h says what a row is, and the others build on it.
#include "norm.h"
#include "gelu.h"
#include "gemm_f16.h"
#include "attention_f16.h"
#include "f32.h"
#endif
