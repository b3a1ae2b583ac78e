// SPDX-License-Identifier: MIT OR Apache-2.0 all-MiniLM-L6-v2 for gfx11, wave32. Tokens of all sentences of a batch
// follow each other without padding between them, so no number of a sentence depends on its neighbours, only its row
// numbers do. All row counts are multiples of 16; rows after the last token are computed like others and never read.
#ifdef __GFX11__
#include "wave.h"
// norm.h defines a row; the other files use it.
#include "norm.h"
#include "gelu.h"
#include "gemm_f16.h"
#include "attention_f16.h"
#include "f32.h"
#endif
